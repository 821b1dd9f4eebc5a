"""The taps that the layer ids in a head's config mean. Tools use two conventions, under one name.

At the top level, as vLLM and ``speculators`` write them, an id names the layer whose input is tapped. In
``eagle_config``, as SpecForge and Model-Optimizer write them, an id names the layer whose output is captured, which is
the input of the next layer. Other heads have ids of the first kind there. As in SGLang, the first id decides: the usual
ids start with 2 in the first convention and with 1 in the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...plugins.errors import BuildError
from ..targets.family import default_taps

TAPS = "eagle_aux_hidden_state_layer_ids"


def are_ids(value: Any) -> bool:
    """Return True for a list of layer ids that is not empty."""
    return isinstance(value, list) and bool(value) and all(type(i) is int for i in value)


def taps_in_eagle_config(ids: Any) -> Any:
    """Return the taps that the entry in ``eagle_config`` lists; an illegal value is returned as it is."""
    return _next(ids) if are_ids(ids) and ids[0] == 1 else ids


def doubts_of_taps(config: Mapping[str, Any], num_layers: int) -> list[str]:
    """Describe how the layer ids of a legal config were read, if they could be read otherwise."""
    inner, outer = (config.get("eagle_config") or {}).get(TAPS), config.get(TAPS)
    ids = outer or inner or []
    where = "" if outer else " in eagle_config"
    if not outer and (taps := taps_in_eagle_config(ids)) != ids:
        return [
            f"the head lists layers {ids}{where}, read as layers whose outputs are captured: the taps are {taps}; if "
            f"the head was trained on the inputs of these layers, pass {_flag(ids)}"
        ]
    captured, usual = _next(ids), _usual_taps(num_layers)
    is_doubtful = captured == usual if outer else ids != usual
    if not ids or not is_doubtful or captured[-1] >= num_layers:
        return []
    return [
        f"the head lists layers {ids}{where}, read as layers whose inputs are tapped; if the head was trained on the "
        f"outputs of these layers, pass {_flag(captured)}"
    ]


def _usual_taps(num_layers: int) -> list[int]:
    try:
        return list(default_taps(num_layers))
    except BuildError:
        return []


def _next(ids: Sequence[int]) -> list[int]:
    return [i + 1 for i in ids]


def _flag(ids: Sequence[int]) -> str:
    return f"--taps {','.join(map(str, ids))}"
