"""Switches: off is off, and any word other than on or off is refused."""

from __future__ import annotations

import pytest

from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.switches import is_off


@pytest.mark.parametrize(("value", "expected"), [(None, False), ("", False), ("on", False), ("off", True)])
def test_a_switch_is_off_or_it_is_not(monkeypatch: pytest.MonkeyPatch, value: str | None, expected: bool) -> None:
    monkeypatch.delenv("PEAGLE_SWITCH", raising=False)
    if value is not None:
        monkeypatch.setenv("PEAGLE_SWITCH", value)
    assert is_off("PEAGLE_SWITCH", "it is off or on") is expected


@pytest.mark.parametrize("value", ["OFF", "0", "false", "of", " off"])
def test_unknown_value_is_rejected_with_the_fix(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PEAGLE_SWITCH", value)
    with pytest.raises(EnvironmentProblem) as caught:
        is_off("PEAGLE_SWITCH", "it is off or on")
    assert repr(value) in caught.value.what
    assert "unset PEAGLE_SWITCH" in caught.value.fix
