"""What ``--precision`` stands for: a table of types for weights, activations, caches, head, router and drafter."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ...graphs.lowering import TENSORRT, Lowering

if TYPE_CHECKING:
    from ...graphs.trace import Dtype
    from ..checkpoints.checkpoint import Checkpoint

DTYPES: Mapping[str, Dtype] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
LM_HEAD: Literal["lm_head"] = "lm_head"
DRAFTER_ROLE: Literal["drafter"] = (
    "drafter"  # of the drafter's matrices: stored as a type says, and what enters them stays wide
)
ALLOWED_WIDE = ("experts",)  # what --allow-wide can name: roles whose products may be wider than their type says
LAYER_TYPES = ("fp8",)  # that TensorRT's own layer of routed experts multiplies in
EMULATED = ("fp8", "mxfp8")  # types that ONNX Runtime has no arithmetic for
STORED = "stored"  # of a recorded table: what a GGUF file held before the recipe
MULTIPLIED = "multiplied"  # of a recorded table: what is to be said before all else, where products are not as named
SHARE = 0.9
_AT_RUN_TIME = "int8 at run time"  # ONNX Runtime's kernels for integer weights round what enters them themselves


@dataclass(frozen=True)
class Recipe:
    """Types by name (``fp32 fp16 bf16 fp8 mxfp8 int8 int4``).

    ``weights`` are the matrices of attention and MLP, ``activations`` what they are multiplied with, ``experts`` and
    ``expert_activations`` the same of routed experts. ``wide`` is everything else, and what flows between layers.
    ``exclude`` are patterns of modules that stay wide all the same. A build that multiplies less than ``share`` of what
    the recipe quantizes in the type that it names has failed, but for the roles ``allow_wide``.
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
    exclude: tuple[str, ...] = field(default=())
    allow_wide: tuple[str, ...] = field(default=())

    @property
    def dtype(self) -> Dtype:
        """The type that graphs are traced in."""
        return DTYPES[self.wide]

    @property
    def title(self) -> str:
        """The quantized type, for people."""
        return (self.quantized_type or "").upper()

    @property
    def quantized_type(self) -> str | None:
        """The type of the matrices that are quantized, or of the lm_head if it alone is."""
        return next((kind for kind in (self.weights, self.lm_head) if kind != self.wide), None)

    @property
    def is_quantized(self) -> bool:
        """Whether anything at all, the drafter and the caches included, is of another type than the rest."""
        return self.quantized_type is not None or not self.drafter == self.kv_cache == self.wide

    @property
    def quantized_types(self) -> frozenset[str]:
        """The types of all matrices that are quantized."""
        return frozenset(self.precision(role) for role in self.quantized_roles)

    @property
    def quantized_roles(self) -> frozenset[str]:
        """The roles of the matrices that are quantized (``graphs.targets.weight_roles``)."""
        return frozenset(role for role in _ROLES if self.precision(role) != self.wide)

    def precision(self, role: str) -> str:
        """The type that weights of a role are stored in."""
        if role == DRAFTER_ROLE:
            return self.drafter
        return str(getattr(self, _ROLES[role])) if role in _ROLES else self.wide

    def cache_type(self, half: str) -> str:
        """The type that a half's keys and values are kept in; FP8 ones are the target's, calibrated, alone."""
        return self.wide if half == "drafter" and self.kv_cache == "fp8" else self.kv_cache

    def on(self, wide: str, lowering: Lowering = TENSORRT) -> Recipe:
        """The recipe over another wide type, which the drafter and the caches have too, as ``lowering`` computes it."""
        recipe = self
        if self.quantized_type and wide != self.wide:
            moved: dict[str, Any] = {name: wide for name in _FIELDS if getattr(self, name) == self.wide}
            recipe = replace(self, **moved, says=self.says.replace(self.wide, wide))
        if lowering.has_expert_layer and recipe.experts not in LAYER_TYPES:
            return replace(recipe, expert_activations=recipe.wide)
        return recipe if lowering.is_tensorrt else recipe._on_onnxruntime(kernels=lowering.has_kernels)

    def _on_onnxruntime(self, *, kernels: bool) -> Recipe:
        """The recipe for ONNX Runtime; without kernels for integers weights are scaled first and multiplied wide."""
        if self.weights not in INTEGERS:
            return self
        codes = INTEGERS[self.weights]
        if not kernels:
            says = f"{codes} in blocks, multiplied wide{_rest(self.wide)}"
            return replace(self, activations=self.wide, expert_activations=self.wide, says=says)
        says = (
            f"{codes} in blocks, inputs rounded to int8 at run time, for the matrices of attention, mlp and experts; "
            f"lm_head, and an embedding that is its matrix, in {_LM_HEAD} so; any other embedding, router, norms, "
            f"biases, sinks and the KV cache stay {self.wide}"
        )
        return replace(self, activations=_AT_RUN_TIME, expert_activations=_AT_RUN_TIME, lm_head=_LM_HEAD, says=says)

    @classmethod
    def recorded(cls, table: Mapping[str, str], wide: str) -> Recipe:
        """The recipe that a recorded table is of, over its ``wide`` type; what tables do not keep is as by default."""
        kinds: dict[str, Any] = {name: table.get(name, wide) for name in _FIELDS} | {"wide": wide}
        allowed = tuple(filter(None, table.get("allow_wide", "").split(",")))
        return cls(table.get("recipe", ""), **kinds, exclude=patterns(table), allow_wide=allowed)

    def of_drafter(self) -> Recipe:
        """The table of the drafter's own graph: matrices in ``drafter``, what they are multiplied with wide."""
        table: dict[str, Any] = dict.fromkeys(_FIELDS, self.wide)
        kind = self.drafter
        return Recipe(**table | {"name": kind, "drafter": kind, "share": 0.0 if kind == self.wide else SHARE})

    def record(self) -> dict[str, str]:
        """The table, as the manifest of an engine keeps it; ``patterns`` reads what is excluded."""
        fields = _FIELDS if self.is_quantized else _UNIFORM_FIELDS
        table = {"recipe": self.name} | {name: getattr(self, name) for name in fields if name != "wide"}
        table |= {"exclude": json.dumps(self.exclude)} if self.exclude else {}
        return table | ({"allow_wide": ",".join(self.allow_wide)} if self.allow_wide else {})


