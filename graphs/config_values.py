"""Read and check values of a ``config.json``: types, ranges and sizes. All invalid values are reported together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..plugins.problems import Problems, counted, shown

Config = Mapping[str, Any]

# The largest supported sizes, about ten times those of the largest published models. Larger ones are mistakes, which
# would keep a machine busy until its memory is full.
_LARGEST = {
    "num_hidden_layers": 1_000,
    "num_attention_heads": 4_096,
    "num_key_value_heads": 4_096,
    "num_global_key_value_heads": 4_096,
    "head_dim": 8_192,
    "global_head_dim": 8_192,
    "num_experts": 4_096,
    "num_local_experts": 4_096,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 20,
    "moe_intermediate_size": 1 << 20,
    "vocab_size": 1 << 23,
}
_LARGEST_INT = 2**31 - 1
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "top_k_experts")

ROPE_THETA = 10000.0  # the default in transformers
# The required numbers of each supported RoPE type; these types fit one table of positions.
ROPE_NEEDS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
_ROPE_NUMBERS = frozenset({
    "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
    "attention_factor", "mscale", "mscale_all_dim",
})  # fmt: skip


def max_positions(config: Config) -> int:
    """Return the longest sequence of a legal config: as stated, or as extended by YaRN.

    Guides to YaRN add the scaling to a config, and leave ``max_position_embeddings`` as it was.
    """
    longest: int = config.get("max_position_embeddings") or 2048
    for rope in (config.get("rope_parameters") or {}, config.get("rope_scaling") or {}):
        if "yarn" in (rope.get("rope_type"), rope.get("type")):
            trained, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
            if trained and factor:
                longest = max(longest, int(min(trained * factor, _LARGEST_INT)))
    return longest


def experts_per_token(config: Config) -> Any:
    """Return the number of routed experts per token, from any of its config entries; None if the config has none."""
    return next((config[name] for name in _EXPERTS_PER_TOKEN if config.get(name) is not None), None)


def positive(config: Config, name: str, problems: Problems, prefix: str = "") -> int | None:
    """Return a size from the config, None if absent; ``prefix`` is the prefix of its name in the file."""
    value = config.get(name)
    if value is None:
        return None
    if type(value) is not int or value <= 0:
        problems.add(f"config entry {prefix}{name} must be a positive integer, not {shown(repr(value))}")
        return None
    maximum = _LARGEST.get(name, _LARGEST_INT)
    if value > maximum:
        problems.add(f"config entry {prefix}{name} is {shown(repr(value))}; the limit is {maximum}")
        return None
    return value


def flag(config: Config, name: str, problems: Problems) -> bool | None:
    """Return a boolean from the config, None if absent."""
    value = config.get(name)
    if value is None or isinstance(value, bool):
        return value
    problems.add(f"config entry {name} must be true or false, not {shown(repr(value))}")
    return None


def number(config: Config, name: str, problems: Problems, *, minimum: float, below: float = math.inf) -> float | None:
    """Return a finite number from the config, at least ``minimum`` and less than ``below``; None if absent."""
    value = config.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value < min(below, 1e300):
        span = f" of {minimum:g} or more" if below == math.inf else f" from {minimum:g} to {below:g}"
        problems.add(f"config entry {name} must be a number{span}, not {shown(repr(value))}")
        return None
    return float(value)


def names(config: Config, name: str, known: Sequence[str], count: int, problems: Problems) -> None:
    """Check an optional list with one of the ``known`` names for each of ``count`` layers."""
    value = config.get(name)
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        problems.add(f"config entry {name} must be a list of names, not {shown(repr(value))}")
        return
    if len(value) != count:
        problems.add(f"config entry {name} lists {counted(value, 'layer')}, but num_hidden_layers is {count}")
    unknown = sorted(set(value) - set(known))
    if unknown:
        problems.add(
            f"config entry {name} has {', '.join(map(shown, unknown))}; only {' and '.join(known)} are supported"
        )


def is_positive(value: Any) -> bool:
    """Return True for a finite number above 0."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e300


def rope_numbers(rope: Config, kind: str, needs: Sequence[str], problems: Problems) -> None:
    """Check the required and optional numbers of a RoPE type."""
    for name in (*needs, *sorted(_ROPE_NUMBERS.intersection(rope).difference(needs))):
        value = rope.get(name)
        if not is_positive(value) and (name in needs or value is not None):
            problems.add(f"RoPE type {kind!r} needs a positive {name}, not {shown(repr(value))}")
