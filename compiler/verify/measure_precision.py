"""Measure the accuracy cost of one engine's precision.

The reference is the same pair in FP32, or if that is too large, the target's FP32 logits computed layer by layer.
"""

from __future__ import annotations

import shlex
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
from ..store.stage_origin import StageOrigin
from ..store.stages import StageStore
from .bisect import Bisection, BisectTrial, bisect, with_commands
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
_SAME_KL = 1e-3  # nats: above the effect of the order of sums, below that of rounding to eight bits

Reference = Literal["streamed", "pair"]


@dataclass(frozen=True)
class MeasureRequest:
    """Settings of a measurement.

    ``data``: texts instead of the bundled ones. ``limits``: limits instead of the recipe's. ``store``: stage store
    instead of the default one. ``reference``: the FP32 reference; None chooses it by the engine.
    """

    data: Path | None = None
    bisect: bool = False
    limits: PrecisionLimits | None = None
    store: StageStore | None = field(default=None)
    reference: Reference | None = None

    def check(self) -> None:
        """Raise ``UsageError`` for an unknown reference, or one that bisecting cannot use."""
        if self.reference not in (None, *get_args(Reference)):
            raise UsageError(f"--reference {self.reference} is invalid", fix="use streamed or pair")
        if self.bisect and self.reference == "streamed":
            raise UsageError(
                "--bisect cannot be combined with --reference streamed",
                why="each step of a bisection rebuilds the whole target with other weights unquantized",
                fix="omit one of them",
            )

    def reference_of(self, manifest: Manifest) -> Reference:
        """Return the reference for an engine. For GPU engines, the FP32 pair is assumed too large for the host."""
        if self.reference:
            return self.reference
        return "streamed" if manifest.backend.gpus and not self.bisect else "pair"

    def passes(self, manifest: Manifest) -> Passes:
        """Return the function that runs the target in torch."""
        if self.reference_of(manifest) == "pair":
            return whole_passes
        return streamed_passes_in((self.store or StageStore.default()).root)


