"""Verify that a recipe took effect: compare the matmuls of a lowered graph with the recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...graphs.targets.checkpoint_pieces import UnreadRows
from ...plugins.errors import BuildError
from ...plugins.number_formats import NUMBER_FORMATS, keeps_blocks
from ...plugins.number_types import BY_NUMPY
from ...plugins.problems import listed
from .quantized_compute import Shares, is_emulated, names_inputs, shares, shortfall, too_little
from .recipes import DRAFTER_ROLE, EMBEDDING, LM_HEAD
from .rounding.in_order import in_order

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...graphs.lowering import Lowered, Lowering
    from ...graphs.quantization import GraphProduct, Quantization, QuantizedWeight
    from ...graphs.quantization.quantized_weight import WeightStream
    from ...graphs.weight_cuts import Cut
    from .weight_source import WeightSource

_LISTED = 8
_UNSIGNED = "u"  # types with a zero point at their middle: CPU kernels read these, TensorRT reads the signed ones
_KERNELS = ("MatMulNBits", "QMoE", "QuantizedExperts", "QuantizedLinear")
_EXPERTS = "experts"
_UNREAD = (
    "ONNX Runtime has no kernel that reads this form, and would dequantize the weight when the engine loads; for "
    "routed experts, both stacks must have a supported form"
)


@dataclass
class QuantizedGraph:
    """The graph of a target or drafter with quantized weights. ``reasons`` explain weights left unquantized.

    ``streams`` are the initializers whose values come from the source.
    """

    source: WeightSource
    taken: Mapping[str, QuantizedWeight]
    reasons: Mapping[str, str]
    rewrite: Quantization
    products: Sequence[GraphProduct] = field(default=())
    _parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _lowering: Lowering | None = None
    _cuts: Mapping[str, Cut] = field(default_factory=dict)

    @classmethod
    def of(cls, source: WeightSource, semantic: ir.Model) -> QuantizedGraph:
        """Rewrite a semantic graph in place."""
        from ...graphs.quantization import quantize

        taken, wide = source.storage()
        rewrite = quantize(semantic, taken)
        return cls(source, taken, wide | dict(rewrite.refused), rewrite)

    @property
    def streams(self) -> Mapping[str, WeightStream]:
        """The initializers whose values come from the source, by name."""
        return self.rewrite.streams

    def read(self, name: str, shape: tuple[int, ...]) -> Iterator[Any]:
        """Read the values of one of ``streams``; ``shape`` is the weight's."""
        from ...graphs.quantization import packed_runs

        stream = self.streams[name]
        runs = (self.source.scales if stream.scales else self.source.codes)(stream.weight, shape)
        how = self.taken[stream.weight]
        if not how.packed:
            return runs
        row = (how.scale[len(shape) - 1 :] or (1,)) if stream.scales else shape[-1:]
        return packed_runs(how.packed, runs, row, scales=stream.scales, each=_on_threads, weight=stream.weight)

    def prove(self, lowered: Lowered, lowering: Lowering, cuts: Mapping[str, Cut] | None = None) -> None:
        """Raise ``BuildError`` if the recipe's share is not reached, or a requested lm_head is not quantized.

        If a type covers both factors of a matmul, a weight counts if both have it in the graph; a weight that was split
        counts if all of its matmuls qualify.
        """
        from ...graphs.quantization import products_of

        self.products = products_of(lowered.model)
        self._parts = {weight.name: weight.parts for weight in lowered.weights}
        self._lowering, self._cuts = lowering, cuts or {}
        selection, counted, wide = self.source.selection, self.shares, self.wide
        recipe = selection.recipe
        roles = {name: weight.role for name, weight in selection.weights.items()}
        head = next((why for name, why in wide.items() if roles[name] == LM_HEAD), "")
        if counted.stored < recipe.share:
            is_drafter = DRAFTER_ROLE in roles.values()
            flag = "--draft-precision" if is_drafter else "--precision"
            raise BuildError(
                f"only {counted.stored:.1%} of the weights that {flag} {recipe.name} should quantize are "
                f"{recipe.title} in the graph; at least {recipe.share:.0%} is required",
                why=_reasons(wide) or "the graph has no such weights",
                fix=f"omit {flag}"
                if is_drafter
                else f"exclude the other weights with --exclude, or build in {recipe.wide}",
            )
        if counted.accepted < recipe.share:
            raise too_little(selection, lowering, counted.multiplied, self.computed_wide)
        if head:
            raise BuildError(
                f"--lm-head-precision {recipe.lm_head} has no effect", why=head, fix="omit --lm-head-precision"
            )

    @property
    def shares(self) -> Shares:
        """The shares of the selected weights that the lowered graph stores, and computes, in the recipe's type."""
        return shares(self.source.selection, self._lowered_for, self.wide, self.computed_wide)

    @property
    def computed_wide(self) -> dict[str, str]:
        """Weights whose type covers both factors but whose matmuls run in another type, with that type.

        Weights that the graph does not store in their type are not included; for an emulation the graph's types count.
        """
        selection, wide, found = self.source.selection, self.wide, {}
        for product in self.products:
            for name in self._weights(product):
                weight = selection.weights.get(name)
                if weight is None or name in wide or product.computed == product.stored:
                    continue
                if names_inputs(weight, selection.recipe, self._lowered_for):
                    found[name] = product.computed
        return found

    @property
    def _lowered_for(self) -> Lowering:
        if self._lowering is None:
            raise ValueError("the graph has not been verified yet")
        return self._lowering

    @property
    def wide(self) -> dict[str, str]:
        """The selected weights that the lowered graph does not compute in their type, with reasons.

        An embedding is only looked up: it has its type if the rewrite gave it that.
        """
        uses = [(name, self._takes_effect(p, name)) for p in self.products for name in self._weights(p)]
        effective = {name for name, takes in uses if takes} - {name for name, takes in uses if not takes}
        weights = self.source.selection.weights
        effective |= {name for name in self.rewrite.done if name in weights and weights[name].role == EMBEDDING}
        reason = _UNREAD if self._lowered_for.has_kernels else "the lowered graph computes the weight in the wide type"
        return {name: self.reasons.get(name, reason) for name in self.source.selection.weights if name not in effective}

    def record(self) -> dict[str, Any]:
        """Return the data for the report.

        Call it after the weights are written: the error of rescaling is known only then.
        """
        wide, selection, counted = self.wide, self.source.selection, self.shares
        return {
            "recipe": selection.recipe.record(),
            "share": round(counted.multiplied, 6),
            "stored_share": round(counted.stored, 6),
            "accepted_share": round(counted.accepted, 6),
            "least_share": selection.recipe.share,
            "numbers": selection.count,
            "shortfall": self._shortfall(),
            "matmuls": [self._row(product, wide) for product in self.products],
            "shared_inputs": [asdict(shared) for shared in self.rewrite.shared],
            "losses": {name: round(loss, 6) for name, loss in sorted(self.source.losses.items())},
            "notes": self._notes(wide),
        }

    def _weights(self, product: GraphProduct) -> list[str]:
        """Return the weights of a matmul: several if linears were packed into one."""
        parts = self._parts.get(product.weight, (product.weight,))
        parts = [self._cuts[part].source if part in self._cuts else part for part in parts]
        return [self.streams[part].weight if part in self.streams else part for part in parts]

    def _takes_effect(self, product: GraphProduct, name: str) -> bool:
        """Return True if a matmul computes the weight ``name`` in the recipe's type."""
        weight, how = self.source.selection.weights.get(name), self.taken.get(name)
        if weight is None or how is None:
            return False
        if how.packed or how.blocks:
            return product.packed == (how.packed or how.blocks)
        if product.stored != stored_name(how.codes):
            return False
        if self._lowered_for.has_kernels and how.codes.startswith(_UNSIGNED):
            return product.op in _KERNELS
        return how.input is None or product.computed == stored_name(how.input.codes)

    def _use(self, product: GraphProduct, wide: Mapping[str, str]) -> dict[str, Any]:
        """Describe the role of a matmul's weights, whether they count as quantized, and if not, why."""
        every, selection = self._weights(product), self.source.selection
        selected, others = selection.weights, selection.wide
        roles = [weight.role for name in every if (weight := selected.get(name) or others.get(name))]
        reasons = [wide[name] if name in wide else others[name].why for name in every if name in wide or name in others]
        why = "; ".join(dict.fromkeys(filter(None, reasons)))
        is_quantized = any(name in selected for name in every) and not why
        return {"role": roles[0] if roles else "", "narrow": is_quantized} | ({"why": why} if why else {})

    def _row(self, product: GraphProduct, wide: Mapping[str, str]) -> dict[str, Any]:
        """Describe a matmul; an emulated one is computed in the wide type, however its factors were rounded."""
        row, selection = asdict(product) | self._use(product, wide), self.source.selection
        packed = row.pop("packed")
        weights = [selection.weights[name] for name in self._weights(product) if name in selection.weights]
        if any(keeps_blocks(selection.recipe.precision(weight.role)) for weight in weights):
            row["blocks"] = packed
        if product.computed != product.stored or not any(
            is_emulated(weight, selection.recipe, self._lowered_for) for weight in weights
        ):
            return row
        return row | {"computed": NUMBER_FORMATS[selection.recipe.wide].number_type.name, "emulates": product.computed}

    def _shortfall(self) -> str:
        """The first line of reports if too few weights are computed in their stored type; else empty."""
        selection, share, wide = self.source.selection, self.shares.multiplied, self.computed_wide
        recipe = selection.recipe
        wide = {n: kind for n, kind in wide.items() if not is_emulated(selection.weights[n], recipe, self._lowered_for)}
        return shortfall(selection, share, wide) if wide and share < recipe.share else ""

    def _notes(self, wide: Mapping[str, str]) -> list[str]:
        notes, selection = [], self.source.selection
        recipe = selection.recipe
        experts = {n for n, weight in selection.weights.items() if weight.role == _EXPERTS and n not in wide}
        stored_only = any(p.computed == recipe.dtype and experts.intersection(self._weights(p)) for p in self.products)
        if stored_only and not self._shortfall():
            notes.append(f"routed experts are stored in {recipe.title} and computed in {recipe.wide}")
        if wide:
            stay = "s that {} would quantize stay" if len(wide) > 1 else " that {} would quantize stays"
            notes.append(f"{len(wide)} weight{stay.format(recipe.name)} {recipe.wide}: {_reasons(wide)}")
        return notes + self.source.notes()


def stored_name(codes: str) -> str:
    """Return the name of a code type in the table of matmuls: unsigned types use the signed name."""
    return BY_NUMPY[codes.removeprefix(_UNSIGNED)].name


def _on_threads(work: Callable[[Any], Any], runs: Iterable[Any]) -> Iterator[Any]:
    """Apply ``work`` to arrays, in order, on several threads."""
    return in_order(lambda _, rows: work(rows), map(UnreadRows.of, runs))


def _reasons(why: Mapping[str, str]) -> str:
    """Join the first few weights with their reasons."""
    return listed([f"{name}: {reason}" for name, reason in why.items()], _LISTED, "; ")
