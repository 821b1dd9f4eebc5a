"""From a checkpoint pair to an engine folder: resolve, read, trace, lower, attach weights, choose K, publish."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ..engines.manifest import Backend, Cache, Evidence, Manifest, Origin, Part, Shapes, Speculation
from . import parts
from .checkpoint import Checkpoint
from .choose_k import Choice, Rate, choose_k
from .inputs import Inputs, read_inputs
from .options import BuildOptions
from .progress import Progress, Quiet
from .prompt_set import code_prompts
from .publish import Assembly, assembling
from .registry import resolve
from .report import Phases, build_report, resolved_config
from .stages import StageStore

_SWEEPS, _PROMPTS, _TOKENS = 3, 4, 48


@dataclass(frozen=True)
class BuildResult:
    """The published engine, its manifest, and what ``build_report.json`` says."""

    path: Path
    manifest: Manifest
    report: dict[str, Any]


def build(options: BuildOptions, progress: Progress | None = None, store: StageStore | None = None) -> BuildResult:
    """Build ``options.model`` with its drafter into the engine folder ``options.out``.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``; whatever goes wrong, ``options.out`` is either what
    it was before or the finished engine, and finished steps are reused by the next build.
    """
    progress = progress or Quiet()
    options.check()
    store = store or StageStore.default(force=options.force)
    phase = Phases()
    with phase("resolve"):
        resolved = resolve(options.model, options.draft, options.revision, options.draft_revision, progress)
        versions = _versions()
    with phase("read"), progress.step("read checkpoints"):
        inputs = read_inputs(options, resolved)
    halves = (
        parts.target_half(inputs.target, inputs.spec),
        parts.drafter_half(inputs.drafter, inputs.head, inputs.spec),
    )
    compiled = []
    for half in halves:
        with phase(f"trace {half.name}") as record:
            traced = parts.trace(store, half, "float32", progress)
            record["reused"] = traced.reused
        with phase(f"attach {half.name}") as record:
            compiled.append(
                parts.attach(
                    store, half, traced, lowering=options.lowering, cache_length=inputs.cache_length, progress=progress
                )
            )
            record["reused"] = compiled[-1].attached.reused
    manifest = _manifest(options, inputs, compiled, versions)
    sizes = {
        half.name: sum(e.size for e in done.attached.files.values())
        for half, done in zip(halves, compiled, strict=True)
    }
    with assembling(options.out, sizes) as assembly:
        with phase("assemble"), progress.step("assemble"):
            _assemble(assembly, inputs, compiled)
            manifest = assembly.write_manifest(manifest)
        choice, warnings = None, list(inputs.warnings)
        if options.num_speculative_tokens is None:
            with phase("choose K") as record:
                choice, record["reused"] = _choose(store, manifest, assembly.folder, compiled, inputs.depth, progress)
            speculation = replace(manifest.speculation, num_speculative_tokens=choice.k)
            manifest = replace(manifest, speculation=speculation)
            if choice.speedup <= 1:
                warnings.append("on this machine no number of drafts decodes faster than plain decoding")
        report = build_report(manifest, phase, sizes, choice, warnings)
        assembly.place_text("build_report.json", json.dumps(report, indent=2) + "\n")
        assembly.place_text("resolved_config.yaml", resolved_config(options, inputs, manifest))
        with progress.step("publish"):
            manifest = assembly.write_manifest(manifest)
    return BuildResult(options.out, manifest, report)


def _versions() -> dict[str, str]:
    return {"onnxruntime": version("onnxruntime"), **parts.export_versions()}


def _manifest(
    options: BuildOptions, inputs: Inputs, compiled: list[parts.Compiled], versions: dict[str, str]
) -> Manifest:
    resolved, spec, head = inputs.resolved, inputs.spec, inputs.head
    origins = (
        Origin(resolved.model, inputs.target.fingerprint, str(inputs.target.folder), spec.architecture),
        Origin(resolved.draft, inputs.drafter.fingerprint, str(inputs.drafter.folder), _architecture(inputs.drafter)),
    )
    target, drafter = (
        Part(
            origin=origin,
            file=f"{name}/{parts.MODEL}",
            inputs=done.inputs,
            outputs=done.outputs,
            caches=tuple(Cache(cache.heads, cache.head_dim) for cache in caches),
        )
        for name, origin, done, caches in zip(
            ("target", "drafter"), origins, compiled, (spec.caches, head.caches), strict=True
        )
    )
    return Manifest(
        product_version=parts.product_version(),
        target=target,
        drafter=drafter,
        backend=Backend(options.backend, options.lowering, versions),
        precision=dict.fromkeys(
            ("recipe", "weights", "activations", "kv_cache", "lm_head", "drafter"), options.precision
        ),
        speculation=Speculation(options.num_speculative_tokens or inputs.depth, inputs.max_k, inputs.trained_depth),
        shapes=Shapes(
            max_seq_len=inputs.max_seq_len,
            cache_length=inputs.cache_length,
            hidden_size=spec.hidden_size,
            vocab_size=spec.vocab_size,
            draft_vocab_size=head.draft_vocab_size,
            taps=head.taps,
        ),
        eos_token_ids=inputs.eos_token_ids,
        files={},
        evidence=tuple(Evidence(*item) for item in resolved.pair.evidence) if resolved.pair else (),
    )


def _assemble(assembly: Assembly, inputs: Inputs, compiled: list[parts.Compiled]) -> None:
    for name, checkpoint, done in zip(("target", "drafter"), (inputs.target, inputs.drafter), compiled, strict=True):
        assembly.place_stage(done.attached, name)
        assembly.place_copy(checkpoint.folder / "config.json", f"{name}/config.json")
    assembly.place_tokenizer(inputs.target.folder)


def _choose(
    store: StageStore,
    manifest: Manifest,
    folder: Path,
    compiled: list[parts.Compiled],
    depth: int,
    progress: Progress,
) -> tuple[Choice, bool]:
    """Measure, or take the measurement of an earlier build of the same graphs on the same runtime."""

    def make(stage: Path) -> None:
        from ..engines import Engine, SamplingParams

        engine = Engine.load(folder, check_hashes=False)
        params = SamplingParams(max_tokens=_TOKENS, ignore_eos=True)

        def decode(prompt: str, k: int) -> tuple[int, float]:
            output = engine.generate([prompt], params, num_speculative_tokens=k)[0]
            return len(output.token_ids) - 1, output.decode_seconds  # the first is the prompt's pass

        prompts = [prompt.text for prompt in code_prompts(_PROMPTS)]
        with progress.step(f"choose K among 1..{depth}", _SWEEPS * len(prompts)) as advance:
            choice = choose_k(decode, prompts, depth, sweeps=_SWEEPS, advance=advance)
        (stage / "choice.json").write_text(json.dumps(asdict(choice)))

    key = [[done.attached.path.name for done in compiled], manifest.backend.versions["onnxruntime"], depth]
    stage = store.run("choose-k", key, make)
    content = json.loads((stage.path / "choice.json").read_bytes())
    return Choice(content["k"], tuple(Rate(**rate) for rate in content["rates"])), stage.reused


def _architecture(checkpoint: Checkpoint) -> str:
    named = checkpoint.config.get("architectures") or ["unnamed"]
    return str(named[0])
