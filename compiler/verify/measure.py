"""Measure one engine's precision, from its checkpoints to the numbers."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.folder.manifest import Manifest
from ...graphs.lowering import ORT, lowering_named
from ...plugins.errors import BuildError, EnvironmentProblem, PeagleError
from ..console.progress import Advance, Progress
from ..hardware.packages import export_versions
from ..precision.recipes import Recipe
from ..store.stages import StageStore
from .bisect import Bisection, Trial, bisect
from .command import rebuild
from .generation import Acceptance, GreedyAgreement, compare_acceptance, compare_tokens, generate
from .layers import LayerError, compare_layers
from .logits import compare_logits
from .origin import Origins, is_reference, on_cpu, recipe_of, reference_recipe
from .pairs import Workshop
from .precision import EMULATED, RUN, Precision, checks_of
from .texts import Texts, read_texts
from .thresholds import LIMITS, Limits

if TYPE_CHECKING:
    from ...engines import Engine

_LAYER_TEXTS, _LAYER_TOKENS = 8, 256
_SAME = 1e-3  # nats: more than another order of sums makes, less than any rounding to eight bits


@dataclass(frozen=True)
class Request:
    """``data``: texts instead of the bundled ones. ``limits``: instead of the recipe's. ``store``: kept steps."""

    data: Path | None = None
    bisect: bool = False
    limits: Limits | None = None
    store: StageStore | None = field(default=None)


def measure(
    folder: Path, manifest: Manifest, engine: Engine | None, request: Request, progress: Progress
) -> Precision | None:
    """Against FP32; None for an engine that is FP32 itself. Without an engine its recipe is emulated.

    What cannot be measured here is skipped with the reason. Raises ``BuildError`` or ``UsageError`` for the user's
    texts.
    """
    if is_reference(manifest.precision):
        return None
    name = manifest.precision.get("recipe", "unknown")
    shapes = manifest.shapes
    texts = read_texts(request.data, folder, shapes.vocab_size, shapes.max_seq_len)
    try:
        export_versions()
        origins = Origins.open(manifest)
        recipe = recipe_of(manifest, origins.target.checkpoint)
        store = request.store or StageStore.default()
        workshop = Workshop(folder, manifest, origins, store, progress)
        return _Measurement(workshop, recipe, engine, texts, request).result()
    except (EnvironmentProblem, BuildError) as error:
        return Precision(name, skipped=_said(error), texts=texts.name)


def _said(error: PeagleError) -> str:
    return f"{error.what} ({error.why})" if error.why else error.what


class _Measurement:
    """One engine, the pair in FP32 beside it, and what else has to be made on the way."""

    def __init__(
        self, workshop: Workshop, recipe: Recipe, engine: Engine | None, texts: Texts, request: Request
    ) -> None:
        self._shop, self._recipe, self._texts, self._request = workshop, recipe, texts, request
        self._cpu = on_cpu(recipe)
        self._narrow_drafter = self._cpu.drafter != self._cpu.wide
        self._narrow_target = bool(self._cpu.narrow) or self._cpu.kv_cache != self._cpu.wide
        self._lowering = lowering_named(workshop.manifest.backend.lowering)
        if engine is None and not self._cpu.narrows:
            raise EnvironmentProblem(
                f"what {recipe.name} costs shows only where the engine runs",
                why="on this machine its recipe would be computed in FP32, which rounds nothing",
            )
        self._emulated = engine is None
        self._engine = engine or workshop.pair(self._cpu, self._lowering)
        self._reference = workshop.pair(reference_recipe(), ORT)
        self._notes: list[str] = []

    def result(self) -> Precision:
        """All measures."""
        recipe, texts = self._recipe, self._texts
        limits = self._request.limits or LIMITS[recipe.name]
        with self._step("compare logits with FP32", len(texts.ids)) as advance:
            logits = compare_logits(self._reference.target_logits, self._engine.target_logits, texts.ids, advance)
        greedy, acceptance, drafter = self._generated()
        del self._reference  # what follows takes a target alone
        found = Precision(
            recipe=recipe.name,
            measured=EMULATED if self._emulated else RUN,
            texts=texts.name,
            limits=limits,
            logits=logits,
            greedy=greedy,
            acceptance=acceptance,
            drafter_acceptance=drafter,
            checks=checks_of(limits, logits, acceptance, drafter),
        )
        if self._narrow_target:
            found = self._with_places(found, limits)
        if self._request.bisect and not self._cpu.narrow:
            self._notes.append("no weight of the target is narrow: there is nothing to bisect")
        self._notes += [check.note for check in found.checks if check.note]
        return replace(found, notes=tuple(self._notes))

    def _with_places(self, found: Precision, limits: Limits) -> Precision:
        """Where in the target it is lost. This takes the recipe made anew, and a note says where that cannot be."""
        try:
            found = replace(found, layers=self._layers())
            bisects = self._request.bisect and self._cpu.narrow
            return replace(found, bisection=self._bisected(limits)) if bisects else found
        except (EnvironmentProblem, BuildError) as error:
            self._notes.append(f"layers were not compared: {_said(error)}")
            return found

    def _generated(self) -> tuple[GreedyAgreement, Acceptance, Acceptance | None]:
        """Greedy text of both pairs, and where the drafter is narrow of the narrow target with the wide drafter."""
        prompts, k = self._texts.prompts, self._shop.manifest.speculation.num_speculative_tokens
        pairs = [self._reference, self._engine]
        if self._narrow_drafter:
            pairs.append(self._shop.pair(self._cpu, self._lowering, wide_drafter=True))
        with self._step("compare greedy text and acceptance", len(prompts) * len(pairs)) as advance:
            outputs = [generate(pair, prompts, k, advance) for pair in pairs]
        wide, narrow = outputs[:2]
        alone = compare_acceptance(outputs[2], narrow, k) if self._narrow_drafter else None
        return compare_tokens(wide, narrow), compare_acceptance(wide, narrow, k), alone

    def _layers(self) -> tuple[LayerError, ...]:
        """Of the recipe, made anew with every layer tapped."""
        shop, texts = self._shop, self._texts.first(_LAYER_TEXTS, _LAYER_TOKENS)
        wide = shop.target(reference_recipe(), ORT, texts.longest, every_layer=True)
        narrow = shop.target(self._cpu, self._lowering, texts.longest, every_layer=True)
        with self._step("compare the streams between layers", len(texts.ids)) as advance:
            layers = compare_layers(wide.streams, narrow.streams, texts.ids, advance)
        again = compare_logits(narrow.logits, self._engine.target_logits, texts.ids[:1])
        if not again.kl_mean <= _SAME:
            self._notes.append(
                "the recipe made anew from the checkpoint does not compute what the engine does (its logits diverge by "
                f"{again.kl_mean:.2g} nats): the numbers of layers are of the recipe, the others of the engine"
            )
        return layers

    def _bisected(self, limits: Limits) -> Bisection:
        trial = Trial(self._shop, self._cpu, self._lowering, self._texts)
        found = bisect(trial, limits, self._shop.progress)
        return replace(found, command=rebuild(self._shop.manifest, self._recipe, found.exclude))

    def _step(self, text: str, total: int) -> AbstractContextManager[Advance]:
        return self._shop.progress.step(text, total)
