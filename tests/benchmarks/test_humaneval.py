"""The benchmark over HumanEval: an interrupted run goes on, and its table says what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

import humaneval  # noqa: E402


def counted(asked: list[str], seconds: float, digest: str = "same") -> Callable[[Sequence[str]], humaneval.Turn]:
    def answer(texts: Sequence[str]) -> humaneval.Turn:
        asked.extend(texts)
        return humaneval.Turn(tokens=11, seconds=seconds, rounds=4, accepted=6, digest=digest)

    return answer


def ways(asked: list[str], digest: str = "same") -> dict[str, Callable[[Sequence[str]], humaneval.Turn]]:
    speeds = {"plain": 2.0, "EAGLE-3": 1.0, "P-EAGLE": 0.5}
    return {name: counted(asked, each, digest if name == "P-EAGLE" else "same") for name, each in speeds.items()}


def test_interrupted_run_continues_and_other_settings_start_over(tmp_path: Path) -> None:
    path, asked = tmp_path / "turns.jsonl", list[str]()
    humaneval.measure(ways(asked), ["a", "b"], path, [4])
    with path.open("a") as file:
        file.write('{"plain": {"tok')  # killed while it wrote
    again: list[str] = []
    turns = humaneval.measure(ways(again), ["a", "b", "c"], path, [4])
    assert (len(turns), again.count("c"), again.count("b")) == (3, 3, 0)
    anew: list[str] = []
    assert len(humaneval.measure(ways(anew), ["a", "b"], path, [5])) == 2
    assert anew.count("b") == 3


@pytest.mark.parametrize(("digest", "same"), [("same", "yes"), ("other", "NO")])
def test_table_lists_gains_and_equality_with_plain_decoding(tmp_path: Path, digest: str, same: str) -> None:
    turns = humaneval.measure(ways([], digest), ["a", "b"], tmp_path / "turns.jsonl", [])
    titles = {name: name for name in ("plain", "EAGLE-3", "P-EAGLE")}
    plain, eagle3, peagle = (line.split() for line in humaneval.table(turns, titles).splitlines()[1:])
    assert (plain[1], eagle3[1], peagle[1]) == ("5", "10", "20")
    assert (eagle3[5:], peagle[5:]) == (["2.50", "2.00", "1.00", "yes"], ["2.50", "4.00", "2.00", same])
