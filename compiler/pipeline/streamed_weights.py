"""Weights of a semantic graph, in the forms that a half and its lowering need, and the source of their values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...graphs.targets.checkpoint_pieces import Array, Shape
from .component import Component

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...graphs.lowering import Lowering
    from ...graphs.stored_embedding import StoredEmbedding
    from ...graphs.stream_weights import Run
    from ...graphs.weight_cuts import Cut
    from ..precision.quantization_proof import QuantizedGraph


@dataclass(frozen=True)
class StreamedWeights:
    """Sources of the initializers of a rewritten graph.

    ``shapes`` are those of the weights before rewriting, by name. ``quantized`` has the weights stored as codes,
    ``packed`` unquantized ones tiled for custom kernels, ``cuts`` those that are split, and ``stored`` those that
    another file already holds.
    """

    component: Component
    shapes: Mapping[str, Shape]
    quantized: QuantizedGraph | None
    packed: Mapping[str, Shape]
    cuts: Mapping[str, Cut]
    stored: dict[str, Run]

    @classmethod
    def rewrite(
        cls, semantic: ir.Model, component: Component, lowering: Lowering, shared: StoredEmbedding | None
    ) -> StreamedWeights:
        """Rewrite a semantic graph in place, pass by pass; ``shared`` is the embedding in the target's file.

        Raises ``BuildError`` for a checkpoint that lacks weights of the graph.
        """
        from ...graphs.quantization import pack_wide, split_experts
        from ...graphs.stream_weights import needed_weights
        from ..precision.quantization_proof import QuantizedGraph

        shapes = needed_weights(semantic)
        component.check(shapes)
        stored = shared.put_into(component.targets_embedding, semantic) if shared else {}
        quantized = QuantizedGraph.of(component.quantized, semantic) if component.quantized else None
        if component.caches:
            component.caches.rewrite(semantic)
        tables = [component.targets_embedding] if shared and shared.packed else []
        packed = pack_wide(semantic, tables) if lowering.packs else {}
        if shared and shared.packed != (component.targets_embedding in packed):
            stored = {}  # this graph needs another layout of it
        cuts = split_experts(semantic) if lowering.has_expert_layer else {}
        return cls(component, shapes, quantized, packed, cuts, stored)

    def read(self, name: str) -> Iterator[Array]:
        """Return the values of an initializer, as consecutive runs of rows."""
        from ...graphs.quantization import packed_tiles

        shape = self.shapes[self._weight_of(name)]
        if self.quantized and name in self.quantized.streams:
            return self.quantized.read(name, shape)
        runs = self.component.read(name, shape)
        return packed_tiles(runs, shape) if name in self.packed else runs

    def position(self, name: str) -> tuple[str, int]:
        """Return the file and the offset of its first values in the checkpoint."""
        weight = self._weight_of(name)
        return self.component.position(weight, self.shapes[weight])

    def _weight_of(self, name: str) -> str:
        streams = self.quantized.streams if self.quantized else {}
        return streams[name].weight if name in streams else name
