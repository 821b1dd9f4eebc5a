"""User options for calibration: samples, range method, device; or saved ranges."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

from ....plugins.errors import UsageError
from ....plugins.problems import lack_of
from ...console.option_fields import option, option_of

FOLDER = "calibration"  # in an engine, an export or an FP8 checkpoint, for ``--scales``
FACTS = "scales.json"  # the file that describes such a folder
METHODS = ("max", "percentile", "mse")
CPU = "cpu"
DEVICES = (CPU, "cuda", "cuda:N")
_SCALES = f"pass the folder {FOLDER}/ of an engine, an export or an FP8 checkpoint made by this project"
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True)
class CalibrationOptions:
    """The origin of calibrated ranges; ``scales`` is a folder of saved ones, instead of a calibration.

    None selects the bundled samples, the method max, the CPU, and the lowering's default number of samples and tokens
    (``calibration.default_limits``).
    """

    data: Path | None = option(
        "--calib-data",
        "JSON Lines file of calibration samples: text, messages or input_ids on each line. (default: the bundled "
        "samples of code, chat and prose)",
    )
    method: str | None = option(
        "--calib-method", "Method for computing activation ranges: max, percentile (99.99) or mse. (default: max)"
    )
    num_samples: int | None = option(
        "--calib-samples", "Maximum number of samples. (default: 128; 16 for onnxruntime)", minimum=1
    )
    max_length: int | None = option(
        "--calib-length", "Maximum sample length in tokens. (default: 512; 128 for onnxruntime)", minimum=1
    )
    device: str | None = option(
        "--calib-device", "Device that computes the layers during calibration: cpu, cuda or cuda:N. (default: cpu)"
    )
    scales: Path | None = option(
        "--scales",
        "Use the ranges of an earlier run (its calibration/ folder) instead of calibrating.",
    )

    def given_flags(self) -> list[str]:
        """Return the calibration flags that were given."""
        called = {each.name: option_of(each).flag for each in fields(self) if each.name != "scales"}
        return [flag for name, flag in called.items() if getattr(self, name) is not None]

    def check(self) -> None:
        """Raise early for options that are invalid by themselves."""
        if self.method not in (None, *METHODS):
            raise UsageError(f"unknown --calib-method {self.method!r}", fix=f"use one of {', '.join(METHODS)}")
        if self.device is not None and not _DEVICE.fullmatch(self.device):
            raise UsageError(
                f"--calib-device {self.device!r} is not a device",
                fix=f"use one of {', '.join(DEVICES)}, where N counts from 0",
            )
        others = self.given_flags()
        if self.scales is not None and others:
            raise UsageError(
                f"--scales cannot be combined with {', '.join(others)}",
                why="with saved ranges, nothing is calibrated",
                fix="omit either --scales or the other options",
            )
        for flag, path in (("--calib-data", self.data), ("--scales", self.scales)):
            if path is not None and not os.path.exists(path):  # Path.exists raises for a name that is too long
                fix = _SCALES if path is self.scales else "pass an existing JSON Lines file"
                raise UsageError(f"{flag} {path} does not exist", fix=fix)
        if self.scales is not None and not os.path.isfile(self.scales / FACTS):
            below = self.scales / FOLDER
            raise UsageError(
                f"--scales {self.scales} has no calibrated ranges",
                why=lack_of(self.scales, FACTS),
                fix=f"use --scales {below}" if os.path.isfile(below / FACTS) else _SCALES,
            )
