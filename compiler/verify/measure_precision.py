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
from ..store.made_for import MadeFor
from ..store.stages import StageStore
from .bisect import Bisection, BisectTrial, bisect, rebuild_command
from .engine_origin import Origins, is_reference, on_cpu, recipe_of, reference_recipe
from .generation import AcceptanceLength, GreedyAgreement, compare_acceptance, compare_tokens, generate
from .held_out_texts import Texts, read_texts
from .logits import LayerError, compare_layers, compare_logits
from .precision_cost import EMULATED, RUN, Precision
from .precision_limits import PrecisionLimits, checks_of, limits_of
from .unpublished_pairs import Workshop

if TYPE_CHECKING:
    from ...engines import Engine

_LAYER_TEXTS, _LAYER_TOKENS = 8, 256
_SAME = 1e-3  # nats: more than another order of sums makes, less than any rounding to eight bits


@dataclass(frozen=True)
class MeasureRequest:
    """How to measure.

    ``data``: texts instead of the bundled ones. ``limits``: instead of the recipe's. ``store``: kept steps.
    """

    data: Path | None = None
    bisect: bool = False
    limits: PrecisionLimits | None = None
    store: StageStore | None = field(default=None)


def measure(
    folder: Path, manifest: Manifest, engine: Engine | None, request: MeasureRequest, progress: Progress
) -> Precision | None:
    """Measure an engine against FP32; None for an engine that is FP32 itself. Without an engine its recipe is emulated.

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
        origins = Origins.open(manifest, folder)
        recipe = recipe_of(manifest, origins.target.checkpoint)
        drafter = manifest.drafter.origin.id if manifest.drafter else ""
        made_for = MadeFor("verify", manifest.target.origin.id, drafter, name)
        store = replace(request.store or StageStore.default(), made_for=made_for)
        workshop = Workshop(folder, manifest, origins, store, progress)
        return _Measurement(workshop, recipe, engine, texts, request).result()
    except (EnvironmentProblem, BuildError) as error:
        return Precision(name, skipped=_said(error), texts=texts.name)


def _said(error: PeagleError) -> str:
    return f"{error.what} ({error.why})" if error.why else error.what


class _Measurement:
    """The measurement of one engine: the pair in FP32 beside it, and what else has to be made on the way."""

    def __init__(
        self, workshop: Workshop, recipe: Recipe, engine: Engine | None, texts: Texts, request: MeasureRequest
    ) -> None:
        self._shop, self._recipe, self._texts, self._request = workshop, recipe, texts, request
        self._cpu = on_cpu(recipe)
        self._quantizes_drafter = self._cpu.drafter != self._cpu.wide
        self._quantizes_target = bool(self._cpu.quantized_type) or self._cpu.kv_cache != self._cpu.wide
        self._lowering = lowering_named(workshop.manifest.backend.lowering)
        if engine is None and not self._cpu.is_quantized:
            raise EnvironmentProblem(
                f"what {recipe.name} costs shows only where the engine runs",
                why="on this machine its recipe would be computed in FP32, which rounds nothing",
            )
        self._emulated = engine is None
        self._engine = engine or workshop.pair(self._cpu, self._lowering)
        self._reference = workshop.pair(reference_recipe(), ORT)
        self._notes: list[str] = []

    def result(self) -> Precision:
        """Take all measures and hold them against the limits."""
        recipe, texts = self._recipe, self._texts
        limits = self._request.limits or limits_of(recipe.name, recipe.kv_cache)
        with self._step("compare logits with FP32", len(texts.ids)) as advance:
            logits = compare_logits(self._reference.target_logits, self._engine.target_logits, texts.ids, advance)
        greedy, acceptance, drafter = self._generated()
        del self._reference  # what follows takes a target alone
        precision = Precision(
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
        if self._quantizes_target:
            precision = self._with_places(precision, limits)
        if self._request.bisect and not self._cpu.quantized_type:
            self._notes.append("no weight of the target is narrow: there is nothing to bisect")
        self._notes += [check.note for check in precision.checks if check.note]
        return replace(precision, notes=tuple(self._notes))

    def _with_places(self, precision: Precision, limits: PrecisionLimits) -> Precision:
        """Add where in the target precision is lost.

        This takes the recipe made anew, and a note says where that cannot be.
        """
        try:
            precision = replace(precision, layers=self._layers())
            bisects = self._request.bisect and self._cpu.quantized_type
            return replace(precision, bisection=self._bisected(limits)) if bisects else precision
        except (EnvironmentProblem, BuildError) as error:
            self._notes.append(f"layers were not compared: {_said(error)}")
            return precision

    def _generated(self) -> tuple[GreedyAgreement, AcceptanceLength | None, AcceptanceLength | None]:
        """Compare greedy text of both pairs; a quantized drafter also with the wide one on the same target.

        Without a drafter nothing is accepted.
        """
        prompts, published = self._texts.prompts, self._shop.manifest
        k = published.speculation.num_speculative_tokens if published.drafter else 0
        pairs = [self._reference, self._engine]
        if self._quantizes_drafter:
            pairs.append(self._shop.pair(self._cpu, self._lowering, wide_drafter=True))
        with self._step("compare greedy text and acceptance", len(prompts) * len(pairs)) as advance:
            outputs = [generate(pair, prompts, k, advance) for pair in pairs]
        wide, quantized = outputs[:2]
        alone = compare_acceptance(outputs[2], quantized, k) if self._quantizes_drafter else None
        return compare_tokens(wide, quantized), compare_acceptance(wide, quantized, k) if k else None, alone

    def _layers(self) -> tuple[LayerError, ...]:
        """Compare the layers of the recipe, made anew with every layer tapped."""
        shop, texts = self._shop, self._texts.first(_LAYER_TEXTS, _LAYER_TOKENS)
        wide = shop.session(reference_recipe(), ORT, texts.longest, every_layer=True)
        quantized = shop.session(self._cpu, self._lowering, texts.longest, every_layer=True)
        with self._step("compare the streams between layers", len(texts.ids)) as advance:
            layers = compare_layers(wide.streams, quantized.streams, texts.ids, advance)
        again = compare_logits(quantized.logits, self._engine.target_logits, texts.ids[:1])
        if not again.kl_mean <= _SAME:
            self._notes.append(
                "the recipe made anew from the checkpoint does not compute what the engine does (its logits diverge by "
                f"{again.kl_mean:.2g} nats): the numbers of layers are of the recipe, the others of the engine"
            )
        return layers

    def _bisected(self, limits: PrecisionLimits) -> Bisection:
        trial = BisectTrial(self._shop, self._cpu, self._lowering, self._texts)
        bisection = bisect(trial, limits, self._shop.progress)
        return replace(bisection, command=rebuild_command(self._shop.manifest, self._recipe, bisection.exclude))

    def _step(self, text: str, total: int) -> AbstractContextManager[Advance]:
        return self._shop.progress.step(text, total)
