"""Checkpoints of training runs continue only the run that wrote them."""

from __future__ import annotations

from pathlib import Path

import pytest
from training import Checkpoint, resume

RUN = {"--seed": "1", "the target": "ab12"}


@pytest.mark.parametrize(
    ("run", "change"),
    [
        (RUN | {"--seed": "2"}, "--seed was 1, and is now 2"),
        (RUN | {"the target": "cd34"}, "the target was ab12, and is now cd34"),
        (RUN | {"--rows": "8"}, "--rows was not recorded, and is now 8"),
    ],
)
def test_checkpoint_of_a_run_with_other_settings_is_refused_and_kept(
    tmp_path: Path, run: dict[str, str], change: str
) -> None:
    state = tmp_path / "state.pt"
    Checkpoint(10, 10, 1.5, {}, [], RUN).save(state)
    before = state.read_bytes()
    with pytest.raises(SystemExit, match=change):
        resume(state, 10, 0.5, run)
    assert state.read_bytes() == before


def test_run_with_the_same_settings_continues(tmp_path: Path) -> None:
    assert resume(tmp_path / "state.pt", 10, 0.5, RUN) is None
    Checkpoint(10, 10, 1.5, {}, [], RUN).save(tmp_path / "state.pt")
    found = resume(tmp_path / "state.pt", 10, 0.5, dict(reversed(RUN.items())))
    assert found is not None
    assert (found.step, found.run) == (10, RUN)
