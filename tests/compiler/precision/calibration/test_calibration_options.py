"""Contradictory calibration options, and options that name missing files."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.precision.calibration.calibration_options import CalibrationOptions
from peagle.plugins.errors import UsageError


def test_folder_without_ranges_differs_from_its_parent(tmp_path: Path) -> None:
    for scales in (tmp_path / "absent", tmp_path):
        with pytest.raises(UsageError) as caught:
            CalibrationOptions(scales=scales).check()
        assert "the folder calibration/ of an engine" in caught.value.fix
    (tmp_path / "calibration").mkdir()
    (tmp_path / "calibration" / "scales.json").write_text("{}")
    with pytest.raises(UsageError, match="has no calibrated ranges") as caught:
        CalibrationOptions(scales=tmp_path).check()
    assert caught.value.fix == f"use --scales {tmp_path / 'calibration'}"
    CalibrationOptions(scales=tmp_path / "calibration").check()


@pytest.mark.parametrize("field", ["scales", "data"])
def test_a_name_that_no_disk_has_room_for_does_not_exist(field: str) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        CalibrationOptions(**{field: Path("a" * 300)}).check()