def measure(
    folder: Path, manifest: Manifest, engine: Engine | None, request: MeasureRequest, progress: Progress
) -> Precision | None:
    """Compare an engine with FP32; None if the engine is in FP32. If ``engine`` is None, its recipe is emulated.

    If the measurement cannot run here, the result has the reason in ``skipped``. Raises ``BuildError`` or
    ``UsageError`` for the user's texts.
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
        stage_origin = StageOrigin("verify", manifest.target.origin.id, drafter, name)
        store = replace(request.store or StageStore.default(), stage_origin=stage_origin)
        if engine and request.reference_of(manifest) == "streamed":
            return _compare_streamed(engine, origins, recipe, texts, request, progress)
        unpublished = UnpublishedPairs(folder, manifest, origins, store, progress)
        return _Measurement(unpublished, recipe, engine, texts, request).result()
    except (EnvironmentProblem, BuildError) as error:
        return Precision(name, skipped=_reason(error), texts=texts.name)


def _compare_streamed(
    engine: Engine, origins: Origins, recipe: Recipe, texts: Texts, request: MeasureRequest, progress: Progress
) -> Precision:
    """Compare the engine's logits with the FP32 target's, with one layer of the target in memory at a time."""
    from ..precision.calibration.streamed_passes import num_steps

    limits, tally = request.limits or limits_of(recipe.name, recipe.kv_cache), LogitsTally()
    target, total = origins.target.with_taps(()), len(texts.ids) * num_steps(origins.target)
    with progress.step("compare logits with FP32, layer by layer", total) as advance:
        passes = streamed_passes_in((request.store or StageStore.default()).root)
        for ids, (logits, _) in zip(texts.ids, passes(target, texts.ids, advance), strict=True):
            tally.add(logits, engine.target_logits(ids), ids)
    found = tally.comparison()
    command = f"`peagle-compile verify {shlex.quote(str(engine.folder))} --only precision --reference pair`"
    return Precision(
        recipe=recipe.name,
        measured=RUN,
        against=STREAMED,
        texts=texts.name,
        limits=limits,
        logits=found,
        checks=checks_of(limits, found, None, None),
        notes=(
            f"greedy text, acceptance and layers were not compared, because this needs the whole pair in FP32; run "
            f"{command}",
        ),
    )


def streamed_passes_in(root: Path) -> Passes:
    """Return ``Passes`` with one layer in memory.

    Hidden states between layers are stored below ``root`` in the meantime.
    """

    def passes(target: Target, texts: Sequence[Sequence[int]], advance: Advance) -> Iterator[tuple[Array, Array]]:
        from ..precision.calibration.streamed_passes import streamed_passes

        with scratch(root) as store:
            yield from streamed_passes(target, texts, store.root, advance)

    return passes


def _reason(error: PeagleError) -> str:
    return f"{error.what} ({error.why})" if error.why else error.what


class _Measurement:
    """Measurement of one engine, compared with the same pair in FP32."""

    def __init__(
        self,
        unpublished: UnpublishedPairs,
        recipe: Recipe,
        engine: Engine | None,
        texts: Texts,
        request: MeasureRequest,
    ) -> None:
        self._unpublished, self._recipe, self._texts, self._request = unpublished, recipe, texts, request
        self._cpu = on_cpu(recipe)
        self._quantizes_drafter = self._cpu.drafter != self._cpu.wide
        self._quantizes_target = bool(self._cpu.quantized_type) or self._cpu.kv_cache != self._cpu.wide
        self._lowering = lowering_named(unpublished.manifest.backend.lowering)
        if engine is None and not self._cpu.is_quantized:
            raise EnvironmentProblem(
                f"the cost of {recipe.name} can be measured only on a machine that runs the engine",
                why="emulation computes in FP32, which does not round to 16 bits",
                fix="run `peagle-compile verify` on a machine that runs the engine",
            )
        self._emulated = engine is None
        self._engine = engine or unpublished.pair(self._cpu, self._lowering)
        self._reference = unpublished.pair(reference_recipe(), ORT)
        self._notes: list[str] = []

    def result(self) -> Precision:
        """Run all measurements and compare them with the limits."""
        recipe, texts = self._recipe, self._texts
        limits = self._request.limits or limits_of(recipe.name, recipe.kv_cache)
        with self._step("compare logits with FP32", len(texts.ids)) as advance:
            logits = compare_logits(self._reference.target_logits, self._engine.target_logits, texts.ids, advance)
        greedy, acceptance, drafter = self._generated()
        del self._reference  # the remaining measurements use the target alone
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
            self._notes.append("nothing to bisect: the target has no quantized weights")
        self._notes += [check.note for check in precision.checks if check.note]
        return replace(precision, notes=tuple(self._notes))

    def _with_places(self, precision: Precision, limits: PrecisionLimits) -> Precision:
        """Add the error of each layer, and the bisection.

        These need the recipe rebuilt from the checkpoint. If that fails, a note gives the reason.
        """
        try:
            precision = replace(precision, layers=self._layers())
            bisects = self._request.bisect and self._cpu.quantized_type
            return replace(precision, bisection=self._bisected(limits)) if bisects else precision
        except (EnvironmentProblem, BuildError) as error:
            self._notes.append(f"layers were not compared: {_reason(error)}")
            return precision

    def _generated(self) -> tuple[GreedyAgreement, AcceptanceLength | None, AcceptanceLength | None]:
        """Compare greedy text and acceptance length of both pairs.

        A quantized drafter is also compared with the unquantized one on the same target. Without a drafter there is no
        acceptance length.
        """
        prompts, published = self._texts.prompts, self._unpublished.manifest
        k = published.speculation.num_speculative_tokens if published.drafter else 0
        pairs = [self._reference, self._engine]
        if self._quantizes_drafter:
            pairs.append(self._unpublished.pair(self._cpu, self._lowering, wide_drafter=True))
        with self._step("compare greedy text and acceptance", len(prompts) * len(pairs)) as advance:
            outputs = [generate(pair, prompts, k, advance) for pair in pairs]
        reference, quantized = outputs[:2]
        alone = compare_acceptance(outputs[2], quantized, k) if self._quantizes_drafter else None
        return compare_tokens(reference, quantized), compare_acceptance(reference, quantized, k) if k else None, alone

    def _layers(self) -> tuple[LayerError, ...]:
        """Compare the layers of the recipe, rebuilt with the hidden states of every layer as outputs."""
        unpublished, texts = self._unpublished, self._texts.first(_LAYER_TEXTS, _LAYER_TOKENS)
        reference = unpublished.session(reference_recipe(), ORT, texts.longest, every_layer=True)
        quantized = unpublished.session(self._cpu, self._lowering, texts.longest, every_layer=True)
        with self._step("compare the layers", len(texts.ids)) as advance:
            layers = compare_layers(reference.streams, quantized.streams, texts.ids, advance)
        again = compare_logits(quantized.logits, self._engine.target_logits, texts.ids[:1])
        if not again.kl_mean <= _SAME_KL:
            self._notes.append(
                "the recipe rebuilt from the checkpoint does not match the engine (KL divergence of the logits: "
                f"{again.kl_mean:.2g} nats); layer errors describe the recipe, all other numbers the engine"
            )
        return layers

    def _bisected(self, limits: PrecisionLimits) -> Bisection:
        trial = BisectTrial(self._unpublished, self._cpu, self._lowering, self._texts)
        found = bisect(trial, limits, self._unpublished.progress)
        return with_commands(found, self._unpublished.folder, self._recipe)

    def _step(self, text: str, total: int) -> AbstractContextManager[Advance]:
        return self._unpublished.progress.step(text, total)
