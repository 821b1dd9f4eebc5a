"""``peagle.build``, ``export``, ``quantize``, ``add_drafter``, ``verify``, ``bench``, ``tune``: commands as functions.

Each takes the options of its command under the names of the flags (``--max-seq-len`` is ``max_seq_len``), returns its
result, raises the errors that the command line reports, and prints nothing. ``tests/compiler/test_api.py`` keeps the
signatures in step with the command line.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console.progress import Progress
from .request.verb_options import BUILD, EXPORT, QUANTIZE, VerbOptions

if TYPE_CHECKING:
    from ..engines.policy.drafts_per_round import NumSpeculativeTokens
    from .bench.result import BenchResult
    from .bench.tune import Tuned
    from .pipeline.assemble_engine import BuildResult
    from .pipeline.engine_drafters import EngineDrafter
    from .pipeline.export import ExportResult
    from .pipeline.quantize import QuantizeResult
    from .request.request import CompileRequest
    from .verify import Verification

StrPath = str | os.PathLike[str]
Texts = str | Sequence[str]


def build(
    model: str | None = None,
    *,
    draft: str | None = None,
    revision: str | None = None,
    draft_revision: str | None = None,
    taps: Texts | Sequence[int] = (),
    mask_token_id: int | None = None,
    from_export: StrPath | None = None,
    out: StrPath | None = None,
    backend: str | None = None,
    gpu: Texts = (),
    precision: str | None = None,
    kv_cache_dtype: str | None = None,
    lm_head_precision: str | None = None,
    draft_precision: str | None = None,
    exclude: Texts = (),
    allow_wide: Texts = (),
    calib_data: StrPath | None = None,
    calib_method: str | None = None,
    calib_samples: int | None = None,
    calib_length: int | None = None,
    calib_device: str | None = None,
    scales: StrPath | None = None,
    num_speculative_tokens: int | None = None,
    max_seq_len: int | None = None,
    lowering: str | None = None,
    experts: str | None = None,
    max_batch_size: int | None = None,
    optimization_level: int | None = None,
    workspace_gb: float | None = None,
    acceptance_length: Texts = (),
    force: bool = False,
    ignore_limits: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Build an engine from a model and its drafter, as ``peagle-compile build`` does.

    Args:
        model: The target: a short name, a checkpoint folder, a GGUF file, or OWNER/NAME of the Hugging Face Hub.
        draft: The head, or a draft method that needs none (``"ngram"``, ``"none"``); the known head of the target by
            default.
        revision: Branch, tag or commit of the target.
        draft_revision: Branch, tag or commit of the head.
        taps: Target layers whose inputs the head reads; overrides the head's configuration.
        mask_token_id: Placeholder token id of the head; overrides its configuration.
        from_export: An export for TensorRT to build from, instead of ``model`` (``--from``).
        out: Engine folder to write; ``MODEL-engine`` in the current folder by default.
        backend: ``"onnxruntime"``, ``"tensorrt-rtx"`` or ``"tensorrt"``; selected for this machine by default.
        gpu: GPUs or architectures to build TensorRT plans for.
        precision: The precision, for example ``"fp8"``.
        kv_cache_dtype: Type of the KV caches.
        lm_head_precision: Type of the LM head.
        draft_precision: Type of the drafter's matrices.
        exclude: Modules of the target not to quantize.
        allow_wide: Weights that the GPU may dequantize to FP16 or BF16 for the matmul: ``"experts"``.
        calib_data: JSON Lines file to calibrate with.
        calib_method: Method that chooses activation ranges.
        calib_samples: Maximum number of samples.
        calib_length: Maximum length of a sample, in tokens.
        calib_device: Device that runs the layers during calibration.
        scales: Folder with the ranges of an earlier calibration, to use instead of calibrating.
        num_speculative_tokens: Tokens drafted per round; measured by default, and 0 disables drafting.
        max_seq_len: Maximum length of prompt plus output, in tokens; by default, that of ``--max-seq-len``.
        lowering: The form of graphs for ONNX Runtime: ``"cpu"``, ``"ort"`` or ``"std"``.
        experts: The form of routed experts on TensorRT: ``"layer"``, ``"layer-one-scale"`` or ``"dense"``.
        max_batch_size: Maximum batch size of a TensorRT plan.
        optimization_level: Builder optimization level of TensorRT, 0 to 5.
        workspace_gb: GPU workspace limit per TensorRT layer, in 10^9 bytes.
        acceptance_length: Tokens per round for the speed estimate, by number of drafts: ``"4:3.2"``.
        force: Run every step again instead of reusing cached results.
        ignore_limits: Start even if this machine has too little disk space or memory.
        progress: Receiver of progress reports; see ``show_progress``. Silent by default.

    Returns:
        The engine's ``path``, its ``manifest``, and the ``report`` in ``build_report.json``, which includes
        ``warnings``.

    Raises:
        UsageError: The options contradict each other or name something that does not exist.
        EnvironmentProblem: This machine lacks something that the build needs.
        BuildError: The checkpoints do not match, or a step failed. ``out`` is unchanged.
    """
    given = {name: value for name, value in locals().items() if name not in _OF_A_CALL}
    request = _request(BUILD, given, force=force, ignore_limits=ignore_limits)
    if request.source is not None:
        from .pipeline.build_from_export import build_from

        return build_from(request, progress)
    from .pipeline.build import build as run

    return run(request, progress)


