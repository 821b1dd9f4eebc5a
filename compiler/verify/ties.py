"""Whether a token that speculation changed is one that the target gives without any drafts as well.

Windows of other widths sum in another order. That moves the last bits, a rounding to codes or to 16 bits makes more of
them, and now and then two tokens are so close that it decides. Then plain decoding that was fed the same tokens in
other windows gives either, and nothing was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...engines import Engine, SamplingParams

_STEPS = (0, 1, 2, 3, 5, 8)  # tokens at the end that are decoded one by one; those before are one window


def is_tie(engine: Engine, ids: Sequence[int], token: int, params: SamplingParams) -> bool:
    """Whether plain decoding gives ``token`` after ``ids``, with the random numbers of ``params``, in some windows."""
    for steps in _STEPS[: len(ids)]:
        begun, rest = tuple(ids[: len(ids) - steps]), tuple(ids[len(ids) - steps :])
        if not begun:
            break
        output = engine.generate([begun], replace(params, max_tokens=steps + 1), num_speculative_tokens=0)[0]
        if tuple(output.token_ids) == (*rest, token):
            return True
    return False
