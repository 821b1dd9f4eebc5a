"""Which layers of a quantized target cost most, and which to leave wide so that it costs little enough.

Every group of matrices is quantized alone, everything else wide, and its divergence from FP32 measured. Divergences of
groups add up to nearly that of all, which predicts what an exclusion brings; what is suggested was measured as well.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...engines.folder.manifest import Manifest
from ...graphs.lowering import ORT, TENSORRT, lowering_named
from ...plugins.number_formats import PrecisionLimits
from ..console.progress import Progress
from ..hardware.gpus import export_form, sm_number
from ..precision.recipes import RECIPES, Recipe
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


@dataclass(frozen=True)
class Cost:
    """What one group does to the logits when it alone is quantized: mean divergence in nats.

    Without ``exclude`` it is of the caches, which no pattern names.
    """

    group: str
    exclude: tuple[str, ...]
    weights: int
    kl_mean: float


@dataclass(frozen=True)
class Bisection:
    """What every group costs, and what to exclude.

    ``costs`` are by size, from a few pieces of text. ``before`` and ``after`` are measured on all of it: with all
    groups quantized, and without those that ``exclude`` names. ``predicted`` is the divergence that costs promise for
    ``after``; ``reached``: ``after`` is as ``goal`` says. ``left_wide`` is the share of the quantized numbers that
    would be wide. ``command`` builds the engine so.
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


@dataclass(frozen=True)
class _Goal:
    """What an exclusion is to bring the logits to."""

    text: str
    kl_mean: float
    perplexity_increase: float

    @classmethod
    def of(cls, before: LogitsComparison, limits: PrecisionLimits, fixed: float) -> _Goal:
        """Set the limits where ``before`` is beyond them; else half of its divergence, less what is ``fixed``."""
        goal = cls("within the limits", limits.kl_mean, limits.perplexity_increase)
        if goal.reached(before):
            text = "half the divergence" + " that weights cause" * bool(fixed)
            return cls(text, before.kl_mean - max(before.kl_mean - fixed, 0.0) / 2, math.inf)
        return goal

    def reached(self, compared: LogitsComparison) -> bool:
        """Whether a measurement is within the goal."""
        return compared.kl_mean <= self.kl_mean and compared.perplexity_increase <= self.perplexity_increase

    def divergence(self, before: LogitsComparison) -> float:
        """Return what the mean divergence must come to, if perplexity falls with it in proportion."""
        increase = before.perplexity_increase
        share = self.perplexity_increase / increase if increase > self.perplexity_increase else 1.0
        return min(self.kl_mean, before.kl_mean * share)


class BisectTrial:
    """The target with any of its quantized weights, against FP32."""

    def __init__(self, shop: UnpublishedPairs, recipe: Recipe, lowering: Lowering, texts: Texts) -> None:
        self._shop, self._recipe, self._lowering = shop, recipe, lowering
        self._all, self._few = texts, texts.first(_TEXTS, _TOKENS)
        self._half = shop.half(recipe, lowering)
        if self._half.quantized is None:
            raise ValueError("the target has no quantized weights")
        self.source: WeightSource = self._half.quantized
        self._reference = shop.session(reference_recipe(), ORT, texts.longest)
        self._kept = {ids: self._reference.logits(ids) for ids in self._few.ids}

    @property
    def has_caches(self) -> bool:
        """Whether the KV caches are quantized, beside the weights."""
        return self._half.caches is not None

    def measure(self, names: Collection[str], *, quick: bool = False, caches: bool = True) -> LogitsComparison:
        """Compare logits with these weights quantized and all others wide.

        ``quick`` looks at a few pieces instead of all texts. ``caches``: whether quantized caches are so here too. The
        graph is not kept: each is as large as the model.
        """
        texts = self._few if quick else self._all
        half = replace(self._half, quantized=self.source.only(names) if names else None)
        half = half if caches else replace(half, caches=None)
        with scratch(self._shop.store.root) as store:
            target = self._shop.session_of(half, self._recipe, self._lowering, self._all.longest, store)
            return compare_logits(self._of_reference, target.logits, texts.ids)

    def _of_reference(self, ids: Sequence[int]) -> Array:
        kept = self._kept.get(tuple(ids))
        return self._reference.logits(ids) if kept is None else kept


def bisect(trial: BisectTrial, limits: PrecisionLimits, progress: Progress) -> Bisection:
    """Rank the groups, then leave out the most expensive until the goal is reached, or little is left."""
    groups = groups_of(trial.source)
    every = {name for group in groups for name in group.weights}
    with progress.step("narrow one group at a time", len(groups) + 1 + trial.has_caches) as advance:
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
    with progress.step("measure what to exclude"):
        while not goal.reached(after) and count < len(ranked) - 1:
            count = max(count + -(-count // 2), _enough(ranked, fixed, before.kl_mean, goal.divergence(before)), 1)
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
    """Return a cost that sorts: what is not a number is the worst."""
    return math.inf if math.isnan(cost) else cost


def _enough(ranked: Sequence[tuple[float, Group]], fixed: float, before: float, most: float) -> int:
    """How many of the first have to go so that the rest is predicted to diverge by no more than ``most``."""
    fits = (count for count in range(len(ranked)) if _predicted(ranked, fixed, before, count) <= most)
    return next(fits, len(ranked) - 1)


def _predicted(ranked: Sequence[tuple[float, Group]], fixed: float, before: float, count: int) -> float:
    """Predict the divergence without the first ``count`` groups; ``fixed`` is what no exclusion changes."""
    total, left = (fixed + sum(cost for cost, _ in some) for some in (ranked, ranked[count:]))
    if not math.isfinite(before) or not math.isfinite(total):  # nothing adds up then: the costs that are numbers
        return left
    return before * left / total if total else 0.0


def rebuild_command(manifest: Manifest, recipe: Recipe, exclude: Sequence[str]) -> str:
    """Return the ``peagle-compile build`` that builds the engine again with ``exclude`` wide as well.

    It is as much of it as the manifest knows: where ranges were calibrated from other samples than the bundled ones,
    those flags have to be added.
    """
    backend, usual = manifest.backend, RECIPES[recipe.name].on(recipe.wide, lowering_named(manifest.backend.lowering))
    words = ["peagle-compile", "build", "--model", manifest.target.origin.id]
    words += ["--draft", manifest.drafter.origin.id] if manifest.drafter else ["--draft", manifest.method]
    words += ["--backend", backend.name, "--precision", recipe.name]
    words += ["--gpu", ",".join(backend.gpus)] if backend.gpus else []
    for flag, field in (
        ("--kv-cache-dtype", "kv_cache"), ("--lm-head-precision", "lm_head"), ("--draft-precision", "drafter")
    ):  # fmt: skip
        kind = getattr(recipe, field)
        words += [flag, kind] if kind != getattr(usual, field) else []
    for pattern in dict.fromkeys([*recipe.exclude, *exclude]):
        words += ["--exclude", pattern]
    form = export_form([sm_number(gpu) for gpu in backend.gpus])
    if backend.name == "tensorrt" and form != backend.lowering == TENSORRT.name:
        words += ["--experts", "dense"]
    words += ["--allow-wide", ",".join(recipe.allow_wide)] if recipe.allow_wide else []
    return shlex.join([*words, "--max-seq-len", str(manifest.shapes.max_seq_len), "--out", "ENGINE"])