def rows_of(record: Mapping[str, str]) -> list[tuple[str, str]]:
    """A recorded table as rows for people, its recipe first."""
    named = {"recipe": record.get("recipe", "")} | {
        name: kind for name, kind in record.items() if name not in _SAID_APART
    }
    named |= {"exclude": ", ".join(patterns(record))} if "exclude" in record else {}
    return [(name.replace("_", " "), kind) for name, kind in named.items()]


def in_words(record: Mapping[str, str]) -> str:
    """A recorded table in one line: one word where all is of one type, else what is of which."""
    by_type: dict[str, list[str]] = {}
    for name, kind in rows_of(record):
        if name not in _NOT_TYPES:
            by_type.setdefault(kind, []).append(name)
    if len(by_type) == 1:
        return record["recipe"]
    return f"{record['recipe']}: " + "; ".join(f"{', '.join(names)} in {kind}" for kind, names in by_type.items())


def first_words(record: Mapping[str, str]) -> str:
    """What is said before all else of an engine in a recorded table; empty where it multiplies as the table says."""
    return record.get(MULTIPLIED, "")


def patterns(record: Mapping[str, str]) -> tuple[str, ...]:
    """The patterns of a recorded table. Commas stood between them before they were a list, and stand in some."""
    recorded = record.get("exclude", "")
    try:
        return tuple(json.loads(recorded))
    except ValueError:
        return tuple(recorded.split(", ")) if recorded else ()


