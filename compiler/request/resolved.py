"""``resolved_config.yaml``: every choice of a build, and the request that repeats it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ..checkpoints.pair import Inputs
from ..precision.calibration.ranges import RangesFrom
from ..precision.recipes import Overrides
from .options import BuildOptions
from .settle import DEFAULT_BATCH_SIZE, Settled

FILE_NAME = "resolved_config.yaml"
# What the options of ``build`` are called -> fields of Overrides and RangesFrom.
_OVERRIDES = {
    "kv_cache_dtype": "kv_cache", "lm_head_precision": "lm_head", "draft_precision": "drafter", "exclude": "exclude",
}  # fmt: skip
_RANGES = {
    "calib_data": "data", "calib_method": "method", "calib_samples": "num_samples", "calib_length": "max_length",
    "scales": "scales",
}  # fmt: skip
_PATHS = ("data", "scales")


def resolved_config(options: BuildOptions, settled: Settled, inputs: Inputs, manifest: Manifest) -> str:
    """Every choice, enough to repeat the build, and what the precision came to. JSON, which is YAML too."""
    tensorrt = settled.makes_plans
    content = asdict(options) | {
        "out": str(options.out),
        **inputs.resolved.repeatable(),
        "num_speculative_tokens": manifest.speculation.num_speculative_tokens,
        "max_seq_len": inputs.max_seq_len,
        "backend": settled.backend,
        "lowering": None if tensorrt else settled.lowering.name,
        "gpus": settled.gpus,
        "max_batch_size": (options.max_batch_size or DEFAULT_BATCH_SIZE) if tensorrt else None,
    }
    del content["force"]
    overrides, ranges = content.pop("overrides"), content.pop("ranges")
    content |= {flag: overrides[name] for flag, name in _OVERRIDES.items()}
    content |= {flag: str(v.absolute()) if isinstance(v := ranges[name], Path) else v for flag, name in _RANGES.items()}
    return json.dumps(content | {"recipe": manifest.precision}, indent=2) + "\n"


def repeated(config: Mapping[str, Any], out: Path) -> BuildOptions:
    """The request that such a file records, for another folder."""
    own = {field.name for field in fields(BuildOptions)} - {"out", "overrides", "ranges"}
    overrides = {name: config[flag] for flag, name in _OVERRIDES.items()}
    overrides["exclude"] = tuple(overrides["exclude"])
    chosen: dict[str, Any] = {name: value for name, value in config.items() if name in own}
    chosen["gpus"] = tuple(chosen["gpus"])
    return BuildOptions(**chosen, out=out, overrides=Overrides(**overrides), ranges=ranges_of(config))


def ranges_of(config: Mapping[str, Any]) -> RangesFrom:
    """Where the calibrated ranges of such a build come from."""
    found: dict[str, Any] = {name: config.get(flag) for flag, name in _RANGES.items()}
    return RangesFrom(**found | {name: Path(found[name]) for name in _PATHS if found[name]})
