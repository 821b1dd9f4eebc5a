"""Whether a recipe took effect.

The products of the lowered graph are held against what the recipe declares, and those of a plan against the graph's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...plugins.errors import BuildError
from ...plugins.number_types import BY_NUMPY
from ...plugins.problems import listed
from .product_table import BuiltProduct
from .recipes import DRAFTER_ROLE, LM_HEAD

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...graphs.lowering import Lowered, Lowering
    from ...graphs.quantization import GraphProduct, Quantization, QuantizedWeight
    from ...graphs.quantization.quantized_weight import WeightStream
    from .weight_source import WeightSource

_LISTED = 8
_UNSIGNED, _KERNELS = ("uint8", "uint4"), ("MatMulNBits", "QMoE")  # what ONNX Runtime's kernels read, and they
_EXPERTS = "experts"
_UNPROVEN = ("inspector",)  # its answers were never seen on hardware: what they deny is told, and fails nothing
_UNREAD = (
    "ONNX Runtime has no kernel that reads it so, and would widen it at load; of routed experts it takes both stacks "
    "or none"
)
# How products of a graph call what is stored as these codes.
STORED = {name: BY_NUMPY[name.removeprefix("u")].name for name in ("float8_e4m3fn", "int8", "uint8", "int4", "uint4")}


@dataclass
class QuantizedGraphs:
    """Graphs of one target or drafter with quantized weights. ``reasons`` say why weights that should be so are not.

    ``streams`` are the initializers that take their values from the source.
    """

    source: WeightSource
    taken: Mapping[str, QuantizedWeight]
    reasons: Mapping[str, str]
    rewrite: Quantization
    products: Sequence[GraphProduct] = field(default=())
    _parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _kernels: bool = False

    @classmethod
    def of(cls, source: WeightSource, *models: ir.Model) -> QuantizedGraphs:
        """Rewrite copies of one semantic graph in place."""
        from ...graphs.quantization import quantize

        taken, wide = source.storage()
        results = [quantize(model, taken) for model in models]
        return cls(source, taken, wide | dict(results[0].refused), results[0])

    @property
    def streams(self) -> Mapping[str, WeightStream]:
        """The initializers that take their values from the source, by name."""
        return self.rewrite.streams

    def read(self, name: str, shape: tuple[int, ...]) -> Iterator[Any]:
        """Read the values of one of ``streams``; ``shape`` is that of the weight."""
        stream = self.streams[name]
        return (self.source.scales if stream.scales else self.source.codes)(stream.weight, shape)

    def prove(self, lowered: Lowered, lowering: Lowering) -> None:
        """Raise ``BuildError`` if less than the recipe's share is quantized, or an asked-for lm_head is not."""
        from ...graphs.quantization import products_of

        self.products = products_of(lowered.model)
        self._parts = {weight.name: weight.parts for weight in lowered.weights}
        self._kernels = lowering.has_kernels
        selection, share, wide = self.source.selection, self.share, self.wide
        recipe = selection.recipe
        roles = {name: weight.role for name, weight in selection.weights.items()}
        head = next((why for name, why in wide.items() if roles[name] == LM_HEAD), "")
        if share >= recipe.share and not head:
            return
        flag = "--draft-precision" if DRAFTER_ROLE in roles.values() else "--precision"
        if share >= recipe.share:
            raise BuildError(
                f"--lm-head-precision {recipe.lm_head} has no effect", why=head, fix="leave --lm-head-precision out"
            )
        raise BuildError(
            f"{share:.1%} of the weights that {flag} {recipe.name} narrows are {recipe.title} in the graph, "
            f"{recipe.share:.0%} is the least that may be called so",
            why=_reasons(wide) or "there are no such weights",
            fix=f"name those with --exclude, so that they do not count, or build in {recipe.wide}",
        )

    @property
    def share(self) -> float:
        """The share of the weights to quantize that the lowered graph multiplies as the recipe says, by numbers."""
        return self.source.selection.share_without(self.wide)

    @property
    def wide(self) -> dict[str, str]:
        """The weights to quantize that the lowered graph does not multiply so, and why."""
        effective = {name for p in self.products for name in self._weights(p) if self._takes_effect(p, name)}
        lost = _UNREAD if self._kernels else "the lowered graph multiplies it wide"
        return {name: self.reasons.get(name, lost) for name in self.source.selection.weights if name not in effective}

    def record(self) -> dict[str, Any]:
        """Return what the report says.

        Call it when the weights are written: only then is known what re-scaling cost.
        """
        wide, selection = self.wide, self.source.selection
        return {
            "recipe": selection.recipe.record(),
            "share": round(self.share, 6),
            "least_share": selection.recipe.share,
            "numbers": selection.count,
            "matmuls": [asdict(product) | self._use(product, wide) for product in self.products],
            "shared_inputs": [asdict(shared) for shared in self.rewrite.shared],
            "losses": {name: round(loss, 6) for name, loss in sorted(self.source.losses.items())},
            "notes": self._notes(wide),
        }

    def _weights(self, product: GraphProduct) -> list[str]:
        """Name the weights of a product: several where linears were packed into one."""
        parts = self._parts.get(product.weight, (product.weight,))
        return [self.streams[part].weight if part in self.streams else part for part in parts]

    def _takes_effect(self, product: GraphProduct, name: str) -> bool:
        """Whether a product multiplies the weight ``name`` as the recipe says."""
        weight, how = self.source.selection.weights.get(name), self.taken.get(name)
        if weight is None or how is None or product.stored != STORED[how.codes]:
            return False
        if self._kernels and how.codes in _UNSIGNED:
            return product.op in _KERNELS
        return how.input is None or product.computed == STORED[how.input.codes]

    def _use(self, product: GraphProduct, wide: Mapping[str, str]) -> dict[str, Any]:
        """Say what the weights of a product are for, whether they count as quantized, and why some of them do not."""
        every, selection = self._weights(product), self.source.selection
        selected, others = selection.weights, selection.wide
        roles = [weight.role for name in every if (weight := selected.get(name) or others.get(name))]
        whys = [wide[name] if name in wide else others[name].why for name in every if name in wide or name in others]
        why = "; ".join(dict.fromkeys(filter(None, whys)))
        is_quantized = any(name in selected for name in every) and not why
        return {"role": roles[0] if roles else "", "narrow": is_quantized} | ({"why": why} if why else {})

    def _notes(self, wide: Mapping[str, str]) -> list[str]:
        notes, selection = [], self.source.selection
        recipe = selection.recipe
        experts = {n for n, weight in selection.weights.items() if weight.role == _EXPERTS and n not in wide}
        if any(p.computed == recipe.dtype and experts.intersection(self._weights(p)) for p in self.products):
            notes.append(f"routed experts are stored in {recipe.title} and multiplied in {recipe.wide}")
        if wide:
            stay = "s that {} narrows stay" if len(wide) > 1 else " that {} narrows stays"
            notes.append(f"{len(wide)} weight{stay.format(recipe.name)} {recipe.wide}: {_reasons(wide)}")
        return notes + self.source.notes()


