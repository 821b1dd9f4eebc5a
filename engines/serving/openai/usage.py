"""What a response took: tokens, and how speculation went."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...requests.results import Acceptance, RequestOutput


def usage(outputs: Sequence[RequestOutput], prompted: int, *, shows_answer: bool = True) -> dict[str, Any]:
    """Tokens of all choices, after ``prompted`` tokens of prompts, and how speculation went."""
    written = sum(len(output.token_ids) for output in outputs) if shows_answer else 0
    acceptance = Acceptance()
    for output in outputs:
        acceptance.add(output.acceptance)
    return {
        **counts(prompted, written),
        "prompt_tokens_details": {"cached_tokens": _cached(outputs)},
        "completion_tokens_details": {
            "accepted_prediction_tokens": acceptance.accepted,
            "rejected_prediction_tokens": acceptance.drafted - acceptance.accepted,
        },
        "speculation": speculation(acceptance),
    }


def counts(prompted: int, written: int) -> dict[str, Any]:
    """The tokens of a prompt and of what was written, as OpenAI's API names them."""
    return {"prompt_tokens": prompted, "completion_tokens": written, "total_tokens": prompted + written}


def _cached(outputs: Sequence[RequestOutput]) -> int:
    """Tokens of the prompts that no choice had to read."""
    least: dict[tuple[int, ...], int] = {}
    for output in outputs:
        prompt = tuple(output.prompt_token_ids)
        least[prompt] = min(least.get(prompt, output.cached_tokens), output.cached_tokens)
    return sum(least.values())


def speculation(acceptance: Acceptance) -> dict[str, Any]:
    """Rounds, drafts and how many of them were accepted, by their position in the round."""
    return {
        "rounds": acceptance.rounds,
        "rounds_without_drafts": acceptance.undrafted,
        "drafted_tokens": acceptance.drafted,
        "accepted_tokens": acceptance.accepted,
        "accepted_per_position": per_position(acceptance),
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


def per_position(acceptance: Acceptance) -> list[int]:
    """How many rounds accepted their first draft, their second, and so on."""
    return list(acceptance.accepted_per_position)


def figures(outputs: Sequence[RequestOutput], room: int) -> dict[str, Any]:
    """What the log says of an answer: how long it waited and took, the longest of its choices, and its rounds.

    ``room`` is how many tokens all caches hold.
    """
    told = usage(outputs, 0)["speculation"]
    rounds = ("rounds", "rounds_without_drafts", "drafted_tokens", "accepted_tokens", "accepted_per_position")
    lengths = ("acceptance_length", "later_acceptance_length")
    means = ("tokens_per_round", "verify_milliseconds_per_round", "draft_milliseconds_per_round")
    times = ("queue_seconds", "time_to_first_token", "inter_token_latency")
    held = sum(len(output.prompt_token_ids) + len(output.token_ids) for output in outputs)
    return {
        "prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs),
        "cached_tokens": _cached(outputs),
        "tokens": sum(len(output.token_ids) for output in outputs),
        **{name: round(max((getattr(output, name) for output in outputs), default=0.0), 5) for name in times},
        **{name: told[name] for name in (*rounds, *lengths, *means)},
        "cache_usage": round(min(1.0, held / room), 4) if room else 0.0,
    }
