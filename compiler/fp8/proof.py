"""Whether a recipe took effect: read from the lowered graph, held against what the recipe declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ...plugins.errors import BuildError
from .weights import ROUNDED, Fp8Weights

if TYPE_CHECKING:
    from ...graphs.fp8 import Matmul, SharedInput
    from ...graphs.lowering import Lowered

_E4M3 = "float8e4m3fn"
_LISTED = 8


@dataclass
class Narrowed:
    """A target's graphs with FP8 weights. ``reasons`` say of weights that should be FP8 why they are not."""

    weights: Fp8Weights
    reasons: Mapping[str, str]
    shared: Sequence[SharedInput]
    found: Sequence[Matmul] = field(default=())

    def prove(self, lowered: Lowered) -> frozenset[str]:
        """The weights to be streamed as codes. Raises ``BuildError`` if less than the recipe's share became FP8."""
        from ...graphs.fp8 import FP8, matmuls

        self.found = matmuls(lowered.model)
        recipe, share, wide = self.weights.recipe, self.share, self.wide
        if share < recipe.share:
            raise BuildError(
                f"{share:.1%} of the weights that --precision {recipe.name} narrows are FP8 in the graph, "
                f"{recipe.share:.0%} is the least that may be called so",
                why=_listed(wide) or "the target has no such weights",
                fix=f"use a checkpoint that holds them in FP8, or build in {recipe.wide}",
            )
        return frozenset(part for weight in lowered.weights if weight.dtype == FP8 for part in weight.parts)

    @property
    def share(self) -> float:
        """Of the weights that the recipe narrows, those that the lowered graph multiplies as the recipe says."""
        wanted = self.weights.wanted
        total = sum(weight.count for weight in wanted.values())
        return 1 - sum(wanted[name].count for name in self.wide) / total if total else 0.0

    @property
    def wide(self) -> dict[str, str]:
        """The others, and why."""
        effective = {each.weight for each in self.found if self._takes_effect(each)}
        lost = "the lowered graph multiplies it wide"
        return {name: self.reasons.get(name, lost) for name in self.weights.wanted if name not in effective}

    def record(self) -> dict[str, Any]:
        """What the report says. Call it when the weights are written: only then is known what re-scaling cost."""
        wide = self.wide
        rescaled = {name: round(loss.relative, 6) for name, loss in sorted(self.weights.losses.items())}
        return {
            "recipe": self.weights.recipe.record(),
            "share": round(self.share, 6),
            "least_share": self.weights.recipe.share,
            "matmuls": [
                asdict(each) | ({"why": wide[each.weight]} if each.weight in wide else {}) for each in self.found
            ],
            "shared_inputs": [asdict(each) for each in self.shared],
            "rescaled": rescaled,
            "notes": self._notes(rescaled, wide),
        }

    def _takes_effect(self, found: Matmul) -> bool:
        weight = self.weights.wanted.get(found.weight)
        if weight is None or found.stored != _E4M3:
            return False
        return found.computed == _E4M3 or weight.role not in ROUNDED

    def _notes(self, rescaled: Mapping[str, float], wide: Mapping[str, str]) -> list[str]:
        notes, recipe = [], self.weights.recipe
        if any(weight.role == "experts" for weight in self.weights.wanted.values()):
            notes.append(f"routed experts are stored in FP8 and multiplied in {recipe.wide}")
        if wide:
            notes.append(f"{len(wide)} weights that {recipe.name} narrows stay {recipe.wide}: {_listed(wide)}")
        if rescaled:
            name, error = max(rescaled.items(), key=lambda item: item[1])
            notes.append(
                f"{len(rescaled)} tensors have one scale for each row where the checkpoint has one for each block; "
                f"the relative error is {error:.2%} at most ({name})"
            )
        if any(name.endswith((".k_scale", ".v_scale")) for name in self.weights.checkpoint.companions):
            notes.append(f"the checkpoint's scales for an FP8 KV cache are not used: it stays {recipe.kv_cache}")
        return notes


def _listed(why: Mapping[str, str]) -> str:
    lines = [f"{name}: {reason}" for name, reason in why.items()]
    return "; ".join(lines[:_LISTED]) + (f"; and {len(lines) - _LISTED} more" if len(lines) > _LISTED else "")
