"""Whether a recipe took effect: read from the lowered graph, held against what the recipe declares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...plugins.errors import BuildError
from ...plugins.numbers import BY_NUMPY
from ...plugins.problems import listed
from .recipes import DRAFTER_ROLE, HEAD

if TYPE_CHECKING:
    import onnx_ir as ir

    from ...graphs.lowering import Lowered, Lowering
    from ...graphs.rounding import Matmul, Narrowing, NarrowWeight
    from ...graphs.rounding.weight import Stream
    from .source import WeightSource

_LISTED = 8
_UNSIGNED, _KERNELS = ("uint8", "uint4"), ("MatMulNBits", "QMoE")  # what ONNX Runtime's kernels read, and they
_UNREAD = (
    "ONNX Runtime has no kernel that reads it so, and would widen it at load; of routed experts it takes both stacks "
    "or none"
)
# How ``matmuls`` calls what is stored as these codes.
STORED = {name: BY_NUMPY[name.removeprefix("u")].name for name in ("float8_e4m3fn", "int8", "uint8", "int4", "uint4")}


@dataclass
class Narrowed:
    """Graphs of one target or drafter with narrow weights. ``reasons`` say why weights that should be narrow are not.

    ``streams`` are the initializers that take their values from the source.
    """

    source: WeightSource
    taken: Mapping[str, NarrowWeight]
    reasons: Mapping[str, str]
    made: Narrowing
    found: Sequence[Matmul] = field(default=())
    _parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    _kernels: bool = False

    @classmethod
    def of(cls, source: WeightSource, *models: ir.Model) -> Narrowed:
        """Rewrite semantic graphs, all of the same, in place."""
        from ...graphs.rounding import narrow

        taken, wide = source.storage()
        results = [narrow(model, taken) for model in models]
        return cls(source, taken, wide | dict(results[0].refused), results[0])

    @property
    def streams(self) -> Mapping[str, Stream]:
        """By the name of the initializer."""
        return self.made.streams

    def read(self, name: str, shape: tuple[int, ...]) -> Iterator[Any]:
        """The values of one of ``streams``; ``shape`` is that of the weight."""
        stream = self.streams[name]
        return (self.source.scales if stream.scales else self.source.codes)(stream.weight, shape)

    def prove(self, lowered: Lowered, lowering: Lowering) -> None:
        """Raise ``BuildError`` if less than the recipe's share became narrow, or a head that was asked for did not."""
        from ...graphs.rounding import matmuls

        self.found = matmuls(lowered.model)
        self._parts = {weight.name: weight.parts for weight in lowered.weights}
        self._kernels = lowering.has_kernels
        selection, share, wide = self.source.selection, self.share, self.wide
        recipe = selection.recipe
        roles = {name: weight.role for name, weight in selection.weights.items()}
        head = next((why for name, why in wide.items() if roles[name] == HEAD), "")
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
            why=reasons(wide) or "there are no such weights",
            fix=f"name those with --exclude, so that they do not count, or build in {recipe.wide}",
        )

    @property
    def share(self) -> float:
        """Of the weights that the recipe narrows, those that the lowered graph multiplies as the recipe says."""
        return self.source.selection.share_without(self.wide)

    @property
    def wide(self) -> dict[str, str]:
        """The others, and why."""
        effective = {name for each in self.found for name in self._weights(each) if self._takes_effect(each, name)}
        lost = _UNREAD if self._kernels else "the lowered graph multiplies it wide"
        return {name: self.reasons.get(name, lost) for name in self.source.selection.weights if name not in effective}

    def record(self) -> dict[str, Any]:
        """What the report says. Call it when the weights are written: only then is known what re-scaling cost."""
        wide, selection = self.wide, self.source.selection
        return {
            "recipe": selection.recipe.record(),
            "share": round(self.share, 6),
            "least_share": selection.recipe.share,
            "numbers": selection.count,
            "matmuls": [asdict(each) | self._of(each, wide) for each in self.found],
            "shared_inputs": [asdict(each) for each in self.made.shared],
            "losses": {name: round(loss, 6) for name, loss in sorted(self.source.losses.items())},
            "notes": self._notes(wide),
        }

    def _weights(self, found: Matmul) -> list[str]:
        """Those of a product: several where linears were packed into one."""
        parts = self._parts.get(found.weight, (found.weight,))
        return [self.streams[part].weight if part in self.streams else part for part in parts]

    def _takes_effect(self, found: Matmul, name: str) -> bool:
        weight, how = self.source.selection.weights.get(name), self.taken.get(name)
        if weight is None or how is None or found.stored != STORED[how.codes]:
            return False
        if self._kernels and how.codes in _UNSIGNED:
            return found.op in _KERNELS
        return how.input is None or found.computed == STORED[how.input.codes]

    def _of(self, found: Matmul, wide: Mapping[str, str]) -> dict[str, Any]:
        """What the weights of a product are for, whether they count as narrow, and why some of them do not."""
        every, selection = self._weights(found), self.source.selection
        wanted, others = selection.weights, selection.wide
        roles = [each.role for name in every if (each := wanted.get(name) or others.get(name))]
        whys = [wide[name] if name in wide else others[name].why for name in every if name in wide or name in others]
        why = "; ".join(dict.fromkeys(filter(None, whys)))
        narrow = any(name in wanted for name in every) and not why
        return {"role": roles[0] if roles else "", "narrow": narrow} | ({"why": why} if why else {})

    def _notes(self, wide: Mapping[str, str]) -> list[str]:
        notes, selection = [], self.source.selection
        recipe = selection.recipe
        experts = {n for n, weight in selection.weights.items() if weight.role == "experts" and n not in wide}
        if any(each.computed == recipe.dtype and experts.intersection(self._weights(each)) for each in self.found):
            notes.append(f"routed experts are stored in {recipe.title} and multiplied in {recipe.wide}")
        if wide:
            stay = "s that {} narrows stay" if len(wide) > 1 else " that {} narrows stays"
            notes.append(f"{len(wide)} weight{stay.format(recipe.name)} {recipe.wide}: {reasons(wide)}")
        return notes + self.source.notes()


def reasons(why: Mapping[str, str]) -> str:
    """The first few weights, each with its reason."""
    return listed([f"{name}: {reason}" for name, reason in why.items()], _LISTED, "; ")
