"""Bisecting: what is predicted, and that nothing of the graphs it makes stays, whatever ends it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.verify.bisect import CACHES, bisect
from peagle.compiler.verify.logits import LogitsComparison
from peagle.compiler.verify.scratch import scratch
from peagle.compiler.verify.thresholds import Limits


class Adding:
    """A trial whose divergences add up: so much for every layer's MLP, and for the caches."""

    def __init__(self, costs: list[float], caches: float = 0.0) -> None:
        self._costs = {f"model.layers.{i}.mlp.{part}_proj.weight": c / 2 for i, c in enumerate(costs) for part in "ab"}
        self._caches, self.has_caches = caches, caches > 0
        wanted = {name: SimpleNamespace(role="mlp", count=10) for name in self._costs}
        self.provider: Any = SimpleNamespace(wanted=wanted, weights=lambda: (wanted, {}))

    def measure(self, names: Collection[str], *, quick: bool = False, caches: bool = True) -> LogitsComparison:
        kl = sum(self._costs[name] for name in names) + self._caches * caches
        return LogitsComparison(1, 10, kl, kl, kl, 1.0, 10.0, 10.0 * (1 + kl / 10))


LIMITS = Limits(0.01, 0.05, 0.03)


def test_it_excludes_the_fewest_that_bring_it_within_the_limits() -> None:
    found = bisect(Adding([0.001, 0.3, 0.01, 0.2]), LIMITS, Quiet())
    assert [cost.group for cost in found.costs] == ["layer 1 mlp", "layer 3 mlp", "layer 2 mlp", "layer 0 mlp"]
    assert found.exclude == ("layers.1.*", "layers.3.*")
    assert (found.reached, found.goal, found.left_wide) == (True, "within the limits", 0.5)
    assert found.predicted == pytest.approx(found.after.kl_mean) == pytest.approx(0.011)


def test_caches_have_a_cost_of_their_own_that_no_exclusion_takes_away() -> None:
    found = bisect(Adding([0.001, 0.3, 0.01], caches=0.03), LIMITS, Quiet())
    assert [(cost.group, cost.exclude) for cost in found.costs[:2]] == [
        ("layer 1 mlp", ("layers.1.mlp.*",)),
        (CACHES, ()),
    ]
    assert found.costs[0].kl_mean == pytest.approx(0.3)
    assert found.exclude == ("layers.1.*",)
    assert found.predicted == pytest.approx(found.after.kl_mean) == pytest.approx(0.041)


def test_within_the_limits_it_halves_what_weights_cause() -> None:
    plain = bisect(Adding([0.001, 0.02, 0.003]), LIMITS, Quiet())
    assert (plain.goal, plain.exclude, plain.reached) == ("half the divergence", ("layers.1.*",), True)
    beside = bisect(Adding([0.001, 0.004, 0.003], caches=0.03), LIMITS, Quiet())
    assert (beside.goal, beside.exclude) == ("half the divergence that weights cause", ("layers.1.*",))
    assert beside.reached


def test_what_cannot_be_reached_is_said() -> None:
    found = bisect(Adding([0.3, 0.01], caches=0.2), LIMITS, Quiet())
    assert not found.reached
    assert found.costs[1].group == CACHES


def test_one_cost_that_is_no_number_comes_first() -> None:
    found = bisect(Adding([0.01, np.nan, 0.02]), LIMITS, Quiet())
    assert found.costs[0].group == "layer 1 mlp"
    assert found.exclude[0] == "layers.1.*"


def test_nothing_stays_after_an_interruption(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "model.onnx.data").write_bytes(b"0" * 100)

    def interrupted() -> None:
        with scratch(tmp_path) as store:
            store.run("attach", 1, make)
            assert list(tmp_path.rglob("model.onnx.data"))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [path.name for path in tmp_path.iterdir()] == ["bisect.lock"]


def test_what_a_killed_process_left_goes_and_what_a_living_one_has_stays(tmp_path: Path) -> None:
    code = "import sys, pathlib\nfrom peagle.compiler.verify.scratch import scratch\n"
    code += "with scratch(pathlib.Path(sys.argv[1])) as store:\n print(store.root, flush=True)\n sys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = Path(other.stdout.readline().strip())
        with pytest.raises(BlockingIOError):
            _lock_at_once(tmp_path / "bisect.lock")
        other.kill()
    assert theirs.is_dir()
    with scratch(tmp_path):
        assert not theirs.exists()


def _lock_at_once(path: Path) -> None:
    import fcntl

    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
