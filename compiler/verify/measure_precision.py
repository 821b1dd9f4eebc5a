"""Measure one engine's precision, from its checkpoints to the numbers.

Against the same pair in FP32, made whole, or against the target's own logits layer by layer, where a pair is too large.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from ...engines.folder.manifest import Manifest
from ...graphs.lowering import ORT, lowering_named
from ...plugins.errors import BuildError, EnvironmentProblem, PeagleError, UsageError
from ...plugins.number_formats import PrecisionLimits
from ...plugins.optional_packages import require
from ..checkpoints.target import Target
from ..console.progress import Advance, Progress
from ..precision.recipes import Recipe
from ..store.made_for import MadeFor
from ..store.stages import StageStore
from .bisect import Bisection, BisectTrial, bisect, rebuild_command
from .engine_origin import Origins, is_reference, on_cpu, recipe_of, reference_recipe
from .generation import AcceptanceLength, GreedyAgreement, compare_acceptance, compare_tokens, generate
from .held_out_texts import Texts, read_texts
from .logits import Array, LayerError, LogitsTally, compare_layers, compare_logits
from .parity import Passes, whole_passes
from .precision_cost import EMULATED, RUN, STREAMED, Precision
from .precision_limits import checks_of, limits_of
from .unpublished_pairs import UnpublishedPairs, scratch

if TYPE_CHECKING:
    from ...engines import Engine

_LAYER_TEXTS, _LAYER_TOKENS = 8, 256
_SAME = 1e-3  # nats: more than another order of sums makes, less than any rounding to eight bits

Reference = Literal["streamed", "pair"]


@dataclass(frozen=True)
class MeasureRequest:
    """How to measure.

    ``data``: texts instead of the bundled ones. ``limits``: instead of the recipe's. ``store``: kept steps.
    ``reference``: what it is compared with; None lets the engine decide.
    """

    data: Path | None = None
    bisect: bool = False
    limits: PrecisionLimits | None = None
    store: StageStore | None = field(default=None)
    reference: Reference | None = None

    def check(self) -> None:
        """Raise ``UsageError`` for a reference that there is not, or that nothing can be bisected with."""
        if self.reference not in (None, *get_args(Reference)):
            raise UsageError(f"--reference {self.reference} is not known", fix="it is streamed or pair")
        if self.bisect and self.reference == "streamed":
            raise UsageError(
                "--bisect does not go with --reference streamed",
                why="it makes the target anew with other weights left wide, which takes it whole",
                fix="leave out one of the two",
            )

    def reference_of(self, manifest: Manifest) -> Reference:
        """What an engine is compared with. Of one for a GPU the pair in FP32 is taken to be too large for its host."""
        if self.reference:
            return self.reference
        return "streamed" if manifest.backend.gpus and not self.bisect else "pair"

    def passes(self, manifest: Manifest) -> Passes:
        """Return what makes passes of the target in torch."""
        if self.reference_of(manifest) == "pair":
            return whole_passes
        return streamed_passes_in((self.store or StageStore.default()).root)


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
        require("export", "comparing with FP32")
        origins = Origins.open(manifest, folder)
        recipe = recipe_of(manifest, origins.target.checkpoint)
        drafter = manifest.drafter.origin.id if manifest.drafter else ""
        made_for = MadeFor("verify", manifest.target.origin.id, drafter, name)
        store = replace(request.store or StageStore.default(), made_for=made_for)
        if engine and request.reference_of(manifest) == "streamed":
            return _against_streamed(engine, origins, recipe, texts, request, progress)
        workshop = UnpublishedPairs(folder, manifest, origins, store, progress)
        return _Measurement(workshop, recipe, engine, texts, request).result()
    except (EnvironmentProblem, BuildError) as error:
        return Precision(name, skipped=_said(error), texts=texts.name)


def _against_streamed(
    engine: Engine, origins: Origins, recipe: Recipe, texts: Texts, request: MeasureRequest, progress: Progress
) -> Precision:
    """Compare the engine's logits with those of its target in FP32, of which one layer at a time is in memory."""
    from ..precision.calibration.streamed_passes import num_steps

    limits, tally = request.limits or limits_of(recipe.name, recipe.kv_cache), LogitsTally()
    target, total = origins.target.with_taps(()), len(texts.ids) * num_steps(origins.target)
    with progress.step("compare logits with FP32, layer by layer", total) as advance:
        passes = streamed_passes_in((request.store or StageStore.default()).root)
        for ids, (logits, _) in zip(texts.ids, passes(target, texts.ids, advance), strict=True):
            tally.add(logits, engine.target_logits(ids), ids)
    found = tally.comparison()
    command = f"`peagle-compile verify {engine.folder} --only precision --reference pair`"
    return Precision(
        recipe=recipe.name,
        measured=RUN,
        against=STREAMED,
        texts=texts.name,
        limits=limits,
        logits=found,
        checks=checks_of(limits, found, None, None),
        notes=(f"greedy text, acceptance and layers are left out: they take the whole pair in FP32; {command}",),
    )


def streamed_passes_in(root: Path) -> Passes:
    """Return what makes passes with one layer in memory; streams between layers lie below ``root`` meanwhile."""

    def passes(target: Target, texts: Sequence[Sequence[int]], advance: Advance) -> Iterator[tuple[Array, Array]]:
        from ..precision.calibration.streamed_passes import streamed_passes

        with scratch(root) as store:
            yield from streamed_passes(target, texts, store.root, advance)

    return passes


def _said(error: PeagleError) -> str:
    return f"{error.what} ({error.why})" if error.why else error.what


class _Measurement:
    """The measurement of one engine: the pair in FP32 beside it, and what else has to be made on the way."""

    def __init__(
        self, workshop: UnpublishedPairs, recipe: Recipe, engine: Engine | None, texts: Texts, request: MeasureRequest
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