def export(
    model: str,
    *,
    draft: str | None = None,
    revision: str | None = None,
    draft_revision: str | None = None,
    taps: Texts | Sequence[int] = (),
    mask_token_id: int | None = None,
    out: StrPath | None = None,
    lowering: str | None = None,
    gpu: Texts = (),
    experts: str | None = None,
    precision: str | None = None,
    kv_cache_dtype: str | None = None,
    lm_head_precision: str | None = None,
    draft_precision: str | None = None,
    exclude: Texts = (),
    allow_wide: Texts = (),
    calib_data: StrPath | None = None,
    calib_method: str | None = None,
    calib_samples: int | None = None,
    calib_length: int | None = None,
    calib_device: str | None = None,
    scales: StrPath | None = None,
    num_speculative_tokens: int | None = None,
    max_seq_len: int | None = None,
    acceptance_length: Texts = (),
    force: bool = False,
    ignore_limits: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write a model and its drafter as ONNX graphs, as ``peagle-compile export`` does.

    Args:
        out: Folder to write; ``MODEL-onnx`` in the current folder by default.
        lowering: Runtime of the graphs (``--for``): ``"ort"``, ``"tensorrt"`` or ``"std"``.
        gpu: The GPU that TensorRT will build for.
        num_speculative_tokens: Maximum drafts per round that the caches have room for; the trained depth by default.

    The other arguments are those of ``build``. The result has the ``path`` and the ``report`` of
    ``export_report.json``. Raises what ``build`` raises.
    """
    given = {name: value for name, value in locals().items() if name not in _OF_A_CALL}
    from .pipeline.export import export as run

    return run(_request(EXPORT, given, force=force, ignore_limits=ignore_limits), progress)


def quantize(
    model: str,
    *,
    revision: str | None = None,
    out: StrPath | None = None,
    precision: str | None = None,
    calib_data: StrPath | None = None,
    calib_method: str | None = None,
    calib_samples: int | None = None,
    calib_length: int | None = None,
    calib_device: str | None = None,
    exclude: Texts = (),
    kv_cache_dtype: str | None = None,
    scales: StrPath | None = None,
    force: bool = False,
    ignore_limits: bool = False,
    progress: Progress | None = None,
) -> QuantizeResult:
    """Quantize a BF16, FP16 or FP32 checkpoint to FP8, as ``peagle-compile quantize`` does.

    Args:
        out: Folder to write; ``MODEL-fp8`` in the current folder by default.
        kv_cache_dtype: ``"fp8"`` also stores scales for cached keys and values.

    The other arguments are those of ``build``. The result has the ``path`` and the ``report`` of
    ``quantize_report.json``. Raises what ``build`` raises.
    """
    given = {name: value for name, value in locals().items() if name not in _OF_A_CALL}
    from .pipeline.quantize import quantize as run

    return run(_request(QUANTIZE, given, force=force, ignore_limits=ignore_limits), progress)


def add_drafter(
    engine: StrPath,
    draft: StrPath,
    *,
    name: str | None = None,
    num_speculative_tokens: int | None = None,
    draft_revision: str | None = None,
    taps: Texts | Sequence[int] = (),
    mask_token_id: int | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> EngineDrafter:
    """Build the graph or plan of a draft head and add it to an engine, as ``peagle-compile drafter add`` does.

    Args:
        engine: The engine folder. The files of its target are not touched.
        draft: The head: a folder, OWNER/NAME of the Hugging Face Hub, or a short name.
        name: Name of the drafter in the engine; the head's own by default.
        num_speculative_tokens: Tokens drafted per round; adaptive by default, starting from the head's trained depth.
        draft_revision: Branch, tag or commit of the head.
        taps: Target layers whose inputs the head reads; overrides the head's configuration.
        mask_token_id: Placeholder token id of the head; overrides its configuration.
        force: Run every step again instead of reusing cached results.
        progress: Receiver of progress reports.

    Returns:
        The drafter: its ``name``, its ``record`` in the manifest, its ``bytes``, and ``warnings``.

    Raises:
        UsageError: The head does not fit the engine, or the name is taken.
        EnvironmentProblem: The engine or the target's checkpoint cannot be used.
        BuildError: The head is invalid, or a step failed. The engine is unchanged.
    """
    from .pipeline.engine_drafters import DrafterRequest
    from .pipeline.engine_drafters import add_drafter as run
    from .request.request import HeadOptions

    layers = tuple(taps.split(",")) if isinstance(taps, str) else tuple(map(str, taps))
    head = HeadOptions(layers, mask_token_id)
    request = DrafterRequest(Path(engine), str(draft), name, draft_revision, head, num_speculative_tokens, force)
    return run(request, progress)


def list_drafters(engine: StrPath) -> list[EngineDrafter]:
    """Return the drafters of an engine by name: that of the build (``"built-in"``), if there is one, and added ones.

    Raises ``EnvironmentProblem`` if the folder is not an engine.
    """
    from .pipeline.engine_drafters import list_drafters as run

    return run(Path(engine))


def remove_drafter(engine: StrPath, name: str) -> EngineDrafter:
    """Remove an added drafter and its files from an engine, and return its description.

    Raises:
        UsageError: The engine has no added drafter of that name.
        EnvironmentProblem: The folder is not an engine, or cannot be written.
    """
    from .pipeline.engine_drafters import remove_drafter as run

    return run(Path(engine), name)


def verify(
    engine: StrPath,
    *,
    prompts: int = 24,
    max_tokens: int = 128,
    num_speculative_tokens: Sequence[int] = (1, 3, 5, 8),
    draft: str | None = None,
    batch_size: int | None = None,
    acceptance_tolerance: float = 0.0,
    data: StrPath | None = None,
    max_perplexity_increase: float | None = None,
    bisect: bool = False,
    reference: str | None = None,
    only: Texts = (),
    certificate: StrPath | None = None,
    tokens: int | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check that speculation does not change an engine's output, and measure the accuracy cost of its precision.

    Equivalent to ``peagle-compile verify``; ``verify.json`` in the engine folder records every completed check.

    Args:
        engine: The engine folder.
        prompts: Number of bundled prompts to use.
        max_tokens: Tokens to generate per prompt.
        num_speculative_tokens: Numbers of drafts per round; each is compared with plain decoding.
        draft: The draft method, for example ``"ngram"``; the engine's by default.
        batch_size: Largest batch to compare with single prompts.
        acceptance_tolerance: If above 0, the effects of lossy acceptance are reported without a verdict.
        data: JSON Lines file to measure precision on.
        max_perplexity_increase: Largest accepted increase, in percent; the limit of the precision by default.
        bisect: Rank layers by quantization cost.
        reference: ``"streamed"`` or ``"pair"``.
        only: Checks to run: losslessness, text, parity, precision; all if empty.
        certificate: File that records what losslessness compared; it is continued if it exists.
        tokens: Number of tokens to compare for the certificate; 100,000 by default.
        threads: CPU threads.
        progress: Receiver of progress reports.

    Raises:
        VerificationError: A check failed.
        EnvironmentProblem: A check could not run here, and ``only`` does not skip it.
        UsageError: An option is invalid.
    """
    from .verify.failures import require_passed
    from .verify.verify_path import VerifyOptions, verify_path

    folder = Path(engine)
    options = VerifyOptions(
        prompts=prompts,
        max_tokens=max_tokens,
        num_speculative_tokens=tuple(num_speculative_tokens),
        draft=draft,
        batch_size=batch_size,
        acceptance_tolerance=acceptance_tolerance,
        data=None if data is None else Path(data),
        max_perplexity_increase=max_perplexity_increase,
        bisect=bisect,
        reference=reference,
        only=(only,) if isinstance(only, str) else tuple(only),
        certificate=None if certificate is None else Path(certificate),
        tokens=tokens,
        threads=threads,
    )
    verification = verify_path(folder, options, progress)
    require_passed(verification, folder)
    return verification


def bench(
    engine: StrPath | Sequence[StrPath] = (),
    *,
    workload: str | None = None,
    prompts: StrPath | None = None,
    num_prompts: int = 20,
    repeats: int = 1,
    max_tokens: int = 128,
    concurrency: Sequence[int] = (1,),
    out: StrPath | None = None,
    html: StrPath | None = None,
    draft: Texts = (),
    num_speculative_tokens: Sequence[NumSpeculativeTokens] = (),
    temperature: float | Sequence[float] = (0.0,),
    seed: int = 0,
    ignore_eos: bool = False,
    price_per_hour: float | None = None,
    url: str | None = None,
    peer: Texts = (),
    endpoint: str | None = None,
    api_key: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> BenchResult:
    """Measure speed, latency and acceptance of every decoding method of one or more engines.

    Equivalent to ``peagle-compile bench``, but writes only the files that are named. After an error or Ctrl-C, they
    have the figures of the finished turns.

    Args:
        engine: The engine folder, or several with the same target.
        workload: The prompts, for example ``"humaneval"``; ``"chat"`` by default.
        prompts: JSON Lines file with prompts, instead of a workload.
        num_prompts: Number of prompts, taken at even intervals from the workload or file.
        repeats: Measurements per prompt.
        max_tokens: Tokens to generate per prompt.
        concurrency: Numbers of concurrent requests to measure.
        out: File for the figures, as ``bench.json``.
        html: File for a report with charts.
        draft: Draft methods to measure in addition to plain decoding; all that the engines support by default.
        num_speculative_tokens: Numbers of drafts per round, and ``"auto"``; the engine's and ``"auto"`` by default.
        temperature: Sampling temperature, or several to measure; 0 is greedy.
        seed: Seed of the first prompt.
        ignore_eos: Continue past the end-of-text token.
        price_per_hour: Price of this machine per hour, to compute the price of a million tokens.
        url: An OpenAI-compatible server to measure instead of engines.
        peer: Other servers, which take turns with the engines, each as ``"NAME=URL"``.
        endpoint: Endpoint of the servers: ``"chat"``, the default with ``url``, or ``"completions"``, the default with
            ``peer``.
        api_key: API key of the servers.
        threads: CPU threads.
        progress: Receiver of progress reports.

    Raises:
        UsageError: An option is invalid, or no prompt fits the engine.
        EnvironmentProblem: An engine cannot be loaded here, or the server or the prompts cannot be reached.
    """
    from .bench.options import BenchOptions
    from .bench.page import require_outputs, write_outputs
    from .bench.run import BenchRun

    folders = [engine] if isinstance(engine, str | os.PathLike) else engine
    options = BenchOptions(
        engines=tuple(map(Path, folders)),
        workload=workload,
        prompts=None if prompts is None else Path(prompts),
        num_prompts=num_prompts,
        repeats=repeats,
        max_tokens=max_tokens,
        concurrency=tuple(concurrency),
        draft=(draft,) if isinstance(draft, str) else tuple(draft),
        num_speculative_tokens=tuple(num_speculative_tokens),
        temperature=tuple(temperature) if isinstance(temperature, Iterable) else (temperature,),
        seed=seed,
        ignore_eos=ignore_eos,
        price_per_hour=price_per_hour,
        url=url,
        peer=(peer,) if isinstance(peer, str) else tuple(peer),
        endpoint=endpoint,
        api_key=api_key,
        threads=threads,
    )
    files = (None if out is None else Path(out), None if html is None else Path(html))
    require_outputs(*files)
    run = BenchRun(options)
    with run.keeping(lambda finished: write_outputs(finished, *files)):
        result = run.start(progress)
    write_outputs(result, *files)
    return result


def tune(
    engine: StrPath,
    *,
    workload: str | None = None,
    prompts: StrPath | None = None,
    num_prompts: int = 4,
    max_batch_size: int = 4,
    draft: str | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Measure the cost and gain of drafts on this machine, and store them like ``peagle-compile tune``.

    Args:
        engine: The engine folder. Its text does not change.
        workload: The prompts, for example ``"humaneval"``; bundled questions by default.
        prompts: JSON Lines file with prompts, instead of a workload.
        num_prompts: Number of prompts, taken at even intervals from the workload or file.
        max_batch_size: Largest number of requests at once to measure.
        draft: Name of the drafter; that of the build by default.
        threads: CPU threads.
        progress: Receiver of progress reports.

    Returns:
        The new ``speculation`` of the manifest, and ``gains``: by number of requests, the tokens per second of every K
        over plain decoding.

    Raises:
        UsageError: An option is invalid, no prompt fits, or the engine cannot draft.
        EnvironmentProblem: The engine cannot be loaded here.
    """
    from .bench.tune import TuneOptions
    from .bench.tune import tune as run

    file = None if prompts is None else Path(prompts)
    options = TuneOptions(Path(engine), workload, file, num_prompts, max_batch_size, draft, threads)
    return run(options, progress)


_OF_A_CALL = ("force", "ignore_limits", "progress")


def _request(options: VerbOptions, arguments: dict[str, Any], *, force: bool, ignore_limits: bool) -> CompileRequest:
    """Return the request for the given arguments. Raises ``UsageError`` for one of the wrong type."""
    answers = {name: _plain(value) for name, value in arguments.items() if value is not None and value != ()}
    return replace(options.request(**answers), force=force, ignore_limits=ignore_limits)


def _plain(value: Any) -> Any:
    """Convert an argument to the form of options files: paths unchanged, lists as lists of texts."""
    if isinstance(value, os.PathLike):
        return Path(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [str(each) if isinstance(each, int) and not isinstance(each, bool) else each for each in value]
    return value
