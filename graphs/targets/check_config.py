"""Check a target's configuration before it is used; the checks are the same for all families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...plugins.problems import Problems, shown
from ..config_values import (
    ROPE_NEEDS,
    Config,
    experts_per_token,
    flag,
    is_positive,
    names,
    number,
    positive,
    rope_numbers,
)

_SIZES = (
    "num_key_value_heads", "head_dim", "num_global_key_value_heads", "global_head_dim", "sliding_window",
    "max_position_embeddings", "decoder_sparse_step", "num_experts", "top_k_experts", "moe_intermediate_size",
)  # fmt: skip
_SWITCHES = (
    "tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window", "norm_topk_prob", "attention_k_eq_v",
    "enable_moe_block", "use_double_wide_mlp", "is_causal",
)  # fmt: skip
_ABOVE_ZERO = ("final_logit_softcapping", "swiglu_limit", "swiglu_alpha")
_EXPERTS = ("num_experts", "num_local_experts")
_MAX_EXPERTS = 1 << 17  # in all layers together
_CHANGING = ("dynamic", "longrope")
_OTHER_ATTENTION = "engines support only causal attention"


@dataclass(frozen=True)
class Entries:
    """The entries of a family's configurations: required ``sizes``, ``kinds`` of layers and of RoPE.

    ``by_layer`` are the entries that may differ by layer (``per_layer_config``).
    """

    sizes: tuple[str, ...]
    layer_kinds: tuple[str, ...] = ("full_attention",)
    rope_kinds: tuple[str, ...] = tuple(ROPE_NEEDS)
    by_layer: tuple[str, ...] = ()


def check_config(text: Config, entries: Entries, file: str) -> None:
    """Raise one ``BuildError`` that lists every entry of ``text`` that is missing, invalid, or unsupported.

    ``file`` is its origin.
    """
    problems = Problems(
        file, "does not describe a supported model", fix="use the config.json that belongs to the weights"
    )
    missing = [name for name in entries.sizes if text.get(name) is None]
    if missing:
        problems.add(f"the config lacks {', '.join(missing)}")
    for name in dict.fromkeys((*entries.sizes, *_SIZES)):
        positive(text, name, problems)
    for name in _SWITCHES:
        flag(text, name, problems)
    number(text, "rms_norm_eps", problems, minimum=0, below=1)
    for name in _ABOVE_ZERO:
        if text.get(name) is not None and not is_positive(text[name]):
            problems.add(f"config entry {name} must be a positive number, not {shown(repr(text[name]))}")
    problems.raise_any()  # the following checks compare them
    layers = text["num_hidden_layers"]
    names(text, "layer_types", entries.layer_kinds, layers, problems)
    _check_heads(text, problems)
    _check_experts(text, layers, problems)
    _check_attention(text, problems)
    _check_layers(text, entries.by_layer, layers, problems)
    _check_rope(text, entries.rope_kinds, problems)
    problems.raise_any()


def _check_heads(text: Config, problems: Problems) -> None:
    heads = text["num_attention_heads"]
    shared = text.get("num_key_value_heads") or heads
    if heads % shared:
        problems.add(f"{heads} query heads cannot share {shared} key heads evenly")
    dim = text.get("head_dim") or text["hidden_size"] // heads
    if dim % 2 or not dim:
        problems.add(
            f"head_dim is {dim}, but rotary embedding needs an even number"
            if dim
            else "hidden_size is too small for the number of heads"
        )


def _check_experts(text: Config, layers: int, problems: Problems) -> None:
    count = next((text[name] for name in _EXPERTS if text.get(name) is not None), None)
    chosen, dense = experts_per_token(text), text.get("mlp_only_layers")
    if dense is not None and not (isinstance(dense, list) and all(type(layer) is int for layer in dense)):
        problems.add(f"config entry mlp_only_layers must be a list of layer ids, not {shown(repr(dense))}")
    if type(count) is not int or type(chosen) is not int:
        return
    if chosen > count:
        problems.add(f"the config has {chosen} experts per token, but only {count} experts")
    if count * layers > _MAX_EXPERTS:
        problems.add(f"the config describes {layers} layers of {count} experts; the limit is {_MAX_EXPERTS} experts")


def _check_attention(text: Config, problems: Problems) -> None:
    """Reject settings that make ``transformers`` attend to later tokens, which a trace would not show."""
    if text.get("is_causal") is False:
        problems.add(f"the config sets is_causal false, but {_OTHER_ATTENTION}")
    two_way = text.get("use_bidirectional_attention")
    if two_way not in (None, False, "vision"):  # "vision" applies to images; text stays causal
        problems.add(f"the config sets use_bidirectional_attention {shown(repr(two_way))}, but {_OTHER_ATTENTION}")
    for name in ("is_encoder_decoder", "add_cross_attention"):
        if text.get(name):
            problems.add(f"the config sets {name}, but only decoder-only models are supported")


def _check_layers(text: Config, served: Sequence[str], layers: int, problems: Problems) -> None:
    declared = text.get("per_layer_config")
    if declared is None:
        return
    if not isinstance(declared, Mapping) or not all(isinstance(entries, Mapping) for entries in declared.values()):
        problems.add(f"config entry per_layer_config must map layers to objects, not be {shown(repr(declared))}")
        return
    known = [int(key) for key in declared if str(key).isascii() and str(key).isdigit() and len(str(key)) < 9]
    if len(set(known)) != len(declared) or not all(layer < layers for layer in known):
        problems.add(
            f"the keys of config entry per_layer_config must be layers from 0 to {layers - 1}, "
            f"not {shown(', '.join(declared))}"
        )
    others = sorted({str(name) for entries in declared.values() for name in entries} - set(served))
    if others:
        problems.add(
            f"config entry per_layer_config sets {', '.join(map(shown, others))}: "
            + (f"only {', '.join(served)} may differ between layers" if served else "layers must not differ")
        )
    for key, entries in declared.items():
        for name in (name for name in served if name in entries):
            prefix = f"per_layer_config.{shown(str(key))}."
            if positive(entries, name, problems, prefix) is None and entries[name] is None:
                problems.add(f"config entry {prefix}{name} must be a positive integer, not None")


def _check_rope(text: Config, kinds: Sequence[str], problems: Problems) -> None:
    """Check every RoPE description: the only one, or one per kind of layer."""
    if text.get("rope_theta") is not None:
        _check_theta(text, "config entry", problems)
    if text.get("partial_rotary_factor") not in (None, 1):
        problems.add(_partial(text["partial_rotary_factor"]))
    for name in ("rope_parameters", "rope_scaling"):
        declared = text.get(name)
        if declared is None:
            continue
        if not isinstance(declared, Mapping):
            problems.add(f"config entry {name} must be an object, not {shown(repr(declared))}")
            continue
        nested = {f"{name} of {kind}": value for kind, value in declared.items() if isinstance(value, Mapping)}
        for path, rope in (nested or {name: declared}).items():
            _check_one_rope(rope, path, kinds, problems)


def _check_one_rope(rope: Config, path: str, kinds: Sequence[str], problems: Problems) -> None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if isinstance(kind, str) and kind in _CHANGING:
        problems.add(
            f"RoPE type {kind!r} is not supported: its frequencies depend on the sequence length, so no table can hold "
            "them"
        )
        return
    if not isinstance(kind, str) or kind not in kinds:
        problems.add(
            f"RoPE type {shown(repr(kind))} of {shown(path)} is not supported; the supported types are "
            f"{', '.join(kinds)}"
        )
        return
    _check_theta(rope, path, problems)
    partial = rope.get("partial_rotary_factor")
    if partial not in (None, 1) and (kind in ROPE_NEEDS or not is_positive(partial) or partial > 1):
        problems.add(_partial(partial))
    # If it is absent, transformers assumes max_position_embeddings as the trained length.
    needs = [name for name in ROPE_NEEDS.get(kind, ()) if name != "original_max_position_embeddings" or name in rope]
    rope_numbers(rope, kind, needs, problems)


def _check_theta(declared: Config, path: str, problems: Problems) -> None:
    if "rope_theta" in declared and not is_positive(declared["rope_theta"]):
        problems.add(f"{path} rope_theta must be a positive number, not {shown(repr(declared['rope_theta']))}")


def _partial(factor: Any) -> str:
    return f"partial_rotary_factor {shown(repr(factor))} is not supported: rotary embedding must cover the whole head"
