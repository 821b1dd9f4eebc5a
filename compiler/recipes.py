"""What ``--precision`` stands for: a table of types for weights, activations, caches, head, router and drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..plugins.errors import UsageError
from .precisions import DTYPES

if TYPE_CHECKING:
    from ..graphs.trace import Dtype
    from .checkpoint import Checkpoint

FP8_SINCE = 89  # SM: the first with tensor cores for it


@dataclass(frozen=True)
class Recipe:
    """Types by name (``fp32 fp16 bf16 fp8``).

    ``weights`` are the matrices of attention and MLP, ``activations`` what they are multiplied with, ``experts`` and
    ``expert_activations`` the same of routed experts. ``wide`` is everything else, and what flows between layers.
    A build whose graph stores less than ``share`` of what the recipe narrows in the type that it names has failed.
    """

    name: str
    wide: str
    weights: str
    activations: str
    experts: str
    expert_activations: str
    kv_cache: str
    lm_head: str
    router: str
    drafter: str
    share: float = 0.0
    says: str = ""

    @property
    def dtype(self) -> Dtype:
        """What graphs are traced in."""
        return DTYPES[self.wide]

    @property
    def narrow(self) -> str:
        """The type of the matrices that are narrower than the rest; empty for none."""
        return "" if self.weights == self.wide else self.weights

    @property
    def narrow_roles(self) -> frozenset[str]:
        """The roles of those matrices (``graphs.census``)."""
        return frozenset(role for role in _ROLES if self.precision(role) != self.wide)

    def precision(self, role: str) -> str:
        """What weights of a role are stored in."""
        return str(getattr(self, _ROLES[role])) if role in _ROLES else self.wide

    def on(self, wide: str) -> Recipe:
        """The same over another wide type, which the drafter and the caches have too."""
        if not self.narrow or wide == self.wide:
            return self
        moved: dict[str, Any] = {name: wide for name in _FIELDS if getattr(self, name) == self.wide}
        return replace(self, **moved, says=self.says.replace(self.wide, wide))

    def record(self) -> dict[str, str]:
        """The table, as the manifest of an engine keeps it."""
        fields = _FIELDS if self.narrow else _UNIFORM_FIELDS
        return {"recipe": self.name} | {name: getattr(self, name) for name in fields if name != "wide"}


_ROLES: Mapping[str, str] = {
    "attention": "weights", "mlp": "weights", "experts": "experts", "lm_head": "lm_head", "router": "router",
}  # fmt: skip
_UNIFORM_FIELDS = ("weights", "activations", "kv_cache", "lm_head", "drafter")
_FIELDS = ("wide", *_UNIFORM_FIELDS, "experts", "expert_activations", "router")


def _uniform(name: str, says: str) -> Recipe:
    every: dict[str, Any] = dict.fromkeys(_FIELDS, name)
    return Recipe(name=name, says=says, **every)


RECIPES: Mapping[str, Recipe] = {
    "fp32": _uniform("fp32", "every weight and the KV cache in fp32"),
    "fp16": _uniform("fp16", "every weight and the KV cache in fp16; none stays wider"),
    "bf16": _uniform("bf16", "every weight and the KV cache in bf16; none stays wider"),
    "fp8": replace(
        _uniform(
            "bf16",
            "E4M3 for the matrices of attention, mlp and experts; embedding, lm_head, router, norms, biases, sinks "
            "and the KV cache stay bf16",
        ),
        name="fp8",
        weights="fp8",
        activations="fp8",
        experts="fp8",
        share=0.9,
    ),
}


def require_gpus(precision: str | None, gpus: Sequence[str]) -> None:
    """Raise ``UsageError`` for a precision that one of the GPUs (``sm_120``) has no arithmetic for."""
    if precision is None or not RECIPES[precision].narrow:
        return
    lacking = [gpu for gpu in gpus if int(gpu.removeprefix("sm_")) < FP8_SINCE]
    if lacking:
        raise UsageError(
            f"the precision {precision!r} is not available on {', '.join(lacking)}",
            why=f"GPUs multiply in FP8 from sm_{FP8_SINCE} on",
            fix="use --precision bf16 or fp16 there, or build for another GPU, for example --gpu sm_120",
        )


def widened(recipe: Recipe, target: Checkpoint) -> list[str]:
    """What to tell of a checkpoint whose FP8 weights a recipe does not keep."""
    narrow = sum(target.fp8(name) is not None for name in target.tensors)
    if recipe.narrow or recipe.wide == "fp32" or not narrow:
        return []
    return [
        f"{narrow} tensors that the checkpoint stores in FP8 were widened to {recipe.wide}; --precision fp8 does not"
    ]


def wide_type(target: Checkpoint) -> str:
    """What a target computes in that is not narrowed: BF16 where its checkpoint has any, else FP16."""
    return "bf16" if "BF16" in {tensor.entry.dtype for tensor in target.tensors.values()} else "fp16"
