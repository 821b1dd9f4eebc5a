"""``peagle.build``, ``export``, ``quantize`` and ``verify``: the verbs of the command line as Python functions.

Each takes the options of its verb by the names of the flags (``--max-seq-len`` is ``max_seq_len``), returns what it
made, raises the errors that the command line reports, and prints nothing. ``tests/compiler/test_api.py`` holds the
signatures equal to the command line.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console.progress import Progress
from .request.verb_options import BUILD, EXPORT, QUANTIZE, Form

if TYPE_CHECKING:
    from .pipeline.assemble_engine import BuildResult
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
    max_seq_len: int = 2048,
    lowering: str | None = None,
    experts: str | None = None,
    max_batch_size: int | None = None,
    optimization_level: int | None = None,
    workspace_gb: float | None = None,
    force: bool = False,
    ignore_limits: bool = False,
    progress: Progress | None = None,
) -> BuildResult:
    """Build an engine from a model and its drafter, as ``peagle-compile build`` does.

    Args:
        model: The target: a short name, a checkpoint folder, a GGUF file, or OWNER/NAME of the Hugging Face Hub.
        draft: The head, or a draft method that needs none (``"ngram"``, ``"none"``); known targets bring theirs.
        revision: Branch, tag or commit of the target.
        draft_revision: The same of the head.
        taps: Layers of the target that the head taps, in place of what its configuration says.
        mask_token_id: The head's placeholder token, likewise.
        from_export: An export for TensorRT to build from, in place of ``model`` (``--from``).
        out: Folder to make; ``MODEL-engine`` in the current folder if absent.
        backend: ``"onnxruntime"``, ``"tensorrt-rtx"`` or ``"tensorrt"``; chosen by this machine if absent.
        gpu: GPUs or architectures that TensorRT plans are for.
        precision: The recipe, for example ``"fp8"``.
        kv_cache_dtype: What keys and values are cached in.
        lm_head_precision: What the head's matrix is stored in.
        draft_precision: What the drafter's matrices are stored in.
        exclude: Modules of the target to leave wide.
        allow_wide: Weights that may be stored in the recipe's type and multiplied wide.
        calib_data: JSON Lines to calibrate with.
        calib_method: How ranges of activations are chosen.
        calib_samples: How many samples are used at most.
        calib_length: Longest sample, in tokens.
        calib_device: Where layers are computed during calibration.
        scales: Ranges of an earlier calibration, instead of a new one.
        num_speculative_tokens: Tokens drafted per round; measured if absent, and 0 drafts none.
        max_seq_len: Longest prompt and output together, in tokens.
        lowering: The form of graphs for ONNX Runtime: ``"cpu"``, ``"ort"`` or ``"std"``.
        experts: The form of routed experts on SM 10.x: ``"layer"`` or ``"dense"``.
        max_batch_size: Rows that a TensorRT plan decodes together.
        optimization_level: TensorRT's, 0 to 5.
        workspace_gb: GPU memory that a layer of TensorRT may work in, in 10^9 bytes.
        force: Make every step again, also those that are kept.
        ignore_limits: Begin though this machine has too little disk or memory.
        progress: What is told of each step; see ``show_progress``. Nothing is told if absent.

    Returns:
        The engine's ``path``, its ``manifest``, and the ``report`` that ``build_report.json`` holds, ``warnings``
        among it.

    Raises:
        UsageError: The options contradict each other, or name what does not exist.
        EnvironmentProblem: This machine lacks what the build takes.
        BuildError: The checkpoints do not fit each other, or a step failed. ``out`` is what it was before.
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
    max_seq_len: int = 2048,
    force: bool = False,
    ignore_limits: bool = False,
    progress: Progress | None = None,
) -> ExportResult:
    """Write a model and its drafter as ONNX graphs, as ``peagle-compile export`` does.

    Args:
        out: Folder to make; ``MODEL-onnx`` in the current folder if absent.
        lowering: What will run the graphs (``--for``): ``"ort"``, ``"tensorrt"`` or ``"std"``.
        gpu: The GPU that TensorRT will build for.
        num_speculative_tokens: Drafts that the caches have room for; the trained depth if absent.

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
    """Make an FP8 checkpoint of a wide one, as ``peagle-compile quantize`` does.

    Args:
        out: Folder to make; ``MODEL-fp8`` in the current folder if absent.
        kv_cache_dtype: ``"fp8"`` stores scales of cached keys and values as well.

    The other arguments are those of ``build``. The result has the ``path`` and the ``report`` of
    ``quantize_report.json``. Raises what ``build`` raises.
    """
    given = {name: value for name, value in locals().items() if name not in _OF_A_CALL}
    from .pipeline.quantize import quantize as run

    return run(_request(QUANTIZE, given, force=force, ignore_limits=ignore_limits), progress)


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
    threads: int | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Prove that speculation changes no token of an engine, and measure what its precision costs.

    The same as ``peagle-compile verify``; ``verify.json`` in the engine has every part that was done.

    Args:
        engine: The engine folder.
        prompts: How many of the bundled prompts are used.
        max_tokens: Tokens generated after each.
        num_speculative_tokens: Each K is compared with plain decoding.
        draft: The draft method, for example ``"ngram"``; the engine's own if absent.
        batch_size: The most prompts at once.
        acceptance_tolerance: Above 0, what lossy drafts change is counted instead of judged.
        data: JSON Lines to measure the precision on.
        max_perplexity_increase: In percent; the limit of the precision if absent.
        bisect: Find the layers that cost most.
        reference: ``"streamed"`` or ``"pair"``.
        only: Parts to check: losslessness, text, parity, precision; all if empty.
        threads: CPU threads.
        progress: What is told of each step.

    Raises:
        VerificationError: A part failed.
        EnvironmentProblem: A part could not be checked here, and ``only`` does not leave it out.
        UsageError: An option is wrong.
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
        threads=threads,
    )
    verification = verify_path(folder, options, progress)
    require_passed(verification, folder)
    return verification


_OF_A_CALL = ("force", "ignore_limits", "progress")


def _request(form: Form, given: dict[str, Any], *, force: bool, ignore_limits: bool) -> CompileRequest:
    """Return the request of the arguments that were given. Raises ``UsageError`` for one of another type."""
    answers = {name: _plain(value) for name, value in given.items() if value is not None and value != ()}
    return replace(form.request(**answers), force=force, ignore_limits=ignore_limits)


def _plain(value: Any) -> Any:
    """Return an argument as files of options have it: paths as they are, several values as texts."""
    if isinstance(value, os.PathLike):
        return Path(value)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [str(each) if isinstance(each, int) and not isinstance(each, bool) else each for each in value]
    return value
