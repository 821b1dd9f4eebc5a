"""Tensors of a drafter: their names in both layouts, and their shapes in terms of a few sizes."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ...plugins.problems import Problems

Shape = tuple[int, ...]
Dim = tuple[str, int]  # a size and its multiplier: ("hidden_size", 2) is 2H

EMBEDDING, LM_HEAD, FC, MASK_HIDDEN = "embed_tokens.weight", "lm_head.weight", "fc.weight", "mask_hidden"

_H, _INNER, _Q, _KV = (("hidden_size", 1), ("intermediate_size", 1), ("queries", 1), ("keys", 1))
_V, _VD, _FEATURES, _ONE = (("vocab_size", 1), ("draft_vocab_size", 1), ("features", 1), ("one", 1))
_PROJECTIONS: dict[str, tuple[Dim, Dim]] = {
    "self_attn.q_proj": (_Q, _H), "self_attn.k_proj": (_KV, _H), "self_attn.v_proj": (_KV, _H),
    "self_attn.o_proj": (_H, _Q), "mlp.gate_proj": (_INNER, _H), "mlp.up_proj": (_INNER, _H),
    "mlp.down_proj": (_H, _INNER),
}  # fmt: skip
_FUSED = {"self_attn.qkv_proj": ("q_proj", "k_proj", "v_proj"), "mlp.gate_up_proj": ("gate_proj", "up_proj")}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_MEDUSA = "parallel_draft_heads."


def module_names(keys: Collection[str], problems: Problems) -> dict[str, str]:
    """Map module names to tensor names in the checkpoint, without tensors used only in training.

    The first layer is ``midlayer`` (vLLM) or ``layers.0`` (speculators); a leading ``model.`` is optional.
    """
    names: dict[str, str] = {}
    for key in sorted(keys):
        name = key.removeprefix("model.")
        name = "layers.0." + name.removeprefix("midlayer.") if name.startswith("midlayer.") else name
        if name.startswith("verifier_") or name.endswith("rotary_emb.inv_freq"):
            continue
        if name in names:
            problems.add(f"tensors {names[name]} and {key} are both names of {name}")
        names[name] = key
    return names


@dataclass(frozen=True)
class Parts:
    """The optional parts of a drafter, determined from its tensor names.

    ``biases`` lists projections with a bias, such as ``self_attn.q_proj``; ``fc_norms`` is the number of norms of
    single taps, ``input_norm`` the one norm over all of them.
    """

    num_layers: int
    biases: tuple[str, ...]
    qk_norm: bool
    input_norm: bool
    fc_norms: int
    mask_hidden: bool
    draft_vocabulary: bool

    @classmethod
    def of(cls, names: Collection[str]) -> Parts:
        """Return the parts for ``names`` (module names)."""
        layered = [match for name in names if (match := _LAYER.fullmatch(name))]
        inner = {match[2] for match in layered}
        return cls(
            num_layers=max(len({match[1] for match in layered}), 1),
            biases=tuple(name for name in _PROJECTIONS if f"{name}.bias" in inner),
            qk_norm=bool({"self_attn.q_norm.weight", "self_attn.k_norm.weight"} & inner),
            input_norm="input_norm.weight" in names,
            fc_norms=sum(name.startswith("fc_norm.") for name in names),
            mask_hidden=MASK_HIDDEN in names,
            draft_vocabulary="d2t" in names,
        )

    def dims(self) -> dict[str, tuple[Dim, ...]]:
        """The dimensions of every tensor, by module name."""
        dims: dict[str, tuple[Dim, ...]] = {
            EMBEDDING: (_V, _H),
            FC: (_H, _FEATURES),
            "norm.weight": (_H,),
            LM_HEAD: (_VD, _H),
            "layers.0.hidden_norm.weight": (_H,),
        }
        if self.mask_hidden:
            dims[MASK_HIDDEN] = (_ONE, _ONE, _FEATURES)
        if self.draft_vocabulary:
            dims["d2t"] = (_VD,)
        if self.input_norm:
            dims["input_norm.weight"] = (_FEATURES,)
        dims |= {f"fc_norm.{i}.weight": (("target_hidden_size", 1),) for i in range(self.fc_norms)}
        for i in range(self.num_layers):
            dims |= self._layer(i)
        return dims

    def _layer(self, i: int) -> dict[str, tuple[Dim, ...]]:
        dims: dict[str, tuple[Dim, ...]] = {}
        for name, (rows, columns) in _PROJECTIONS.items():
            fuses = i == 0 and name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            dims[f"layers.{i}.{name}.weight"] = (rows, (columns[0], 2) if fuses else columns)
            if name in self.biases:
                dims[f"layers.{i}.{name}.bias"] = (rows,)
        dims |= {f"layers.{i}.{norm}.weight": (_H,) for norm in ("input_layernorm", "post_attention_layernorm")}
        if self.qk_norm:
            dims |= {f"layers.{i}.self_attn.{norm}.weight": (("head_dim", 1),) for norm in ("q_norm", "k_norm")}
        return dims


def infer_sizes(parts: Parts, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """Return the sizes that most tensors agree on, without those that no tensor determines."""
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for name, dims in parts.dims().items():
        if len(shapes.get(name, ())) == len(dims):
            for (size, times), length in zip(dims, shapes[name], strict=True):
                if length and length % times == 0:
                    votes[size][length // times] += 1
    return {size: counter.most_common(1)[0][0] for size, counter in votes.items()}


def check_tensors(
    parts: Parts, sizes: Mapping[str, int], shapes: Mapping[str, Shape], reasons: Mapping[str, str], problems: Problems
) -> None:
    """Report every tensor that is missing or has an inconsistent shape, and unused ones.

    ``reasons`` explain why some tensors are needed; an empty text marks a tensor as optional.
    """
    dims, fused = parts.dims(), _name_fused(shapes, problems)
    for name, symbols in dims.items():
        if name not in shapes:
            why = reasons.get(name)
            if name not in fused and why != "":
                problems.add(f"tensor {name} is missing" + (f": {why}" if why else ""))
        elif all(size in sizes for size, _ in symbols):
            shape = [sizes[size] * times for size, times in symbols]
            if list(shapes[name]) != shape:
                problems.add(f"tensor {name} has shape {list(shapes[name])}, but {shape} is required")
    if "t2d" in shapes and sizes.get("vocab_size", 0) and shapes["t2d"] != (sizes["vocab_size"],):
        problems.add(f"tensor t2d has shape {list(shapes['t2d'])}, but {[sizes['vocab_size']]} is required")
    for name in unread(parts, shapes) if problems else ():
        if fused.isdisjoint(_fused_parts(name)):
            problems.add(f"tensor {name} does not belong to any known kind of head")


def unread(parts: Parts, names: Collection[str]) -> list[str]:
    """Return the tensors that no known part of a head uses."""
    known = {*parts.dims(), "t2d"}
    return sorted(name for name in names if name not in known and not name.startswith(_MEDUSA))


def rows_of_fused(shapes: Mapping[str, Shape]) -> dict[str, tuple[str, int, int]]:
    """Map tensor names to their location in fused tensors: the fused name, and the range of rows.

    The shape of ``o_proj`` gives the number of query rows; keys and values share the rest equally. A fused tensor stays
    as it is if the rows cannot be divided, or if its parts are stored separately as well.
    """
    found: dict[str, tuple[str, int, int]] = {}
    for key, shape in shapes.items():
        fused = next((fused for fused in _FUSED if f".{fused}." in key), "")
        if not fused or not shape:
            continue
        module, _, kind = key.rpartition(f".{fused}.")
        names = [f"{module}.{fused.partition('.')[0]}.{part}.{kind}" for part in _FUSED[fused]]
        output = shapes.get(f"{module}.self_attn.o_proj.weight", ())
        first = shape[0] // 2 if len(names) == 2 else output[1] if len(output) == 2 else 0
        each, odd = divmod(shape[0] - first, len(names) - 1)
        if first < 1 or each < 1 or odd or any(name in shapes for name in names) or (len(names) == 2 and each != first):
            continue
        for i, name in enumerate(names):
            begin = first + (i - 1) * each if i else 0
            found[name] = key, begin, begin + (each if i else first)
    return found


def has_medusa_heads(names: Collection[str]) -> bool:
    """Return True for a drafter of Model-Optimizer's ``parallel_draft_step``."""
    return any(name.startswith(_MEDUSA) for name in names)


def _fused_parts(name: str) -> tuple[str, ...]:
    """Return the tensors that a fused one combines."""
    match = _LAYER.fullmatch(name)
    for fused, parts in _FUSED.items() if match else ():
        if match and match[2].startswith(fused + "."):
            return tuple(name.replace(fused.partition(".")[2], part) for part in parts)
    return ()


def _name_fused(names: Collection[str], problems: Problems) -> set[str]:
    """Report fused tensors; returns their parts, so that these are not reported as missing."""
    stands_for: set[str] = set()
    for name in sorted(names):
        if (parts := _fused_parts(name)) and not all(part in names for part in parts):
            problems.add(
                f"tensor {name} is fused: store {', '.join(p.split('.')[-2] for p in parts)} as separate tensors"
            )
            stands_for.update(parts)
    return stands_for
