"""Bisection: its predictions, and no graphs remain after it ends in any way."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.verify.bisect import CACHES, bisect, with_commands
from peagle.compiler.verify.logits import LogitsComparison
from peagle.compiler.verify.precision_cost import Precision
from peagle.compiler.verify.printing import precision_lines
from peagle.plugins.number_formats import PrecisionLimits
from tests.fixtures.commands import Run


class Adding:
    """A trial whose divergences add up: so much for every layer's MLP, and for the caches."""

    def __init__(self, costs: list[float], caches: float = 0.0) -> None:
        self._costs = {f"model.layers.{i}.mlp.{part}_proj.weight": c / 2 for i, c in enumerate(costs) for part in "ab"}
        self._caches, self.has_caches = caches, caches > 0
        weights = {name: SimpleNamespace(role="mlp", count=10) for name in self._costs}
        self.source: Any = SimpleNamespace(selection=SimpleNamespace(weights=weights), storage=lambda: (weights, {}))

    def measure(self, names: Collection[str], *, quick: bool = False, caches: bool = True) -> LogitsComparison:
        kl = sum(self._costs[name] for name in names) + self._caches * caches
        return LogitsComparison(1, 10, kl, kl, kl, 1.0, 10.0, 10.0 * (1 + kl / 10))


LIMITS = PrecisionLimits(0.01, 0.05, 0.03)


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


def test_bisect_halves_causes_within_limits() -> None:
    plain = bisect(Adding([0.001, 0.02, 0.003]), LIMITS, Quiet())
    assert (plain.goal, plain.exclude, plain.reached) == ("half the divergence", ("layers.1.*",), True)
    beside = bisect(Adding([0.001, 0.004, 0.003], caches=0.03), LIMITS, Quiet())
    assert (beside.goal, beside.exclude) == ("half the divergence that weights cause", ("layers.1.*",))
    assert beside.reached


def test_unreachable_limit_is_reported() -> None:
    found = bisect(Adding([0.3, 0.01], caches=0.2), LIMITS, Quiet())
    assert not found.reached
    assert found.costs[1].group == CACHES


def test_nan_cost_ranks_first() -> None:
    found = bisect(Adding([0.01, np.nan, 0.02]), LIMITS, Quiet())
    assert found.costs[0].group == "layer 1 mlp"
    assert found.exclude[0] == "layers.1.*"


EXCLUDING = replace(RECIPES["fp8"], exclude=("lm_head", "layers.0.*"))
FOUND = replace(bisect(Adding([0.3, 0.01]), LIMITS, Quiet()), exclude=("layers.0.*", "layers.3.mlp.*"))


def test_command_repeats_the_build_with_the_exclusions_of_both(tmp_path: Path) -> None:
    folder = tmp_path / "my engine"
    folder.mkdir()
    (folder / "resolved_config.yaml").write_text('{"model": "demo"}')
    found = with_commands(FOUND, folder, EXCLUDING)
    assert (found.export_with, found.command) == (
        "",
        f"peagle-compile build --config '{folder}/resolved_config.yaml' --exclude lm_head --exclude 'layers.0.*' "
        "--exclude 'layers.3.mlp.*' --out NEW_ENGINE",
    )


def test_an_engine_of_an_export_is_exported_again_with_the_exclusions(tmp_path: Path, cli: Run) -> None:
    """A build from an export takes no exclusions."""
    (tmp_path / "resolved_config.yaml").write_text('{"from_export": "export", "out": "engine", "gpus": ["sm_120"]}')
    found = with_commands(FOUND, tmp_path, EXCLUDING)
    assert found.export_with == ("--exclude lm_head --exclude 'layers.0.*' --exclude 'layers.3.mlp.*' --out NEW_EXPORT")
    printed = precision_lines(Precision("fp8", bisection=found))
    assert ("export again with", f"{found.export_with}, and the other options as before") in printed
    assert ("rebuild with", found.command) in printed
    done = cli(*shlex.split(found.command)[1:])
    assert "--from NEW_EXPORT is not an export" in done.err
