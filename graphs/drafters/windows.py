"""How far back each layer of a head sees."""

from __future__ import annotations

from .config import Config, flag, positive
from .problems import Problems

_KINDS = ("full_attention", "sliding_attention")


def read_windows(flat: Config, num_layers: int, problems: Problems) -> tuple[int, ...]:
    """Positions that every layer sees, itself included; 0 is all of them.

    ``layer_types`` alone decides, as in vLLM and speculators: ``sliding_window`` without it means nothing there.
    """
    span, enabled = positive(flat, "sliding_window", problems), flag(flat, "use_sliding_window", problems)
    kinds = flat.get("layer_types")
    if kinds is None:
        if enabled:
            problems.add("config sets use_sliding_window, but no layer_types say which layers slide")
        return (0,) * num_layers
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        problems.add(f"config entry layer_types must name the kind of {num_layers} layers, not {kinds!r}")
        return (0,) * num_layers
    if strange := sorted({str(kind) for kind in kinds if kind not in _KINDS}):
        problems.add(f"layers of kind {', '.join(strange)} are not supported: a drafter has {' and '.join(_KINDS)}")
    if "sliding_attention" in kinds:
        if span is None:
            problems.add("config has layers of kind sliding_attention, but no sliding_window")
        if enabled is False:
            problems.add("config has layers of kind sliding_attention, but sets use_sliding_window false")
    return tuple(span or 0 if kind == "sliding_attention" else 0 for kind in kinds)