_SAID_APART = (MULTIPLIED, STORED)
_ROLES: Mapping[str, str] = {
    "attention": "weights", "mlp": "weights", "experts": "experts", "lm_head": "lm_head", "router": "router",
}  # fmt: skip
_UNIFORM_FIELDS = ("weights", "activations", "kv_cache", "lm_head", "drafter")
_FIELDS = ("wide", *_UNIFORM_FIELDS, "experts", "expert_activations", "router")
_NOT_TYPES = ("recipe", "exclude", "allow wide", "calibration")  # of a recorded table
INTEGERS = {"int8": "8-bit integers", "int4": "4-bit integers"}
_LM_HEAD = "int8"  # of integer recipes on ONNX Runtime, of four bits as well: its errors are the logits' own


def _uniform(name: str, says: str) -> Recipe:
    every: dict[str, Any] = dict.fromkeys(_FIELDS, name)
    return Recipe(name=name, says=says, **every)


def _quantized(name: str, how: str, **others: str) -> Recipe:
    kinds: dict[str, Any] = {"weights": name, "experts": name, **others}
    return replace(_uniform("bf16", f"{how}{_rest('bf16')}"), name=name, share=SHARE, **kinds)


def _rest(wide: str) -> str:
    return (
        ", for the matrices of attention, mlp and experts; embedding, lm_head, router, norms, biases, sinks and "
        f"the KV cache stay {wide}"
    )


RECIPES: Mapping[str, Recipe] = {
    "fp32": _uniform("fp32", "every weight and the KV cache in fp32"),
    "fp16": _uniform("fp16", "every weight and the KV cache in fp16; none stays wider"),
    "bf16": _uniform("bf16", "every weight and the KV cache in bf16; none stays wider"),
    "fp8": _quantized("fp8", "E4M3 with calibrated inputs", activations="fp8", expert_activations="fp8"),
    "mxfp8": _quantized("mxfp8", "E4M3 in blocks of 32 with a power of two each, inputs as well", activations="mxfp8"),
    "int8": _quantized("int8", "8-bit integers with calibrated inputs", activations="int8", expert_activations="int8"),
    "int4": _quantized("int4", "4-bit integers in blocks, multiplied wide"),
}


def emulated(recipe: Recipe, lowering: Lowering) -> list[str]:
    """Notes on types that a CPU has no arithmetic for, to be said before all else."""
    kinds = sorted({*recipe.quantized_types, recipe.drafter} & {*EMULATED})
    if lowering.is_tensorrt or not kinds:
        return []
    titles = " or ".join(kinds).upper()
    return [
        f"{' and '.join(kinds)} is emulated here: 0% of the weights are multiplied in {titles}; numbers are rounded to "
        f"it and multiplied in {recipe.wide}, which tells what it costs in accuracy and makes nothing faster"
    ]


def widened(recipe: Recipe, target: Checkpoint) -> list[str]:
    """Notes on a checkpoint whose FP8 weights a recipe does not keep."""
    stored = sum(target.fp8(name) is not None for name in target.tensors)
    if recipe.quantized_type or recipe.wide == "fp32" or not stored:
        return []
    return [
        f"{stored} tensors that the checkpoint stores in FP8 were widened to {recipe.wide}; --precision fp8 does not"
    ]


def twice_rounded(recipe: Recipe, target: Checkpoint, again: Sequence[str]) -> list[str]:
    """Notes on a checkpoint whose numbers were rounded before, and which a recipe rounds once more.

    ``again``: the types of a GGUF file that are not taken as they are stored.
    """
    if again and (recipe.quantized_roles or recipe.wide != "fp32"):
        which = " and ".join(again)
        told = "; build_report.json says of each tensor how far that moved it" if recipe.quantized_type else ""
        return [
            f"{target.source.name} holds weights that were rounded already, to {which}: {recipe.name} rounds them a "
            f"second time{told}"
        ]
    if recipe.experts == recipe.wide or "mxfp4" not in target.format.lower():
        return []
    return [
        f"the checkpoint's experts are MXFP4 already and are rounded a second time, to {recipe.experts}; "
        "build_report.json says of each tensor how far that moved it"
    ]


def wide_type(target: Checkpoint) -> str:
    """The type of what is not quantized in a target: BF16 where its checkpoint has any, else FP16."""
    return "bf16" if "BF16" in {tensor.entry.dtype for tensor in target.tensors.values()} else "fp16"
