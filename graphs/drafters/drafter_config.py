"""Normalize the config of a drafter, from any of the supported tools, to one flat form.

vLLM's layout is flat already, with some entries in ``eagle_config``. The ``speculators`` package nests the decoder in
``transformer_layer_config`` and the number of drafts in ``speculators_config``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...plugins.graph_contract import MAX_DRAFTS
from ...plugins.problems import Problems
from ..config_values import ROPE_NEEDS, ROPE_THETA, flag, is_positive, positive, rope_numbers
from .tap_ids import TAPS, taps_in_eagle_config

Config = Mapping[str, Any]

ARCHITECTURES = frozenset({
    "LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "PEagleDraftModel", "Eagle3DraftModel",
    "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM", "Eagle3Qwen3ForCausalLM", "PEagleSpeculator",
    "Eagle3Speculator", "LlamaForCausalLMPeagle", "LlamaEagle3DraftModel",
})  # fmt: skip
_AUTOREGRESSIVE = "eagle3"
_SPECULATORS_TYPES = ("peagle", _AUTOREGRESSIVE)
# Names in vLLM and other tools; the first one is nested in an object.
MASK_ID_KEYS = ("dflash_config.mask_token_id", "mask_token_id", "dspark_noise_token_id", "pard_token", "ptd_token_id")
_EAGLE_ENTRIES = (
    TAPS, "use_aux_hidden_state", "norm_before_fc", "fc_norm", "norm_output",
    "parallel_draft_step",
)  # fmt: skip
_HEADS_UNLESS_STATED = 32  # default in LlamaConfig and Qwen3Config; older transformers omitted defaults when saving

_LAYER_KINDS = ("full_attention", "sliding_attention")
_MAY_HAVE = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")


def flatten(config: Config, problems: Problems) -> dict[str, Any]:
    """Return ``config`` with every entry at the top level under one name; None counts as absent."""
    decoder, eagle, speculators = (
        _mapping(config, name, problems) for name in ("transformer_layer_config", "eagle_config", "speculators_config")
    )
    flat = {**config, **decoder}
    if decoder and flat.get("num_attention_heads") is None and flat.get("head_dim") is None:
        flat["num_attention_heads"] = _HEADS_UNLESS_STATED
    for name in _EAGLE_ENTRIES:
        outer, inner = flat.get(name), eagle.get(name)
        if name == TAPS:
            outer, inner = outer or None, inner or None  # as in vLLM, an empty list counts as absent
            inner = inner if inner == outer else taps_in_eagle_config(inner)
        if None not in (outer, inner) and outer != inner:
            problems.add(f"the config has {name} {outer!r}, but {inner!r} in eagle_config")
        flat[name] = inner if outer is None else outer
    flat["architectures"] = _architectures(config, problems)
    flat["mask_token_id"] = _mask_token_id(config, problems)
    flat["trained_depth"] = _trained_depth(config, speculators, problems)
    kind = config.get("speculators_model_type")
    if kind not in (None, *_SPECULATORS_TYPES):
        problems.add(
            f"speculators_model_type {kind!r} is not supported; the supported types are {', '.join(_SPECULATORS_TYPES)}"
        )
    if kind == _AUTOREGRESSIVE and flat.get("norm_before_residual") is None:
        flat["norm_before_residual"] = True  # the default in vLLM; newer versions of the package always write it
    return flat


def called_autoregressive(config: Config) -> bool:
    """Return True if the config declares an autoregressive head, with one pass per draft."""
    return config.get("speculators_model_type") == _AUTOREGRESSIVE and config.get("parallel_drafting") is not True


def stating(config: Config, taps: Sequence[int], mask_token_id: int | None) -> dict[str, Any]:
    """Return ``config`` with these taps, if any, and this mask token id, replacing its own."""
    overridden = dict(config)
    if taps:
        _drop(overridden, "eagle_config", TAPS)
        overridden[TAPS] = list(taps)
    if mask_token_id is not None:
        for key in MASK_ID_KEYS:
            overridden.pop(key, None)
        _drop(overridden, "dflash_config", "mask_token_id")
        overridden["mask_token_id"] = mask_token_id
    return overridden


def _drop(config: dict[str, Any], within: str, name: str) -> None:
    """Remove an entry from a nested object of the config, without modifying the original."""
    if isinstance(config.get(within), Mapping):
        config[within] = {key: value for key, value in config[within].items() if key != name}


def unknown_architectures(architectures: Sequence[str]) -> str:
    """Join the head's ``architectures`` if none of them is a known head; else ''."""
    return "" if ARCHITECTURES.intersection(architectures) else ", ".join(architectures)


def declares_parallel_drafting(flat: Config) -> bool:
    """Return True if the config alone, without the tensors, requires placeholders."""
    return (
        flat["mask_token_id"] is not None
        or flat.get("parallel_drafting") is True
        or flat.get("speculators_model_type") == "peagle"
        or any("peagle" in name.lower() for name in flat["architectures"])
    )


