"""Output tensors of a model: pieces of text, and with the last one the statistics of the request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ...requests.results import Delta, RequestOutput


def tensors_of(
    utilities: Any, deltas: Iterable[Delta], output: RequestOutput | None, *, shows_ids: bool, shows_logprobs: bool
) -> list[Any]:
    """Return the tensors of pieces that are sent together. ``output`` is given with the last ones.

    ``text_output`` is the text. ``output_ids`` and ``output_log_probs`` are included if requested. The others give the
    finish reason and the draft statistics.
    """
    pieces = list(deltas)
    found = [_text(utilities, "text_output", "".join(piece.text for piece in pieces))]
    if shows_ids:
        found.append(_tensor(utilities, "output_ids", [each for p in pieces for each in p.token_ids], np.int32))
    if shows_logprobs:
        likely = [each.logprob for piece in pieces for each in piece.logprobs]
        found.append(_tensor(utilities, "output_log_probs", likely, np.float32))
    if output is None:
        return found
    acceptance = output.acceptance
    found.append(_text(utilities, "finish_reason", output.finish_reason))
    counts = {
        "num_prompt_tokens": len(output.prompt_token_ids),
        "num_output_tokens": len(output.token_ids),
        "num_draft_rounds": acceptance.rounds,
        "num_draft_proposed": acceptance.drafted,
        "num_draft_accepted": acceptance.accepted,
    }
    found += [_tensor(utilities, name, [count], np.int32) for name, count in counts.items()]
    found.append(_tensor(utilities, "acceptance_length", [acceptance.acceptance_length], np.float32))
    found.append(_tensor(utilities, "lossy", [acceptance.is_lossy], np.bool_))
    if shows_logprobs:
        found.append(_tensor(utilities, "cum_log_probs", [sum(each.logprob for each in output.logprobs)], np.float32))
    return found


def _text(utilities: Any, name: str, text: str) -> Any:
    return utilities.Tensor(name, np.array([[text.encode()]], np.object_))


def _tensor(utilities: Any, name: str, values: list[Any], dtype: Any) -> Any:
    return utilities.Tensor(name, np.array([values], dtype))
