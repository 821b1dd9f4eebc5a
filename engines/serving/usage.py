"""Usage of answers: token counts and speculation statistics, for responses and the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..requests.results import Acceptance, RequestOutput


def total_acceptance(outputs: Sequence[RequestOutput]) -> Acceptance:
    """Return the draft acceptance summed over all choices."""
    acceptance = Acceptance()
    for output in outputs:
        acceptance.add(output.acceptance)
    return acceptance


def speculation(acceptance: Acceptance) -> dict[str, Any]:
    """Return the speculation statistics: rounds, drafts, acceptance by position, and times per round."""
    return {
        "rounds": acceptance.rounds,
        "rounds_without_drafts": acceptance.undrafted,
        "drafted_tokens": acceptance.drafted,
        "accepted_tokens": acceptance.accepted,
        "accepted_per_position": list(acceptance.accepted_per_position),
        "grammar_drafted_tokens": acceptance.grammar_drafted,
        "grammar_accepted_tokens": acceptance.grammar_accepted,
        "acceptance_length": round(acceptance.acceptance_length, 4),
        "later_acceptance_length": round(acceptance.later_acceptance_length, 4),
        "tokens_per_round": round(acceptance.tokens_per_round, 4),
        "verify_milliseconds_per_round": round(acceptance.milliseconds_per_round[0], 3),
        "draft_milliseconds_per_round": round(acceptance.milliseconds_per_round[1], 3),
        "acceptance_tolerance": acceptance.tolerance,
        "lossy": acceptance.is_lossy,
    }


def spec_decode_metrics(acceptance: Acceptance, max_drafts: int, *, is_detailed: bool) -> dict[str, Any]:
    """Return the statistics of one request's drafts under vLLM's names; ``max_drafts`` is the usual number of drafts.

    A grammar can force more drafts; then ``max_drafts`` is the largest number of the request. If they are detailed,
    they have the drafts of every round.
    """
    drafted, accepted = acceptance.drafted_by_round, acceptance.accepted_by_round
    max_drafts = max([max_drafts, *drafted])
    by_length: dict[int, list[int]] = {}
    for length, count in zip(drafted, accepted, strict=True):
        by_length.setdefault(length, [0] * (length + 1))[count] += 1
    return {
        "mean_acceptance_length": acceptance.acceptance_length,
        "draft_acceptance_rate": acceptance.accepted / acceptance.drafted if acceptance.drafted else 0.0,
        "acceptance_histogram": [acceptance.histogram.get(count, 0) for count in range(max_drafts + 1)],
        "acceptance_histogram_by_draft_length": {str(length): by_length[length] for length in sorted(by_length)},
        "num_spec_steps": acceptance.rounds,
        "num_accepted_draft_tokens": acceptance.accepted,
        "num_draft_tokens": acceptance.drafted,
        "num_spec_tokens": max_drafts,
        **({"per_step_accepted": accepted, "per_step_drafted": drafted} if is_detailed else {}),
    }


def figures(outputs: Sequence[RequestOutput], cached: int, room: int) -> dict[str, Any]:
    """Return an answer's statistics for the log: the longest queue time and latency of its choices, and its rounds.

    ``cached`` is the number of prompt tokens that the prefix cache had, and ``room`` the number of tokens that all
    caches hold.
    """
    speculation_figures = speculation(total_acceptance(outputs))
    rounds = ("rounds", "rounds_without_drafts", "drafted_tokens", "accepted_tokens", "accepted_per_position")
    lengths = ("acceptance_length", "later_acceptance_length")
    means = ("tokens_per_round", "verify_milliseconds_per_round", "draft_milliseconds_per_round")
    times = ("queue_seconds", "time_to_first_token", "inter_token_latency")
    held = sum(len(output.prompt_token_ids) + len(output.token_ids) for output in outputs)
    return {
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "cached_tokens": cached,
        "tokens": sum(len(output.token_ids) for output in outputs),
        **{name: round(max((getattr(output, name) for output in outputs), default=0.0), 5) for name in times},
        **{name: speculation_figures[name] for name in (*rounds, *lengths, *means)},
        "cache_usage": round(min(1.0, held / room), 4) if room else 0.0,
    }
