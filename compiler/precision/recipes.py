"""Recipes, the values of ``--precision``: tables of types for weights, activations, caches, head, router, drafter."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from ...graphs.lowering import TENSORRT, Lowering
from ...plugins.number_formats import (
    BF16,
    FP16,
    FP32,
    NUMBER_FORMATS,
    IntegerKernels,
    NumberFormat,
    format_stored_as,
    keeps_blocks,
    kernels_of,
)
from ...plugins.number_types import BFLOAT16, E4M3

if TYPE_CHECKING:
    from ...graphs.trace import Dtype
    from ..checkpoints.checkpoint import Checkpoint

LM_HEAD: Literal["lm_head"] = "lm_head"
EMBEDDING: Literal["embedding"] = "embedding"
DRAFTER_ROLE: Literal["drafter"] = "drafter"  # storage type of the drafter's matrices; their inputs are not quantized
ALLOWED_WIDE = ("experts",)  # values of --allow-wide: roles that may be computed in a wider type than their own
STORED = "stored"  # key of a recorded table: the types in a GGUF file before the recipe
MULTIPLIED = "multiplied"  # key of a recorded table: the first note of reports if matmuls are not in the named type
SHARE = 0.9
_AT_RUN_TIME = "int8 at run time"  # ONNX Runtime's kernels for integer weights quantize their inputs themselves


@dataclass(frozen=True)
class Recipe:
    """A table of number formats by name (``plugins.number_formats``).

    ``weights`` are the matrices of attention and MLP, ``activations`` their inputs, ``experts`` and
    ``expert_activations`` the same for routed experts. ``embedding`` is the type of an embedding that is not the
    lm_head as well. ``wide`` applies to everything else, and between layers.
    ``exclude`` are patterns of modules to leave unquantized. A build fails if it computes less than ``share`` of the
    quantized weights in the recipe's type, except for the roles ``allow_wide``.
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
    embedding: str
    share: float = 0.0
    says: str = ""
    exclude: tuple[str, ...] = field(default=())
    allow_wide: tuple[str, ...] = field(default=())

    @property
    def dtype(self) -> Dtype:
        """The type that graphs are traced in."""
        return cast("Dtype", NUMBER_FORMATS[self.wide].number)

    @property
    def title(self) -> str:
        """The display name of the quantized type."""
        return (self.quantized_type or "").upper()

    @property
    def quantized_type(self) -> str | None:
        """The type of the quantized matrices; of the lm_head, or of the experts, if only these are quantized."""
        return next((kind for kind in (self.weights, self.lm_head, self.experts) if kind != self.wide), None)

    @property
    def is_quantized(self) -> bool:
        """True if anything is quantized, including the drafter and the caches."""
        return self.quantized_type is not None or not self.drafter == self.kv_cache == self.wide

    @property
    def keeps_blocks(self) -> bool:
        """True if some matrices keep the blocks of a file, and so need one that has them."""
        return any(map(keeps_blocks, self.quantized_types))

    @property
    def quantized_types(self) -> frozenset[str]:
        """The types of all quantized matrices."""
        return frozenset(self.precision(role) for role in self.quantized_roles)

    @property
    def quantized_roles(self) -> frozenset[str]:
        """The roles of the quantized matrices (``graphs.targets.weight_roles``)."""
        return frozenset(role for role in _ROLES if self.precision(role) != self.wide)

    def precision(self, role: str) -> str:
        """Return the storage type of weights with a role."""
        if role == DRAFTER_ROLE:
            return self.drafter
        return str(getattr(self, _ROLES[role])) if role in _ROLES else self.wide

    def cache_type(self, component: str) -> str:
        """Return the type of a half's keys and values; only the target's can be calibrated."""
        return self.wide if component == "drafter" and self.calibrates_caches else self.kv_cache

    @property
    def calibrates_caches(self) -> bool:
        """True if the target's keys and values are stored as codes with measured scales."""
        return is_calibrated_cache(self.kv_cache)

    def on(self, wide: str, lowering: Lowering = TENSORRT) -> Recipe:
        """Return the recipe over another wide type, also for drafter and caches, as ``lowering`` computes it."""
        recipe = self
        if self.quantized_type and wide != self.wide:
            moved: dict[str, Any] = {name: wide for name in _FIELDS if getattr(self, name) == self.wide}
            recipe = replace(self, **moved, says=self.says.replace(self.wide, wide))
        if lowering.has_expert_layer and not _in_expert_layer(recipe.experts):
            return replace(recipe, expert_activations=recipe.wide)
        kernels = None if lowering.is_tensorrt else kernels_of(recipe.weights)
        return recipe._with_kernels(kernels, lowering) if kernels else recipe

    def keeping_experts(self, kind: str, lowering: Lowering) -> Recipe:
        """Return the recipe for a checkpoint whose routed experts are stored in blocks of type ``kind``.

        They stay in this type if ``lowering`` has ops for them, regardless of the recipe.
        """
        taken = (each for each in NUMBER_FORMATS.values() if each.as_stored and each.tensorrt)
        own = next(taken, None) if lowering.is_tensorrt and kind in lowering.expert_blocks else None
        if own is None:
            return self
        says = f"{self.says}; but routed experts stay {kind}, as the checkpoint stores them"
        return replace(self, experts=own.name, expert_activations=self.wide, says=says)

    def _with_kernels(self, kernels: IntegerKernels, lowering: Lowering) -> Recipe:
        """Return the recipe for CPU kernels; a lowering without them dequantizes weights and computes in ``wide``."""
        if not lowering.has_kernels:
            says = f"{kernels.codes} in blocks, computed in the wide type{_rest(self.wide)}"
            return replace(self, activations=self.wide, expert_activations=self.wide, says=says)
        says = (
            f"{kernels.codes} in blocks, inputs quantized to int8 at run time, for the matrices of attention, mlp and "
            f"experts; lm_head, and an embedding tied to it, also in {kernels.lm_head}; any other embedding, "
            f"router, norms, biases{_and_caches(lowering, self.wide)}"
        )
        if keeps_blocks(self.weights):
            says = (
                f"{kernels.codes} for the matrices of attention, mlp and experts, lm_head and the embedding, "
                "unchanged, inputs quantized to int8 at run time; matrices in other types, router, norms, biases"
                f"{_and_caches(lowering, self.wide)}"
            )
        caches = lowering.integer_caches or self.kv_cache
        at_run_time = replace(self, activations=_AT_RUN_TIME, expert_activations=_AT_RUN_TIME, kv_cache=caches)
        embedding = kernels.embedding or self.embedding
        return replace(at_run_time, lm_head=kernels.lm_head, embedding=embedding, says=says)

    @classmethod
    def recorded(cls, table: Mapping[str, str], wide: str) -> Recipe:
        """Return the recipe of a recorded table over its ``wide`` type; settings not recorded have their defaults."""
        kinds: dict[str, Any] = {name: table.get(name, wide) for name in _FIELDS} | {"wide": wide}
        allowed = tuple(filter(None, table.get("allow_wide", "").split(",")))
        return cls(table.get("recipe", ""), **kinds, exclude=patterns(table), allow_wide=allowed)

    def of_drafter(self) -> Recipe:
        """The table of the drafter's own graph: matrices in ``drafter``, their inputs not quantized."""
        table: dict[str, Any] = dict.fromkeys(_FIELDS, self.wide)
        kind = self.drafter
        return Recipe(**table | {"name": kind, "drafter": kind, "share": 0.0 if kind == self.wide else SHARE})

    def record(self) -> dict[str, str]:
        """Return the table for the manifest of an engine; ``patterns`` parses the exclusions."""
        fields = _FIELDS if self.is_quantized else _UNIFORM_FIELDS
        left_out = ("wide", "embedding") if self.embedding == self.wide else ("wide",)
        table = {"recipe": self.name} | {name: getattr(self, name) for name in fields if name not in left_out}
        table |= {"exclude": json.dumps(self.exclude)} if self.exclude else {}
        return table | ({"allow_wide": ",".join(self.allow_wide)} if self.allow_wide else {})


