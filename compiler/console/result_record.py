"""The JSON record of a generated result."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...engines import Acceptance, RequestOutput
    from ...engines.requests.results import TokenLogprob


def record(output: RequestOutput) -> dict[str, Any]:
    """Return a result as ``--json`` prints it."""
    figures = output.acceptance
    acceptance = asdict(figures) | {
        "acceptance_length": figures.acceptance_length,
        "tokens_per_round": figures.tokens_per_round,
        "later_acceptance_length": figures.later_acceptance_length,
        "lossy": figures.is_lossy,
        "accepted_per_position": figures.accepted_per_position,
    }
    return {
        "text": output.text,
        "token_ids": list(output.token_ids),
        "prompt_tokens": len(output.prompt_token_ids),
        "finish_reason": output.finish_reason,
        "stop_reason": output.stop_reason,
        "seed": output.seed,
        "draft": output.draft,
        "drafter": output.drafter,
        "acceptance": acceptance,
        "prefill_seconds": output.prefill_seconds,
        "decode_seconds": output.decode_seconds,
        "queue_seconds": output.queue_seconds,
        "time_to_first_token": output.time_to_first_token,
        "inter_token_latency": output.inter_token_latency,
        "warnings": list(output.warnings),
        "tokens_per_second": decoding_speed(output),
        **_scored("logprobs", output.logprobs),
        **_scored("prompt_logprobs", output.prompt_logprobs),
    }


def _scored(name: str, found: Sequence[TokenLogprob | None]) -> dict[str, Any]:
    """Return the logprobs of tokens, if they were requested."""
    return {name: [each and asdict(each) for each in found]} if found else {}


def lossy(acceptance: Acceptance) -> str:
    """Return the notice for text that an acceptance tolerance may have changed; empty for any other."""
    if not acceptance.is_lossy:
        return ""
    return f"lossy: with an acceptance tolerance of {acceptance.tolerance:g}, drafts may replace the target's tokens"


def decoding_speed(output: RequestOutput) -> float:
    """Return tokens per second of decoding; the first token belongs to the prefill."""
    return (len(output.token_ids) - 1) / max(output.decode_seconds, 1e-9)
