"""The work of one pass of a graph: bytes by kind, operations by number format, kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EXPERTS, CACHE, COPIES, LOGITS, LOOKED_UP = "experts", "KV cache", "copies", "logits", "embedding"


@dataclass(frozen=True)
class PassWork:
    """The work of a pass over ``columns`` tokens.

    ``bytes`` are read or written, by kind. ``operations`` are multiplications and additions, by number format;
    ``first_operations`` are those of one column for each weight that is read.
    """

    columns: int
    bytes: Mapping[str, float]
    operations: Mapping[str, float]
    first_operations: float
    kernels: int

    @property
    def total_bytes(self) -> float:
        """The bytes of all kinds."""
        return sum(self.bytes.values())

    @property
    def weight_bytes(self) -> float:
        """The bytes of weights."""
        return self.total_bytes - sum(self.bytes.get(kind, 0.0) for kind in (CACHE, COPIES, LOGITS, LOOKED_UP))

    @property
    def total_operations(self) -> float:
        """The operations in all formats."""
        return sum(self.operations.values())


@dataclass(frozen=True)
class Experts:
    """The routed experts of all layers: each layer has ``count``, of which a token chooses ``chosen``.

    ``bytes`` and ``values`` are those of all experts, in the number format ``kind``. ``dense``: the graph reads and
    computes all of them for every token.
    """

    count: int
    chosen: int
    bytes: int
    values: int
    kind: str
    dense: bool = False

    def distinct(self, columns: int) -> float:
        """Return the experts of a layer that a pass is expected to read, if tokens choose independently.

        E * (1 - (1 - k / E)^n) for k of E experts and n tokens; all of them if ``dense``.
        """
        if self.dense:
            return self.count
        return self.count * (1 - (1 - self.chosen / self.count) ** columns)


@dataclass(frozen=True)
class AttentionWork:
    """The attention of all layers with the same ``window``, which includes the position itself; 0 means unlimited.

    ``position_bytes``: keys and values of one position. ``operations``: those of a column for each position.
    """

    position_bytes: int
    operations: int
    window: int = 0

    def earlier(self, context: int) -> int:
        """Return the positions that a pass after ``context`` positions reads of them."""
        return min(context, self.window - 1) if self.window else context


@dataclass(frozen=True)
class GraphWork:
    """The work that passes of a graph have in common, from which ``over`` computes that of one pass.

    ``weights``: bytes read in every pass, by role, with scales. ``products``: values multiplied with each column, by
    number format, without the experts; ``head_products``: those of the LM head, multiplied with emitted columns only.
    ``attention`` has one part for each attention window; ``copies_cache``: each layer first copies the positions that
    it reads. ``logit_bytes`` and ``row_bytes`` are those of a column's logits and of its row of the embedding.
    """

    weights: Mapping[str, int]
    products: Mapping[str, int]
    head_products: Mapping[str, int]
    wide: str
    attention: tuple[AttentionWork, ...]
    logit_bytes: int
    row_bytes: int
    kernels: int = 0
    copies_cache: bool = False
    experts: Experts | None = None

    @property
    def weight_bytes(self) -> int:
        """The bytes of all weights but the embedding's, which is looked up: those of a pass that reads every expert."""
        return sum(self.weights.values()) + (self.experts.bytes if self.experts else 0)

    def over(self, columns: int, context: int, *, emitted: int | None = None, rows: int = 1) -> PassWork:
        """Return the work of a pass over ``columns`` columns of each of ``rows`` rows after ``context`` positions.

        ``emitted`` columns of each row have logits; by default all.
        """
        every, logits = columns * rows, (columns if emitted is None else emitted) * rows
        cached = sum(part.position_bytes * part.earlier(context) for part in self.attention) * rows
        moved: dict[str, float] = dict(self.weights)
        operations = {kind: 2.0 * count * every for kind, count in self.products.items()}

        def compute(kind: str, count: float) -> None:
            operations[kind] = operations.get(kind, 0.0) + count

        for kind, count in self.head_products.items():
            compute(kind, 2.0 * count * logits)
        values = float(sum(self.products.values()) + sum(self.head_products.values()))
        if self.experts:
            experts = self.experts
            values += experts.values * experts.distinct(every) / experts.count
            moved[EXPERTS] = experts.bytes * experts.distinct(every) / experts.count
            used = 1.0 if experts.dense else experts.chosen / experts.count
            compute(experts.kind, 2.0 * experts.values * used * every)
        attended = sum(part.operations * (part.earlier(context) + columns) for part in self.attention)
        compute(self.wide, float(attended * every))
        moved[CACHE] = cached + sum(part.position_bytes for part in self.attention) * every
        if self.copies_cache:
            moved[COPIES] = 2 * cached  # read and written once more
        moved[LOGITS] = 2 * self.logit_bytes * logits  # written, and read by the sampler
        moved[LOOKED_UP] = self.row_bytes * every
        return PassWork(every, moved, operations, 2 * values, self.kernels)
