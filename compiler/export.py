"""Graphs to keep: the semantic graph and one backend's lowered graphs, with their weights, as files of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plugins.errors import UsageError
from . import parts
from .checkpoint import Checkpoint
from .inputs import ASSUMED_DEPTH, cache_length, read_inputs, read_target
from .precisions import PRECISIONS
from .progress import Progress, Quiet
from .publish import EXPORT, Assembly, assembling, require_apart, require_publishable
from .recipes import RECIPES, Recipe, wide_type, widened
from .registry import Resolved, has_drafter, resolve, resolve_target
from .report import Phases, peak_rss
from .stages import StageStore

if TYPE_CHECKING:
    from ..graphs.lowering import Lowering

FORMAT_VERSION = 1
REPORT = "export_report.json"


@dataclass(frozen=True)
class ExportOptions:
    """What to export. ``lowering`` says what the graphs are for; ``precision`` None takes the one that suits it."""

    model: str
    out: Path
    draft: str | None = None
    revision: str | None = None
    draft_revision: str | None = None
    lowering: Lowering = "ort"
    precision: str | None = None
    num_speculative_tokens: int | None = None
    max_seq_len: int = 2048
    force: bool = False

    @property
    def chosen_precision(self) -> str:
        """The precision asked for, else the first that the lowering has."""
        return self.precision or PRECISIONS[self.lowering][0]

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        if self.lowering not in PRECISIONS:
            raise UsageError(
                f"--for {self.lowering} does not exist",
                why=f"it is one of {', '.join(PRECISIONS)}",
                fix="try --for ort",
            )
        if self.chosen_precision not in PRECISIONS[self.lowering]:
            raise UsageError(
                f"the precision {self.precision!r} cannot be exported for {self.lowering}",
                why=f"this version writes {' or '.join(PRECISIONS[self.lowering])} for it",
                fix="choose one of those; fp8 is for --for tensorrt",
            )
        if self.num_speculative_tokens is not None and self.num_speculative_tokens < 1:
            raise UsageError(
                f"--num-speculative-tokens {self.num_speculative_tokens} is below 1",
                fix="it is the number of tokens drafted per round; the caches have room for two rounds of them",
            )
        if self.max_seq_len < 1:
            raise UsageError(f"--max-seq-len {self.max_seq_len} is below 1", fix="2048 is the default")
        require_apart(self.out, self.model, self.draft)
        require_publishable(self.out)


@dataclass(frozen=True)
class ExportResult:
    """The folder written, and what ``export_report.json`` says."""

    path: Path
    report: dict[str, Any]


@dataclass(frozen=True)
class _Job:
    """The halves to export, the sizes of their graphs, and what names the checkpoints again."""

    halves: tuple[parts.Half, ...]
    recipe: Recipe
    max_seq_len: int
    max_k: int
    cache_length: int
    repeat: Mapping[str, str | None]
    warnings: tuple[str, ...]


def export(options: ExportOptions, progress: Progress | None = None, store: StageStore | None = None) -> ExportResult:
    """Write ``options.out``: for the target and its drafter ``semantic.onnx``, ``model.onnx`` and their weights.

    A target whose drafter is not named, and not known, is exported alone. Raises ``UsageError``, ``EnvironmentProblem``
    or ``BuildError``; whatever goes wrong, ``options.out`` is what it was before or the finished export.
    """
    progress = progress or Quiet()
    options.check()
    store = store or StageStore.default(force=options.force)
    phase = Phases()
    with phase("resolve"):
        versions = parts.export_versions()
        resolved = _resolve(options, progress)
    with phase("import"), progress.step("import"):
        import onnxscript  # noqa: F401  # measured apart: what the libraries take is not what the export takes
        import torch  # noqa: F401
        import transformers  # noqa: F401
    imports = peak_rss()
    with phase("read"), progress.step("read checkpoints"):
        job = _pair(options, resolved) if isinstance(resolved, Resolved) else _target_alone(options, *resolved)
    own = replace(store, root=store.root / "exports")  # the export takes these steps away: nobody else may hold them
    compiled = {}
    for half in job.halves:
        with phase(f"trace {half.name}") as record:
            traced = parts.trace(store, half, job.recipe.dtype, progress)
            record["reused"] = traced.reused
        with phase(f"attach {half.name}") as record:
            compiled[half.name] = parts.attach(
                own, half, traced, lowering=options.lowering, cache_length=job.cache_length, progress=progress
            )
            record["reused"] = compiled[half.name].attached.reused
    sizes = {name: sum(e.size for e in done.attached.files.values()) for name, done in compiled.items()}
    with assembling(options.out, sizes) as assembly:
        with phase("assemble"), progress.step("assemble"):
            for half in job.halves:
                assembly.take_stage(compiled[half.name].attached, half.name)
                assembly.place_copy(half.checkpoint.folder / "config.json", f"{half.name}/config.json")
            assembly.place_tokenizer(job.halves[0].checkpoint.folder)
        report = _report(options, job, phase, sizes, imports)
        if narrowed := {name: done.precision for name, done in compiled.items() if done.precision}:
            report["precision_of"] = narrowed
            report["warnings"] += [note for record in narrowed.values() for note in record["notes"]]
        assembly.place_text(REPORT, json.dumps(report, indent=2) + "\n")
        with progress.step("publish"):
            assembly.place_text(EXPORT, json.dumps(_manifest(options, job, versions, assembly), indent=2) + "\n")
    return ExportResult(options.out, report)


def _resolve(options: ExportOptions, progress: Progress) -> Resolved | tuple[Path, str | None]:
    """Both checkpoints, or the target's folder and commit where no drafter is named or known."""
    if options.draft is None and not has_drafter(options.model):
        return resolve_target(options.model, options.revision, progress)
    return resolve(options.model, options.draft, options.revision, options.draft_revision, progress)


