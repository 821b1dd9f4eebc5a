"""One flat form for the config of a head, whichever tool wrote it.

vLLM's layout is flat already, with some entries in ``eagle_config``. The ``speculators`` package nests the decoder in
``transformer_layer_config`` and the number of drafts in ``speculators_config``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .problems import Problems

Config = Mapping[str, Any]

ARCHITECTURES = frozenset({
    "LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "PEagleDraftModel", "Eagle3DraftModel",
    "PeagleLlamaForCausalLM", "PeagleQwen3ForCausalLM", "Eagle3Qwen3ForCausalLM", "PEagleSpeculator",
    "Eagle3Speculator", "LlamaForCausalLMPeagle", "LlamaEagle3DraftModel",
})  # fmt: skip
_SPECULATORS_TYPES = ("peagle", "eagle3")
_MASK_ID_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
_EAGLE_ENTRIES = (
    "eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state", "norm_before_fc", "fc_norm", "norm_output",
    "parallel_draft_step",
)  # fmt: skip
_HEADS_UNLESS_STATED = 32  # of LlamaConfig and Qwen3Config; older transformers left defaults out when saving


def flatten(config: Config, problems: Problems) -> dict[str, Any]:
    """``config`` with every entry at the top level and under one name; None and absent mean the same."""
    decoder, eagle, speculators = (
        _mapping(config, name, problems) for name in ("transformer_layer_config", "eagle_config", "speculators_config")
    )
    flat = {**config, **decoder}
    if decoder and flat.get("num_attention_heads") is None and flat.get("head_dim") is None:
        flat["num_attention_heads"] = _HEADS_UNLESS_STATED
    for name in _EAGLE_ENTRIES:
        outer, inner = flat.get(name), eagle.get(name)
        if None not in (outer, inner) and outer != inner:
            problems.add(f"config says {name} {outer!r}, and {inner!r} in eagle_config")
        flat[name] = inner if outer is None else outer
    flat["architectures"] = _architectures(config, problems)
    flat["mask_token_id"] = _mask_token_id(config, problems)
    flat["trained_depth"] = _trained_depth(config, speculators, problems)
    kind = config.get("speculators_model_type")
    if kind not in (None, *_SPECULATORS_TYPES):
        problems.add(f"speculators_model_type {kind!r} is not one of {', '.join(_SPECULATORS_TYPES)}")
    if kind == "eagle3" and flat.get("norm_before_residual") is None:
        flat["norm_before_residual"] = True  # as vLLM loads them; newer versions of the package always say
    return flat


def positive(flat: Config, name: str, problems: Problems) -> int | None:
    """A size from the config, None where it says nothing."""
    value = flat.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    problems.add(f"config entry {name} must be a positive integer, not {value!r}")
    return None


def flag(flat: Config, name: str, problems: Problems) -> bool | None:
    """A switch from the config, None where it says nothing."""
    value = flat.get(name)
    if value is None or isinstance(value, bool):
        return value
    problems.add(f"config entry {name} must be true or false, not {value!r}")
    return None


def says_parallel(flat: Config) -> bool:
    """Whether the config, apart from any tensor, calls for placeholders."""
    return (
        flat["mask_token_id"] is not None
        or flat.get("parallel_drafting") is True
        or flat.get("speculators_model_type") == "peagle"
        or any("peagle" in name.lower() for name in flat["architectures"])
    )


def _mapping(config: Config, name: str, problems: Problems) -> Config:
    value = config.get(name)
    if value is not None and not isinstance(value, Mapping):
        problems.add(f"config entry {name} must be an object, not {value!r}")
        return {}
    return value or {}


def _architectures(config: Config, problems: Problems) -> list[str]:
    named = config.get("architectures") or []
    if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
        problems.add(f"config entry architectures must be a list of names, not {named!r}")
        return []
    if named and not ARCHITECTURES.intersection(named):
        problems.add(f"architecture {', '.join(named)} is no EAGLE-3 or P-EAGLE head known here")
    return named


def _mask_token_id(config: Config, problems: Problems) -> int | None:
    """Some heads write it as text."""
    stated = {key: config[key] for key in _MASK_ID_KEYS if config.get(key) is not None}
    ids = [int(v) if isinstance(v, str) and v.isdecimal() else v for v in stated.values()]
    if not all(type(value) is int for value in ids):
        problems.add(f"the mask token id must be a number, not {' or '.join(map(repr, stated.values()))}")
        return None
    if len(set(ids)) > 1:
        problems.add(f"config names several mask token ids: {', '.join(f'{k} {v}' for k, v in stated.items())}")
    return ids[0] if ids else None


def _trained_depth(config: Config, speculators: Config, problems: Problems) -> int | None:
    methods = speculators.get("proposal_methods") or [{}]
    first = methods[0] if isinstance(methods, list) and isinstance(methods[0], Mapping) else {}
    proposed = positive(first, "speculative_tokens", problems)
    return positive(config, "num_speculative_tokens", problems) or proposed
