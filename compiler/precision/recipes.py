"""What ``--precision`` stands for: a table of types for weights, activations, caches, head, router and drafter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ...graphs.lowering import TENSORRT, Lowering
from ...plugins.number_formats import (
    BF16,
    FP16,
    FP32,
    NUMBER_FORMATS,
    IntegerKernels,
    NumberFormat,
    format_stored_as,
    kernels_of,
)
from ...plugins.number_types import BFLOAT16, E4M3

if TYPE_CHECKING:
    from ...graphs.trace import Dtype
    from ..checkpoints.checkpoint import Checkpoint

DTYPES: Mapping[str, Dtype] = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
LM_HEAD: Literal["lm_head"] = "lm_head"
DRAFTER_ROLE: Literal["drafter"] = (
    "drafter"  # of the drafter's matrices: stored as a type says, and what enters them stays wide
)
ALLOWED_WIDE = ("experts",)  # what --allow-wide can name: roles whose products may be wider than their type says
STORED = "stored"  # of a recorded table: what a GGUF file held before the recipe
MULTIPLIED = "multiplied"  # of a recorded table: what is to be said before all else, where products are not as named
SHARE = 0.9
_AT_RUN_TIME = "int8 at run time"  # ONNX Runtime's kernels for integer weights round what enters them themselves


@dataclass(frozen=True)
class Recipe:
    """Number formats by name (``plugins.number_formats``).

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
        """The type that a half's keys and values are kept in; calibrated ones are the target's alone."""
        return self.wide if half == "drafter" and self.calibrates_caches else self.kv_cache

    @property
    def calibrates_caches(self) -> bool:
        """Whether the target's keys and values are kept as codes of measured scales."""
        return is_calibrated_cache(self.kv_cache)

    def on(self, wide: str, lowering: Lowering = TENSORRT) -> Recipe:
        """The recipe over another wide type, which the drafter and the caches have too, as ``lowering`` computes it."""
        recipe = self
        if self.quantized_type and wide != self.wide:
            moved: dict[str, Any] = {name: wide for name in _FIELDS if getattr(self, name) == self.wide}
            recipe = replace(self, **moved, says=self.says.replace(self.wide, wide))
        if lowering.has_expert_layer and not _in_expert_layer(recipe.experts):
            return replace(recipe, expert_activations=recipe.wide)
        kernels = None if lowering.is_tensorrt else kernels_of(recipe.weights)
        return recipe._with_kernels(kernels, has=lowering.has_kernels) if kernels else recipe

    def _with_kernels(self, kernels: IntegerKernels, *, has: bool) -> Recipe:
        """The recipe for kernels of a CPU; a lowering that has none scales weights first, and multiplies them wide."""
        if not has:
            says = f"{kernels.codes} in blocks, multiplied wide{_rest(self.wide)}"
            return replace(self, activations=self.wide, expert_activations=self.wide, says=says)
        says = (
            f"{kernels.codes} in blocks, inputs rounded to int8 at run time, for the matrices of attention, mlp and "
            f"experts; lm_head, and an embedding that is its matrix, in {kernels.lm_head} so; any other embedding, "
            f"router, norms, biases, sinks and the KV cache stay {self.wide}"
        )
        at_run_time = replace(self, activations=_AT_RUN_TIME, expert_activations=_AT_RUN_TIME)
        return replace(at_run_time, lm_head=kernels.lm_head, says=says)

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


def _recipe_of(kind: NumberFormat) -> Recipe:
    """The table that the name of a format stands for, over BF16 where it is quantized."""
    wide = BF16.name if kind.is_quantized else kind.name
    every: dict[str, Any] = dict.fromkeys(_FIELDS, wide)
    if not kind.is_quantized:
        return Recipe(name=kind.name, says=kind.says, **every)
    every |= {"weights": kind.name, "experts": kind.name}
    every |= {"activations": kind.name} if kind.rounds_inputs else {}
    every |= {"expert_activations": kind.name} if kind.rounds_expert_inputs else {}
    return Recipe(name=kind.name, says=f"{kind.says}{_rest(wide)}", share=SHARE, **every)


def _rest(wide: str) -> str:
    return (
        ", for the matrices of attention, mlp and experts; embedding, lm_head, router, norms, biases, sinks and "
        f"the KV cache stay {wide}"
    )


class _Recipes(Mapping[str, Recipe]):
    """The recipes by name: one for each number format of the table, as it is when they are asked for."""

    def __getitem__(self, name: str) -> Recipe:
        return _recipe_of(NUMBER_FORMATS[name])

    def __iter__(self) -> Iterator[str]:
        return iter(NUMBER_FORMATS)

    def __len__(self) -> int:
        return len(NUMBER_FORMATS)


RECIPES: Mapping[str, Recipe] = _Recipes()


def is_emulated_format(name: str | None) -> bool:
    """Whether ONNX Runtime has no arithmetic for the format of that name, and multiplies rounded numbers wide."""
    return name in NUMBER_FORMATS and NUMBER_FORMATS[name].is_emulated


def is_calibrated_cache(name: str | None) -> bool:
    """Whether caches in the format of that name are codes of a scale for each layer that has to be measured."""
    caches = NUMBER_FORMATS[name].caches if name in NUMBER_FORMATS else None
    return caches is not None and caches.calibrated


def _in_expert_layer(name: str) -> bool:
    """Whether TensorRT's own layer of routed experts multiplies in the format of that name."""
    on = NUMBER_FORMATS[name].tensorrt
    return on is not None and on.expert_layer


def emulated(recipe: Recipe, lowering: Lowering) -> list[str]:
    """Notes on types that a CPU has no arithmetic for, to be said before all else."""
    kinds = sorted(filter(is_emulated_format, {*recipe.quantized_types, recipe.drafter}))
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
    own = format_stored_as(E4M3.safetensors)
    if recipe.quantized_type or recipe.wide == FP32.name or not stored or own is None:
        return []
    return [
        f"{stored} tensors that the checkpoint stores in {own.title} were widened to {recipe.wide}; "
        f"--precision {own.name} does not"
    ]


def twice_rounded(recipe: Recipe, target: Checkpoint, again: Sequence[str]) -> list[str]:
    """Notes on a checkpoint whose numbers were rounded before, and which a recipe rounds once more.

    ``again``: the types of a GGUF file that are not taken as they are stored.
    """
    if again and (recipe.quantized_roles or recipe.wide != FP32.name):
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
    stored = {tensor.entry.dtype for tensor in target.tensors.values()}
    return (BF16 if BFLOAT16.safetensors in stored else FP16).name
