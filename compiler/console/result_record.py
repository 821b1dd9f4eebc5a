"""What ``--json`` says of a result."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...engines import RequestOutput


def record(output: RequestOutput) -> dict[str, Any]:
    """Return a result as ``--json`` prints it."""
    went = output.acceptance
    rates = {"acceptance_length": went.acceptance_length, "tokens_per_round": went.tokens_per_round}
    acceptance = asdict(went) | rates
    return {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "prompt_tokens": len(output.prompt_token_ids),
        "finish_reason": output.finish_reason,
        "seed": output.seed,
        "acceptance": acceptance,
        "prefill_seconds": output.prefill_seconds,
        "decode_seconds": output.decode_seconds,
        "tokens_per_second": decoding_speed(output),
    }


def decoding_speed(output: RequestOutput) -> float:
    """Return tokens per second of decoding; the first token belongs to the prompt's pass."""
    return (len(output.token_ids) - 1) / max(output.decode_seconds, 1e-9)
