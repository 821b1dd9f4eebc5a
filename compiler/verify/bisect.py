"""Rank the layers of a quantized target by accuracy cost, and find which to leave unquantized.

Each group of matrices is quantized alone, and its divergence from FP32 is measured. The divergences of the groups add
up to nearly the divergence of the whole target, which predicts the effect of an exclusion. The suggested exclusion is
also measured.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...graphs.lowering import ORT
from ...plugins.number_formats import PrecisionLimits
from ..console.progress import Progress
from ..precision.recipes import Recipe
from ..request.resolved_config import FILE_NAME as RESOLVED
from ..request.resolved_config import is_of_export
from .engine_origin import reference_recipe
from .held_out_texts import Texts
from .logits import Array, LogitsComparison, compare_logits
from .unpublished_pairs import UnpublishedPairs, scratch
from .weight_groups import Group, groups_of, patterns_of

if TYPE_CHECKING:
    from ...graphs.lowering import Lowering
    from ..precision.weight_source import WeightSource

CACHES = "KV cache"
_TEXTS, _TOKENS = 6, 192
_EXPORT = "NEW_EXPORT"


@dataclass(frozen=True)
class Cost:
    """Mean divergence in nats if one group alone is quantized.

    ``exclude`` is empty for the KV caches, which patterns cannot name.
    """

    group: str
    exclude: tuple[str, ...]
    weights: int
    kl_mean: float


@dataclass(frozen=True)
class Bisection:
    """Cost of every group, and the suggested exclusion.

    ``costs``: largest first, measured on a part of the texts. ``before`` and ``after``: measured on all texts, with all
    groups quantized and with those of ``exclude`` unquantized. ``predicted``: the divergence of ``after`` as predicted
    by the costs. ``reached``: ``after`` meets ``goal``. ``left_wide``: share of the quantized weights that the
    exclusion leaves unquantized. ``command``: builds the engine with the exclusion. ``export_with``: if the engine was
    built from an export, the options that the export is first repeated with; else empty.
    """

    costs: tuple[Cost, ...]
    goal: str
    exclude: tuple[str, ...]
    left_wide: float
    predicted: float
    before: LogitsComparison
    after: LogitsComparison
    reached: bool
    command: str = ""
    export_with: str = ""


@dataclass(frozen=True)
class _Goal:
    """Goal of an exclusion: limits on the logits."""

    text: str
    kl_mean: float
    perplexity_increase: float

    @classmethod
    def of(cls, before: LogitsComparison, limits: PrecisionLimits, fixed: float) -> _Goal:
        """Return the limits if ``before`` exceeds them; else half of its divergence, not counting ``fixed``."""
        goal = cls("within the limits", limits.kl_mean, limits.perplexity_increase)
        if goal.reached(before):
            text = "half the divergence" + " that weights cause" * bool(fixed)
            return cls(text, before.kl_mean - max(before.kl_mean - fixed, 0.0) / 2, math.inf)
        return goal

    def reached(self, compared: LogitsComparison) -> bool:
        """Return True if a measurement meets the goal."""
        return compared.kl_mean <= self.kl_mean and compared.perplexity_increase <= self.perplexity_increase

    def divergence(self, before: LogitsComparison) -> float:
        """Return the mean divergence that meets the goal if perplexity falls in proportion."""
        increase = before.perplexity_increase
        share = self.perplexity_increase / increase if increase > self.perplexity_increase else 1.0
        return min(self.kl_mean, before.kl_mean * share)


class BisectTrial:
    """Compares the target with FP32, with any subset of its weights quantized."""

    def __init__(self, unpublished: UnpublishedPairs, recipe: Recipe, lowering: Lowering, texts: Texts) -> None:
        self._unpublished, self._recipe, self._lowering = unpublished, recipe, lowering
        self._all, self._few = texts, texts.first(_TEXTS, _TOKENS)
        self._component = unpublished.component(recipe, lowering)
        if self._component.quantized is None:
            raise ValueError("the target has no quantized weights")
        self.source: WeightSource = self._component.quantized
        self._reference = unpublished.session(reference_recipe(), ORT, texts.longest)
        self._cached = {ids: self._reference.logits(ids) for ids in self._few.ids}

    @property
    def has_caches(self) -> bool:
        """True if the KV caches are quantized as well as the weights, further than by default."""
        return self._component.caches is not None and self._component.caches.kind != self._lowering.integer_caches

    def measure(self, names: Collection[str], *, quick: bool = False, caches: bool = True) -> LogitsComparison:
        """Compare logits with these weights quantized and all others unquantized.

        ``quick`` uses a part of the texts. Without ``caches``, the KV caches are unquantized. The graph is deleted
        afterwards, because each is as large as the model.
        """
        texts = self._few if quick else self._all
        component = replace(self._component, quantized=self.source.only(names) if names else None)
        component = component if caches else replace(component, caches=None)
        with scratch(self._unpublished.store.root) as store:
            target = self._unpublished.session_of(component, self._recipe, self._lowering, self._all.longest, store)
            return compare_logits(self._reference_logits, target.logits, texts.ids)

    def _reference_logits(self, ids: Sequence[int]) -> Array:
        cached = self._cached.get(tuple(ids))
        return self._reference.logits(ids) if cached is None else cached


def bisect(trial: BisectTrial, limits: PrecisionLimits, progress: Progress) -> Bisection:
    """Rank the groups, then exclude the most expensive ones until the goal is reached or one group is left."""
    groups = groups_of(trial.source)
    every = {name for group in groups for name in group.weights}
    with progress.step("quantize one group at a time", len(groups) + 1 + trial.has_caches) as advance:
        before = trial.measure(every)
        advance(1)
        costs: list[tuple[float, Group]] = []
        for group in groups:
            costs.append((trial.measure(group.weights, quick=True, caches=False).kl_mean, group))
            advance(1)
        fixed = trial.measure((), quick=True).kl_mean if trial.has_caches else 0.0
        advance(trial.has_caches)
    ranked = sorted(costs, key=lambda cost: -_comparable(cost[0]))
    goal = _Goal.of(before, limits, fixed)
    count, after = 0, before
    with progress.step("measure exclusions"):
        while not goal.reached(after) and count < len(ranked) - 1:
            count = max(count + -(-count // 2), _needed(ranked, fixed, before.kl_mean, goal.divergence(before)), 1)
            count = min(count, len(ranked) - 1)
            after = trial.measure(every - {name for _, group in ranked[:count] for name in group.weights})
    out = [group for _, group in ranked[:count]]
    weights = trial.source.selection.weights
    sizes = {group.name: sum(weights[name].count for name in group.weights) for group in groups}
    table = [Cost(group.name, group.patterns, sizes[group.name], cost) for cost, group in ranked]
    table += [Cost(CACHES, (), 0, fixed)] if trial.has_caches else []
    return Bisection(
        costs=tuple(sorted(table, key=lambda cost: -_comparable(cost.kl_mean))),
        goal=goal.text,
        exclude=patterns_of(out, groups),
        left_wide=sum(sizes[group.name] for group in out) / max(sum(sizes.values()), 1),
        predicted=_predicted(ranked, fixed, before.kl_mean, count),
        before=before,
        after=after,
        reached=goal.reached(after),
    )


def _comparable(cost: float) -> float:
    """Return a sortable cost: NaN becomes infinity."""
    return math.inf if math.isnan(cost) else cost


def _needed(ranked: Sequence[tuple[float, Group]], fixed: float, before: float, limit: float) -> int:
    """Return how many of the first groups to exclude so that the predicted divergence is at most ``limit``."""
    fits = (count for count in range(len(ranked)) if _predicted(ranked, fixed, before, count) <= limit)
    return next(fits, len(ranked) - 1)


def _predicted(ranked: Sequence[tuple[float, Group]], fixed: float, before: float, count: int) -> float:
    """Predict the divergence without the first ``count`` groups; no exclusion changes ``fixed``."""
    total, left = (fixed + sum(cost for cost, _ in some) for some in (ranked, ranked[count:]))
    if not math.isfinite(before) or not math.isfinite(total):  # the costs cannot be scaled to the measurement
        return left
    return before * left / total if total else 0.0


def with_commands(found: Bisection, folder: Path, recipe: Recipe) -> Bisection:
    """Return ``found`` with what builds the engine in ``folder`` again, with its exclusion as well.

    All other options are those of its build, or of its export.
    """
    patterns = dict.fromkeys([*recipe.exclude, *found.exclude])
    excluding = [word for pattern in patterns for word in ("--exclude", pattern)]
    build, out = ["peagle-compile", "build", "--config", str(folder / RESOLVED)], ["--out", "NEW_ENGINE"]
    if not is_of_export(folder):
        return replace(found, command=shlex.join([*build, *excluding, *out]))
    again = shlex.join([*excluding, "--out", _EXPORT])
    return replace(found, export_with=again, command=shlex.join([*build, "--from", _EXPORT, *out]))