def read_windows(flat: Config, num_layers: int, problems: Problems) -> tuple[int, ...]:
    """Return the attention window of each layer, including the position itself; 0 means unlimited.

    Only ``layer_types`` counts, as in vLLM and speculators: ``sliding_window`` alone has no effect there.
    """
    span, enabled = positive(flat, "sliding_window", problems), flag(flat, "use_sliding_window", problems)
    kinds = flat.get("layer_types")
    if kinds is None:
        if enabled:
            problems.add(
                "the config sets use_sliding_window, but has no layer_types, which lists the layers with a sliding "
                "window"
            )
        return (0,) * num_layers
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        problems.add(f"config entry layer_types must list the types of {num_layers} layers, not {kinds!r}")
        return (0,) * num_layers
    if unknown := sorted({str(kind) for kind in kinds if kind not in _LAYER_KINDS}):
        problems.add(
            f"layers of type {', '.join(unknown)} are not supported; the supported types are "
            f"{' and '.join(_LAYER_KINDS)}"
        )
    if "sliding_attention" in kinds:
        if span is None:
            problems.add("the config has layers of type sliding_attention, but no sliding_window")
        if enabled is False:
            problems.add("the config has layers of type sliding_attention, but sets use_sliding_window false")
    return tuple(span or 0 if kind == "sliding_attention" else 0 for kind in kinds)


def read_rope(flat: Config, problems: Problems) -> dict[str, Any]:
    """Return the ``rope_parameters`` for ``transformers``, from either of their names."""
    declared = _declared_rope(flat, problems)
    kind = declared.get("rope_type") or "default"
    for value in (declared.get("partial_rotary_factor"), flat.get("partial_rotary_factor")):
        if value not in (None, 1):
            problems.add(f"partial_rotary_factor {value} is not supported: rotary embedding must cover the whole head")
    if declared.get("mrope_section"):
        problems.add("rotary embedding with mrope_section (M-RoPE) is not supported: text has one position per token")
    if any(isinstance(value, Mapping) for value in declared.values()):
        problems.add("rope_parameters per layer type are not supported: the drafter has one rotary embedding")
        return {}
    if not isinstance(kind, str) or kind not in ROPE_NEEDS:
        problems.add(f"RoPE type {kind!r} is not supported; the supported types are {', '.join(ROPE_NEEDS)}")
        return {}
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": _theta(declared, flat, problems)}
    if declared.get("original_max_position_embeddings") is None:  # the same default as in transformers
        declared["original_max_position_embeddings"] = flat.get("max_position_embeddings")
    rope_numbers(declared, kind, ROPE_NEEDS[kind], problems)
    rope |= {name: declared.get(name) for name in ROPE_NEEDS[kind]}
    if kind == "yarn":
        options = {name: declared[name] for name in _MAY_HAVE if declared.get(name) is not None}
        for name, value in options.items():
            if not isinstance(value, int | float):
                problems.add(f"RoPE type {kind!r} needs a number for {name}, not {value!r}")
        rope |= options
    return rope


def _mapping(config: Config, name: str, problems: Problems) -> Config:
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        problems.add(f"config entry {name} must be an object, not {value!r}")
        return {}
    return value or {}


def _architectures(config: Config, problems: Problems) -> list[str]:
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        problems.add(f"config entry architectures must be a list of names, not {names!r}")
        return []
    return names


def _mask_token_id(config: Config, problems: Problems) -> int | None:
    """Return the mask token's id, which some heads store as text."""
    within = {f"dflash_config.{name}": value for name, value in _mapping(config, "dflash_config", problems).items()}
    declared = {key: value for key in MASK_ID_KEYS if (value := (within | dict(config)).get(key)) is not None}
    ids = [int(v) if isinstance(v, str) and v.isdecimal() else v for v in declared.values()]
    if not all(type(value) is int for value in ids):
        problems.add(f"the mask token id must be a number, not {' or '.join(map(repr, declared.values()))}")
        return None
    if len(set(ids)) > 1:
        problems.add(f"the config has several mask token ids: {', '.join(f'{k} {v}' for k, v in declared.items())}")
    return ids[0] if ids else None


def _trained_depth(config: Config, speculators: Config, problems: Problems) -> int | None:
    methods = speculators.get("proposal_methods") or [{}]
    first = methods[0] if isinstance(methods, list) and isinstance(methods[0], Mapping) else {}
    proposed = positive(first, "speculative_tokens", problems)
    depth = positive(config, "num_speculative_tokens", problems) or proposed
    if depth is not None and depth > MAX_DRAFTS:
        problems.add(f"the config sets {depth} draft tokens per round, but the kernels support at most {MAX_DRAFTS}")
    return depth


def _declared_rope(flat: Config, problems: Problems) -> dict[str, Any]:
    """Return the dictionary that defines the rotary embedding, with ``type`` renamed to ``rope_type``."""
    ropes: list[dict[str, Any]] = []
    for name in ("rope_scaling", "rope_parameters"):
        value = flat.get(name)
        if value is not None and not isinstance(value, Mapping):
            problems.add(f"config entry {name} must be an object, not {value!r}")
        elif value:
            entries = {k: v for k, v in value.items() if k != "type"}
            ropes.append({"rope_type": value.get("type"), **entries})
    if len(ropes) == 2 and ropes[0] != ropes[1]:
        problems.add("config entries rope_scaling and rope_parameters contradict each other")
    return ropes[-1] if ropes else {}


def _theta(declared: Config, flat: Config, problems: Problems) -> float:
    values = [v for v in (declared.get("rope_theta"), flat.get("rope_theta")) if v is not None]
    if not all(is_positive(v) for v in values):
        problems.add(f"rope_theta must be a positive number, not {' or '.join(map(repr, values))}")
        return ROPE_THETA
    if len({float(v) for v in values}) > 1:
        problems.add(f"the config has rope_theta {values[1]}, but {values[0]} in its rope_parameters")
    return float(values[0]) if values else ROPE_THETA