def rows_of(record: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return a recorded table as rows for display, its recipe first."""
    precisions = {"recipe": record.get("recipe", "")} | {
        name: kind for name, kind in record.items() if name not in _LISTED_SEPARATELY
    }
    precisions |= {"exclude": ", ".join(patterns(record))} if "exclude" in record else {}
    return [(name.replace("_", " "), kind) for name, kind in precisions.items()]


def in_words(record: Mapping[str, str]) -> str:
    """Return a recorded table in one line: one word if all types are equal, else the parts by type."""
    by_type: dict[str, list[str]] = {}
    for name, kind in rows_of(record):
        if name not in _NOT_TYPES:
            by_type.setdefault(kind, []).append(name)
    if len(by_type) == 1:
        return record["recipe"]
    parts = (
        f"{', '.join(names)} {'as stored in the file' if keeps_blocks(kind) else f'in {kind}'}"
        for kind, names in by_type.items()
    )
    return f"{record['recipe']}: " + "; ".join(parts)


def lead_sentence(record: Mapping[str, str]) -> str:
    """Return the first note of an engine's recorded table; empty if it computes in the types of the table."""
    return record.get(MULTIPLIED, "")


def patterns(record: Mapping[str, str]) -> tuple[str, ...]:
    """Return the patterns of a recorded table. Older tables separate them with commas."""
    recorded = record.get("exclude", "")
    try:
        return tuple(json.loads(recorded))
    except ValueError:
        return tuple(recorded.split(", ")) if recorded else ()


_LISTED_SEPARATELY = (MULTIPLIED, STORED)
_ROLES: Mapping[str, str] = {
    "attention": "weights", "mlp": "weights", "experts": "experts", "lm_head": "lm_head", "router": "router",
    "embedding": "embedding",
}  # fmt: skip
_UNIFORM_FIELDS = ("weights", "activations", "kv_cache", "lm_head", "drafter")
_FIELDS = ("wide", *_UNIFORM_FIELDS, "experts", "expert_activations", "router", "embedding")
_NOT_TYPES = ("recipe", "exclude", "allow wide", "calibration")  # keys of a recorded table


def _recipe_of(kind: NumberFormat) -> Recipe:
    """Return the table for a format's name, over BF16 if it is quantized."""
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


def _and_caches(lowering: Lowering, wide: str) -> str:
    """Return the end of a sentence that lists what stays in the type ``wide``."""
    own = lowering.integer_caches
    return f" and sinks stay {wide}; the KV cache is {own}" if own else f", sinks and the KV cache stay {wide}"


class _Recipes(Mapping[str, Recipe]):
    """The recipes by name: one for each registered number format, looked up on access."""

    def __getitem__(self, name: str) -> Recipe:
        return _recipe_of(NUMBER_FORMATS[name])

    def __iter__(self) -> Iterator[str]:
        return iter(NUMBER_FORMATS)

    def __len__(self) -> int:
        return len(NUMBER_FORMATS)


RECIPES: Mapping[str, Recipe] = _Recipes()


def is_emulated_format(name: str | None) -> bool:
    """Return True if ONNX Runtime cannot compute in this format, and multiplies rounded values in the wide type."""
    return name in NUMBER_FORMATS and NUMBER_FORMATS[name].is_emulated


def is_calibrated_cache(name: str | None) -> bool:
    """Return True if caches in this format are codes with one measured scale per layer."""
    caches = NUMBER_FORMATS[name].caches if name in NUMBER_FORMATS else None
    return caches is not None and caches.calibrated


def _in_expert_layer(name: str) -> bool:
    """Return True if TensorRT's own layer of routed experts computes in this format."""
    on = NUMBER_FORMATS[name].tensorrt
    return on is not None and on.expert_layer


def emulated(recipe: Recipe, lowering: Lowering) -> list[str]:
    """Return notes, to be reported first, on types that are emulated on a CPU."""
    kinds = sorted(filter(is_emulated_format, {*recipe.quantized_types, recipe.drafter}))
    if lowering.is_tensorrt or not kinds:
        return []
    titles = " or ".join(kinds).upper()
    return [
        f"{' and '.join(kinds)} is emulated: 0% of the weights are computed in {titles}; values are rounded to "
        f"this type and computed in {recipe.wide}, which shows the loss of accuracy but gives no speedup"
    ]


def widened(recipe: Recipe, target: Checkpoint) -> list[str]:
    """Return notes on a checkpoint whose FP8 weights a recipe does not keep."""
    stored = sum(target.fp8(name) is not None for name in target.tensors)
    own = format_stored_as(E4M3.safetensors)
    if recipe.quantized_type or recipe.wide == FP32.name or not stored or own is None:
        return []
    return [
        f"{stored} tensors stored in {own.title} were dequantized to {recipe.wide}; --precision {own.name} keeps them"
    ]


def requantization_notes(recipe: Recipe, target: Checkpoint, again: Sequence[str]) -> list[str]:
    """Return notes on a checkpoint that is quantized already, and which a recipe quantizes again.

    ``again``: the types of a GGUF file that are not used as stored.
    """
    if again and (recipe.quantized_roles or recipe.wide != FP32.name):
        which = " and ".join(again)
        hint = "; build_report.json lists the error of each tensor" if recipe.quantized_type else ""
        return [
            f"{target.source.name} has weights that are already quantized to {which}: {recipe.name} quantizes them a "
            f"second time{hint}"
        ]
    if recipe.experts == recipe.wide or keeps_blocks(recipe.experts) or not target.expert_blocks:
        return []
    return [
        f"the checkpoint's experts are already {target.expert_blocks}, and are quantized a second time, to "
        f"{recipe.experts}; build_report.json lists the error of each tensor"
    ]


def wide_type(target: Checkpoint) -> str:
    """Return the type of a target's unquantized weights: BF16 if its checkpoint has any, else FP16."""
    stored = {tensor.entry.dtype for tensor in target.tensors.values()}
    return (BF16 if BFLOAT16.safetensors in stored else FP16).name
