"""The rotary embedding of a head, from whichever entries of its config define it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .config import Config
from .problems import Problems

_THETA = 10000.0  # of transformers, where a config does not say
_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_MAY_HAVE = ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")


def read_rope(flat: Config, problems: Problems) -> dict[str, Any]:
    """``rope_parameters`` as ``transformers`` takes them: ``rope_theta`` (5 and later) or ``rope_scaling`` before."""
    stated = _stated(flat, problems)
    kind = stated.get("rope_type") or "default"
    for value in (stated.get("partial_rotary_factor"), flat.get("partial_rotary_factor")):
        if value not in (None, 1):
            problems.add(f"partial_rotary_factor {value} is not supported: the drafter rotates whole heads")
    if stated.get("mrope_section"):
        problems.add("rotary embedding with mrope_section (M-RoPE) is not supported: text has one position per token")
    if any(isinstance(value, Mapping) for value in stated.values()):
        problems.add("rope_parameters per layer type are not supported: the drafter has one rotary embedding")
        return {}
    if not isinstance(kind, str) or kind not in _NEEDS:
        problems.add(f"RoPE type {kind!r} is not supported: use one of {', '.join(_NEEDS)}, which fit one table")
        return {}
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": _theta(stated, flat, problems)}
    if stated.get("original_max_position_embeddings") is None:  # as transformers fills it in
        stated["original_max_position_embeddings"] = flat.get("max_position_embeddings")
    for name in _NEEDS[kind]:
        if not _is_positive(stated.get(name)):
            problems.add(f"RoPE type {kind!r} needs a positive {name}, not {stated.get(name)!r}")
        rope[name] = stated.get(name)
    if kind == "yarn":
        given = {name: stated[name] for name in _MAY_HAVE if stated.get(name) is not None}
        for name, value in given.items():
            if not isinstance(value, int | float):
                problems.add(f"RoPE type {kind!r} needs a number as {name}, not {value!r}")
        rope |= given
    return rope


def _stated(flat: Config, problems: Problems) -> dict[str, Any]:
    """The one dictionary that defines it, with ``type`` called ``rope_type``."""
    found: list[dict[str, Any]] = []
    for name in ("rope_scaling", "rope_parameters"):
        value = flat.get(name)
        if value is not None and not isinstance(value, Mapping):
            problems.add(f"config entry {name} must be an object, not {value!r}")
        elif value:
            entries = {k: v for k, v in value.items() if k != "type"}
            found.append({"rope_type": value.get("type"), **entries})
    if len(found) == 2 and found[0] != found[1]:
        problems.add("config entries rope_scaling and rope_parameters differ")
    return found[-1] if found else {}


def _theta(stated: Config, flat: Config, problems: Problems) -> float:
    values = [v for v in (stated.get("rope_theta"), flat.get("rope_theta")) if v is not None]
    if not all(_is_positive(v) for v in values):
        problems.add(f"rope_theta must be a positive number, not {' or '.join(map(repr, values))}")
        return _THETA
    if len({float(v) for v in values}) > 1:
        problems.add(f"config says rope_theta {values[1]}, and {values[0]} in its rope_parameters")
    return float(values[0]) if values else _THETA


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
