"""``resolved_config.yaml``: every choice of a build; passed back as ``--config`` it repeats the build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ..checkpoints.target_and_drafter import Inputs
from ..precision.precision_options import CalibrationAsked
from .build_platform import BuildPlatform
from .request import DEFAULT_BATCH_SIZE, CompileRequest
from .verb_options import BUILD

FILE_NAME = "resolved_config.yaml"


def resolved_config(request: CompileRequest, platform: BuildPlatform, inputs: Inputs, manifest: Manifest) -> str:
    """Every choice, enough to repeat the build, and what the precision came to. JSON, which is YAML too."""
    tensorrt, speculation = platform.makes_plans, manifest.speculation
    content = BUILD.answers(request) | {
        **inputs.resolved.repeatable(),
        "num_speculative_tokens": None if speculation.adapts else speculation.num_speculative_tokens,
        "max_seq_len": inputs.max_seq_len,
        "backend": platform.backend,
        "lowering": None if tensorrt else platform.lowering.name,
        "gpus": platform.gpus,
        "max_batch_size": (request.plans.max_batch_size or DEFAULT_BATCH_SIZE) if tensorrt else None,
    }
    del content["from_export"]
    for name in ("calib_data", "scales"):  # the file may be read from another folder
        content[name] = content[name] and content[name].absolute()
    return json.dumps(content | {"recipe": manifest.precision}, indent=2, default=str) + "\n"


def calibration_of(config: Mapping[str, Any]) -> CalibrationAsked:
    """Where the calibrated ranges of such a build come from."""
    names = {entry.option.name for entry in BUILD if entry.group == "calibration"}
    answers = {name: value for name, value in config.items() if name in names}
    return BUILD.request(model=str(Path()), **answers).calibration