def require_effect(name: str, record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> list[str]:
    """Return what to tell of a plan that keeps what its graph promised.

    ``record`` is what ``QuantizedGraphs`` said of the graph, ``built`` TensorRT's own account of the plan's products.

    Raises ``BuildError`` with the weights that are not as they should be, when less than the recipe's share is.
    """
    lost = losses(record, built)
    sure = {name: why for name, why in lost.items() if not any(b.weight == name and b.by in _UNPROVEN for b in built)}
    numbers = {promised["weight"]: promised["numbers"] for promised in record["matmuls"]}
    share = record["share"] - sum(numbers[weight] for weight in sure) / max(record["numbers"], 1)
    recipe = record["recipe"]["recipe"]
    if share < record["least_share"]:
        raise BuildError(
            f"{max(share, 0.0):.1%} of the weights that --precision {recipe} narrows are {recipe.upper()} in the "
            f"{name} plan, {record['least_share']:.0%} is the least that may be called so",
            why=_reasons(sure),
            fix="this version of TensorRT does not take them as they are; build in bf16 or fp16",
        )
    count = f"{len(lost)} weights that {recipe} narrows are" if len(lost) > 1 else f"1 weight that {recipe} narrows is"
    notes = [f"{count} not {recipe.upper()} in the {name} plan: {_reasons(lost)}"] if lost else []
    return notes + _unpacked(name, record, built)


def losses(record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> dict[str, str]:
    """Return what of each quantized weight in the graph is lost in the plan. The worst of its products counts."""
    lost: dict[str, str] = {}
    for promised in record["matmuls"]:
        if not promised["narrow"]:
            continue
        products = [product for product in built if product.weight == promised["weight"]]
        reasons = [_loss(promised, product) for product in products]
        reasons = reasons or ["no layer of TensorRT's network multiplies with it"]
        if why := next(filter(None, reasons), ""):
            lost[promised["weight"]] = why
    return lost


def _loss(promised: Mapping[str, Any], built: BuiltProduct) -> str:
    if built.stored != promised["stored"]:
        return f"TensorRT stores it as {built.stored}"
    if promised["computed"] == promised["stored"] != built.computed:
        return f"TensorRT multiplies it in {built.computed}"
    if built.unpacked and promised["role"] != _EXPERTS:
        return f"TensorRT writes it to memory in {built.computed} before every product"
    return ""


def _unpacked(name: str, record: Mapping[str, Any], built: Sequence[BuiltProduct]) -> list[str]:
    """Tell of routed experts that are widened in memory; they take less room all the same."""
    rows = record["matmuls"]
    experts = {promised["weight"] for promised in rows if promised["narrow"] and promised["role"] == _EXPERTS}
    unpacked = [product for product in built if product.unpacked and product.weight in experts]
    if not unpacked:
        return []
    return [
        f"{len(unpacked)} weights of routed experts are stored in {record['recipe']['experts']}, and written to memory "
        f"in {unpacked[0].computed} before every product of the {name} plan: they take less room, and no less time"
    ]


def _reasons(why: Mapping[str, str]) -> str:
    """Join the first few weights, each with its reason."""
    return listed([f"{name}: {reason}" for name, reason in why.items()], _LISTED, "; ")
