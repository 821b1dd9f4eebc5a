"""Pairs and targets in any recipe, run by ONNX Runtime from the stage store: nothing is published."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.folder.manifest import Backend, Manifest, Part
from ..checkpoints.pair import cache_length
from ..console.progress import Progress
from ..pipeline.compiled import MODEL, Compiled, attach, trace
from ..pipeline.half import Half, drafter_half, target_half
from ..precision.recipes import Recipe
from ..store.stages import StageStore
from .origin import Origins
from .ranges import ranges_again
from .target import Target

if TYPE_CHECKING:
    from ...engines import Engine
    from ...graphs.lowering import Lowering
    from ..precision.calibration import Scales

_SHORT = 64  # T of a graph that only ever sees one text is a multiple of it


@dataclass(frozen=True)
class Workshop:
    """Makes them for one engine: its checkpoints, its sizes, its tokenizer in ``folder``."""

    folder: Path
    manifest: Manifest
    origins: Origins
    store: StageStore
    progress: Progress

    def pair(self, recipe: Recipe, lowering: Lowering, *, wide_drafter: bool = False) -> Engine:
        """Target and drafter as an engine with the sizes of the one that is verified."""
        from ...engines import Engine
        from ...engines.backends.onnxruntime.backend import OnnxRuntimeBackend
        from ...engines.text.tokenizer import Tokenizer

        old = self.manifest
        length = cache_length(old.shapes.max_seq_len, old.speculation.max_num_speculative_tokens, lowering)
        origins = self.origins
        of_drafter = replace(recipe, drafter=recipe.wide) if wide_drafter else recipe
        made = [
            self._compile(half, recipe, lowering, length)
            for half in (
                self.half(recipe, lowering),
                drafter_half(origins.drafter, origins.head, origins.target.spec, of_drafter, lowering),
            )
        ]
        target, drafter = (_part(part, done) for part, done in zip((old.target, old.drafter), made, strict=True))
        files = {str(done.attached.path / n): entry for done in made for n, entry in done.attached.files.items()}
        manifest = replace(
            old,
            target=target,
            drafter=drafter,
            backend=Backend("onnxruntime", lowering.name, {}),
            shapes=replace(old.shapes, cache_length=length),
            files=files,
        )
        backend = OnnxRuntimeBackend(self.folder, manifest, num_slots=1, threads=None)
        return Engine(self.folder, manifest, backend, Tokenizer(self.folder, old.eos_token_ids))

    def half(self, recipe: Recipe, lowering: Lowering, *, every_layer: bool = False) -> Half:
        """The target, with the drafter's taps or one at every layer. FP8 caches hold what their codes stand for."""
        target = self.origins.target
        if every_layer:
            target = target.with_taps(range(target.spec.num_layers))
        half = target_half(target, recipe, lowering, self.scales(recipe, lowering))
        return replace(half, caches=half.caches and replace(half.caches, emulated=True))

    def target(self, recipe: Recipe, lowering: Lowering, longest: int, *, every_layer: bool = False) -> Target:
        """The target alone, for texts of up to ``longest`` tokens."""
        return self.target_of(self.half(recipe, lowering, every_layer=every_layer), recipe, lowering, longest)

    def target_of(
        self, half: Half, recipe: Recipe, lowering: Lowering, longest: int, store: StageStore | None = None
    ) -> Target:
        """The same of a half; its weights go into ``store``."""
        length = -(-longest // _SHORT) * _SHORT
        done = self._compile(half, recipe, lowering, length, store)
        return Target(
            done.attached.path / MODEL, self.manifest.target.caches, length, self.origins.target.spec.hidden_size
        )

    def scales(self, recipe: Recipe, lowering: Lowering) -> Scales | None:
        """The ranges that the engine was built with, where its recipe needs any."""
        from ..precision.source import uncalibrated

        if not uncalibrated(self.origins.target, recipe, lowering):
            return None
        return ranges_again(self.folder, self.origins, self.store, self.progress)

    def _compile(
        self, half: Half, recipe: Recipe, lowering: Lowering, length: int, store: StageStore | None = None
    ) -> Compiled:
        traced = trace(self.store, half, recipe.dtype, self.progress)
        return attach(store or self.store, half, traced, lowering=lowering, cache_length=length, progress=self.progress)


def _part(part: Part, done: Compiled) -> Part:
    return replace(part, file=str(done.attached.path / MODEL), inputs=done.inputs, outputs=done.outputs, plan=None)
