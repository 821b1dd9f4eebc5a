"""The soak test: two minutes of it pass, and it fails where a fault is planted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from peagle.engines.serving.server import Server
from tests.soak import soak
from tests.traffic import Answer, Asked, answers_alone

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def right(calling_server: Server) -> dict[Asked, Answer]:
    """The answers of the demo engine."""
    return answers_alone((calling_server.host, calling_server.port))


def test_a_wrong_answer_fails_the_soak(demo_engine: Path, right: dict[Asked, Answer]) -> None:
    """The same requests with one letter changed in one right answer, as if the server had changed it."""
    planted = ("greedy", 0, 0)
    text, calls, logprobs, reason = right[planted]
    changed = {**right, planted: (text[:-1] + ("-" if text.endswith("#") else "#"), calls, logprobs, reason)}
    others = {asked: changed[asked] for asked in [planted, *right][:4]}
    done = soak(demo_engine, 1.5, alone=others, adds_drafters=False)
    assert done.wrong
    assert all(f"{planted}" in each for each in done.wrong), "nothing else is wrong"
    assert done.counts.total() > 0


@pytest.mark.slow
def test_two_minutes_of_clients_and_faults_pass(drafters_folder: Path, tmp_path: Path) -> None:
    done = soak(Path(shutil.copytree(drafters_folder, tmp_path / "engine")), 120)
    assert done.wrong == []
