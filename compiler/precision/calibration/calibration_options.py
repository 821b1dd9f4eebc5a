"""What a user can ask of a calibration: samples, how ranges are chosen, where layers are computed; or saved ranges."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields
from pathlib import Path

from ....plugins.errors import UsageError
from ...console.option_fields import option, option_of

FOLDER = "calibration"  # of an engine, an export or an FP8 checkpoint, for ``--scales``
FACTS = "scales.json"  # the file of such a folder that says what it holds
METHODS = ("max", "percentile", "mse")
CPU = "cpu"
DEVICES = (CPU, "cuda", "cuda:N")
_SCALES = f"name the folder {FOLDER}/ of an engine, an export or an FP8 checkpoint made here"
_DEVICE = re.compile(r"cpu|cuda(:\d{1,3})?")


@dataclass(frozen=True)
class CalibrationAsked:
    """Where calibrated ranges come from; ``scales`` is a folder of saved ones, in place of a calibration.

    None stands for the bundled samples, the method max, the CPU, and as many samples and tokens as the lowering needs
    (``calibration.default_limits``).
    """

    data: Path | None = option(
        "--calib-data",
        "JSON Lines to calibrate with: text, messages or input_ids in each line. (default: the bundled samples of "
        "code, chat and prose)",
    )
    method: str | None = option(
        "--calib-method", "How ranges of activations are chosen: max, percentile (99.99) or mse. (default: max)"
    )
    num_samples: int | None = option(
        "--calib-samples", "How many samples at most. (default: 128; 16 for onnxruntime)", least=1
    )
    max_length: int | None = option(
        "--calib-length", "Longest sample, in tokens. (default: 512; 128 for onnxruntime)", least=1
    )
    device: str | None = option(
        "--calib-device", "Where layers are computed while they are calibrated: cpu, cuda or cuda:N. (default: cpu)"
    )
    scales: Path | None = option(
        "--scales",
        "Ranges of an earlier calibration (the folder calibration/ of what it made), instead of a new one.",
    )

    def given(self) -> list[str]:
        """The flags of a calibration that were given."""
        called = {each.name: option_of(each).flag for each in fields(self) if each.name != "scales"}
        return [flag for name, flag in called.items() if getattr(self, name) is not None]

    def check(self) -> None:
        """Refuse what can be refused before anything is read."""
        if self.method not in (None, *METHODS):
            raise UsageError(f"the method {self.method!r} does not exist", fix=f"it is one of {', '.join(METHODS)}")
        if self.device is not None and not _DEVICE.fullmatch(self.device):
            raise UsageError(
                f"--calib-device {self.device!r} is no device", fix=f"it is one of {', '.join(DEVICES)}, N from 0"
            )
        others = self.given()
        if self.scales is not None and others:
            raise UsageError(
                f"--scales does not go with {', '.join(others)}",
                why="saved ranges are used as they are, and nothing is calibrated",
                fix="leave one or the other out",
            )
        for flag, path in (("--calib-data", self.data), ("--scales", self.scales)):
            if path is not None and not os.path.exists(path):  # Path.exists raises for a name that is too long
                fix = _SCALES if path is self.scales else "name a JSON Lines file that is there"
                raise UsageError(f"{flag} {path} does not exist", fix=fix)
        if self.scales is not None and not os.path.isfile(self.scales / FACTS):
            below = self.scales / FOLDER
            raise UsageError(
                f"--scales {self.scales} holds no calibrated ranges",
                why=f"there is no {FACTS} in it",
                fix=f"use --scales {below}" if os.path.isfile(below / FACTS) else _SCALES,
            )
