"""From a wide checkpoint to one in FP8: plan, calibrate (or take saved ranges), write, publish."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....plugins.errors import UsageError
from ...checkpoints.checkpoint import CONFIG, Checkpoint
from ...checkpoints.known_pairs import PAIRS
from ...checkpoints.registry import resolve_target
from ...checkpoints.target import Target
from ...console.progress import Progress, Quiet
from ...hardware.packages import export_versions, product_version
from ...precision.calibration.ranges import FLAGS, FOLDER, RangesFrom, describe
from ...store.durable import require_space
from ...store.phases import Phases, peak_rss
from ...store.publish import QUANTIZED, Assembly, assembling, require_apart, require_publishable
from ...store.stages import StageStore
from .modelopt import QUANT_CONFIG, hf_quant_config, quantization_config
from .worklist import Worklist, make_worklist
from .write import layout, total_bytes, write

if TYPE_CHECKING:
    from ...precision.calibration import Scales

_FLAGS = {**FLAGS, "method": "--method", "num_samples": "--num-samples", "max_length": "--max-length"}
_BESIDE_IT = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*", "*.jinja",
    "generation_config.json", "*processor_config.json", "LICENSE*", "NOTICE*",
)  # fmt: skip


@dataclass(frozen=True)
class QuantizeOptions:
    """What to quantise, and how its activations are measured.

    ``scales`` is a folder of ranges that were saved before, in place of a calibration. None leaves ``calib_data`` to
    the bundled samples, ``method`` to max, ``num_samples`` to 128 and ``max_length`` to 512 tokens. ``kv_cache_dtype``
    is fp8 or None, which stores no scales for cached keys and values.
    """

    model: str
    out: Path
    revision: str | None = None
    calib_data: Path | None = None
    method: str | None = None
    num_samples: int | None = None
    max_length: int | None = None
    exclude: tuple[str, ...] = ()
    kv_cache_dtype: str | None = None
    scales: Path | None = None
    force: bool = False

    @property
    def ranges(self) -> RangesFrom:
        """The origin of the ranges of activations."""
        return RangesFrom(self.calib_data, self.method, self.num_samples, self.max_length, self.scales)

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        if self.kv_cache_dtype not in (None, "fp8"):
            raise UsageError(
                f"--kv-cache-dtype {self.kv_cache_dtype} cannot be stored",
                why="scales of cached keys and values are for fp8",
                fix="--kv-cache-dtype fp8, or leave it out",
            )
        self.ranges.check(_FLAGS)
        require_apart(self.out, self.model, self.scales)
        require_publishable(self.out)


@dataclass(frozen=True)
class QuantizeResult:
    """The folder written, and what its report says."""

    path: Path
    report: dict[str, Any]


def quantize(
    options: QuantizeOptions, progress: Progress | None = None, store: StageStore | None = None
) -> QuantizeResult:
    """Write ``options.out``: the checkpoint with E4M3 matrices, as ModelOpt writes it, and the ranges it came from.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``; whatever goes wrong, ``options.out`` is what it was
    before or the finished checkpoint. Finished layers of a calibration are kept, and the same call goes on from there.
    """
    progress = progress or Quiet()
    options.check()
    store = store or StageStore.default(force=options.force)
    phase = Phases()
    with phase("resolve"):
        export_versions()
        folder, commit = resolve_target(options.model, options.revision, progress)
    with phase("plan"), progress.step("read the checkpoint"):
        target = Target.open(folder)
        checkpoint = target.checkpoint
        work = make_worklist(target, options.exclude, kv_cache=options.kv_cache_dtype is not None)
        size = total_bytes(layout(checkpoint, work))
        require_space(options.out.absolute().parent, size)
    with phase("calibrate"):
        scales = options.ranges.obtain(target, store, progress, model=options.model)
    with assembling(options.out, {"weights": size}) as assembly:
        with phase("write"):
            write(assembly.folder, checkpoint, work, scales, progress)
        scales.save(assembly.folder / FOLDER)
        _describe(assembly, checkpoint, work, options)
        report = _report(options, checkpoint, work, scales, phase, size) | {
            "model": options.model if commit or options.model in PAIRS else str(folder),
            "revision": commit,
        }
        assembly.place_text(QUANTIZED, json.dumps(report, indent=2) + "\n")
    return QuantizeResult(options.out, report)


def _describe(assembly: Assembly, checkpoint: Checkpoint, work: Worklist, options: QuantizeOptions) -> None:
    """Configurations, and the files that a checkpoint has beside its weights."""
    described = hf_quant_config(
        work.exclude_modules, kv_cache=options.kv_cache_dtype is not None, version=product_version()
    )
    config = {**checkpoint.config, "quantization_config": quantization_config(described)}
    assembly.place_text(QUANT_CONFIG, json.dumps(described, indent=2) + "\n")
    assembly.place_text(CONFIG, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    for path in sorted(checkpoint.folder.iterdir()):
        if path.is_file() and any(fnmatch(path.name, form) for form in _BESIDE_IT):
            assembly.place_copy(path, path.name)


def _report(
    options: QuantizeOptions, checkpoint: Checkpoint, work: Worklist, scales: Scales, phase: Phases, size: int
) -> dict[str, Any]:
    """What was done, with what, and how long it took."""
    return {
        "product_version": product_version(),
        "format": "modelopt-fp8",
        "source_fingerprint": checkpoint.fingerprint,
        "source_bytes": checkpoint.stored_bytes,
        "bytes": size,
        "fp8_matrices": len(work.matrices),
        "fp8_bytes": sum(math.prod(checkpoint.shapes[key]) for key in work.matrices),
        "exclude": list(options.exclude),
        "exclude_modules": list(work.exclude_modules),
        "kv_cache_dtype": options.kv_cache_dtype,
        "calibration": describe(scales),
        "phases": phase.done,
        "seconds": round(sum(record["seconds"] for record in phase.done), 1),
        "peak_rss_bytes": peak_rss(),
        "warnings": list(scales.facts.warnings),
    }
