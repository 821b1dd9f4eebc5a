"""``resolved_config.yaml``: all options of a build as resolved; ``--config`` with this file repeats the build."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ..checkpoints.json_files import read_json
from ..precision.calibration.calibration_options import CalibrationOptions
from .build_plan import BuildPlan
from .request import CompileRequest
from .verb_options import BUILD

FILE_NAME = "resolved_config.yaml"


def resolved_config(plan: BuildPlan, manifest: Manifest) -> str:
    """Return all resolved options and the recorded recipe, as JSON (which is also YAML)."""
    platform, speculation = plan.platform, manifest.speculation
    content = BUILD.answers(_as_calibrated(plan, manifest)) | {
        **plan.names,
        "precision": plan.recipe.name,
        "num_speculative_tokens": None if speculation.adapts else speculation.num_speculative_tokens,
        "max_seq_len": plan.max_seq_len,
        "backend": platform.backend,
        "lowering": None if plan.makes_plans else platform.lowering.name,
        "gpus": platform.gpus,
        "max_batch_size": plan.max_batch_size if plan.makes_plans else None,
    }
    del content["from_export"]
    for name in ("calib_data", "scales"):  # the file may be read from another folder
        content[name] = content[name] and content[name].absolute()
    return json.dumps(content | {"recipe": manifest.precision}, indent=2, default=str) + "\n"


def is_of_export(folder: Path) -> bool:
    """Return True if the engine in ``folder`` was built from an export. Raises ``BuildError`` for a damaged file."""
    return "from_export" in read_json(folder / FILE_NAME, "every engine has this file")


def calibration_of(config: Mapping[str, Any]) -> CalibrationOptions:
    """Return the calibration options of a resolved configuration."""
    names = {entry.option.name for entry in BUILD if entry.group == "calibration"}
    answers = {name: value for name, value in config.items() if name in names}
    return BUILD.request(model=str(Path()), **answers).calibration


def _as_calibrated(plan: BuildPlan, manifest: Manifest) -> CompileRequest:
    """Return the request with the calibration's default samples made explicit."""
    if "calibration" not in manifest.precision:
        return plan.request
    from ..precision.calibration.dataset import default_limits
    from ..precision.calibration.obtain_ranges import with_defaults

    options = with_defaults(plan.request.calibration, default_limits(plan.lowering))
    return replace(plan.request, calibration=options)