def _pair(options: ExportOptions, resolved: Resolved) -> _Job:
    inputs = read_inputs(options, resolved)
    recipe = _recipe(options, inputs.target)
    halves = (
        parts.target_half(inputs.target, inputs.spec, recipe),
        parts.drafter_half(inputs.drafter, inputs.head, inputs.spec),
    )
    length = inputs.cache_length(options.lowering)
    warnings = (*inputs.warnings, *widened(recipe, inputs.target))
    return _Job(halves, recipe, inputs.max_seq_len, inputs.max_k, length, resolved.repeatable(), warnings)


def _recipe(options: ExportOptions, target: Checkpoint) -> Recipe:
    return RECIPES[options.chosen_precision].on(wide_type(target))


def _target_alone(options: ExportOptions, folder: Path, commit: str | None) -> _Job:
    target = Checkpoint.open(folder)
    spec, max_seq_len, warnings = read_target(target, options.max_seq_len)
    warnings.append(f"no drafter was named: the target is exported alone, its taps {spec.taps} are the default")
    max_k = max(options.num_speculative_tokens or 0, ASSUMED_DEPTH)
    repeat = {"model": options.model if commit else str(folder), "draft": None, "revision": commit}
    length = cache_length(max_seq_len, max_k, options.lowering)
    recipe = _recipe(options, target)
    warnings += widened(recipe, target)
    return _Job((parts.target_half(target, spec, recipe),), recipe, max_seq_len, max_k, length, repeat, tuple(warnings))


def _report(options: ExportOptions, job: _Job, phase: Phases, sizes: Mapping[str, int], imports: int) -> dict[str, Any]:
    """Time and memory of every phase; memory beyond what importing the libraries took."""
    peak = peak_rss()
    seconds = sum(record["seconds"] for record in phase.done)
    return {
        "phases": phase.done,
        "seconds": round(seconds, 3),
        "peak_rss_bytes": peak,
        "peak_rss_after_imports_bytes": imports,
        "peak_rss_beyond_imports_bytes": peak - imports,
        "checkpoint_bytes": {half.name: half.checkpoint.stored_bytes for half in job.halves},
        "checkpoint_format": {half.name: half.checkpoint.format for half in job.halves},
        "bytes": dict(sizes),
        "for": options.lowering,
        "precision": options.chosen_precision,
        "warnings": list(job.warnings),
    }


def _manifest(options: ExportOptions, job: _Job, versions: Mapping[str, str], assembly: Assembly) -> dict[str, Any]:
    """What the folder is, and enough to make it again."""
    return {
        "format_version": FORMAT_VERSION,
        "product_version": parts.product_version(),
        "for": options.lowering,
        "precision": options.chosen_precision,
        **({"recipe": job.recipe.record()} if job.recipe.narrow else {}),
        "cache_length": job.cache_length,
        "max_seq_len": job.max_seq_len,
        "max_num_speculative_tokens": job.max_k,
        "checkpoints": {half.name: half.checkpoint.fingerprint for half in job.halves},
        **job.repeat,
        "versions": dict(versions),
        "files": {name: asdict(entry) for name, entry in sorted(assembly.files.items())},
    }
