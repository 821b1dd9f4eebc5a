"""vLLM's JSON configuration of speculation: ``--speculative-config`` and the variables of AWS's containers.

https://docs.vllm.ai/en/latest/features/speculative_decoding. An engine has its drafter built in, so ``model`` is not
loaded, and the other keys must match what the engine does. Ignored keys are reported with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...plugins.errors import UsageError, nearest
from ...plugins.unique_keys import unique_keys
from ..draft_methods import methods_in_vllm
from ..draft_options import is_auto
from ..folder.manifest import Manifest
from ..policy.drafts_per_round import NumSpeculativeTokens
from ..requests.arguments import number
from .speculative_option_map import NO_COUNTERPARTS, OF_A_BUILD, by_key

VARIABLES = ("SM_VLLM_SPECULATIVE_CONFIG", "OPTION_SPECULATIVE_CONFIG")
_READ = ("method", "num_speculative_tokens", "acceptance_tolerance")
_UNREAD = by_key(NO_COUNTERPARTS, OF_A_BUILD)


@dataclass(frozen=True)
class DefaultDrafts:
    """Draft defaults for requests that set none; None leaves the choice to the engine.

    ``acceptance_tolerance`` above 0 makes requests lossy unless they set it to 0.
    """

    num_speculative_tokens: NumSpeculativeTokens | None = None
    draft: str | None = None
    acceptance_tolerance: float = 0.0


@dataclass(frozen=True)
class SpeculationSettings:
    """The configured ``drafts``, and one sentence per reason about ``left_out`` keys."""

    drafts: DefaultDrafts = DefaultDrafts()
    left_out: tuple[str, ...] = ()


def speculation_of(text: str | None, environment: Mapping[str, str], manifest: Manifest) -> SpeculationSettings:
    """Parse the JSON ``text``, or the first variable of ``VARIABLES`` that is set.

    Raises ``UsageError`` that names the key.
    """
    origin = "--speculative-config"
    if text is None:
        origin = next((name for name in VARIABLES if environment.get(name)), "")
        if not origin:
            return SpeculationSettings()
        text = environment[origin]
    try:
        config = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
        json.loads(text, object_pairs_hook=unique_keys)  # the other parser keeps the last value of a repeated key
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UsageError(f"{origin} is not valid JSON: {error}", fix="use a JSON object in vLLM's format") from None
    if not isinstance(config, dict):
        raise UsageError(f"{origin} is not a JSON object", fix='use an object such as {"num_speculative_tokens": 3}')
    left_out = _ignored_keys(origin, config)
    drafts = DefaultDrafts(
        _count(origin, config, manifest), _draft(origin, config, manifest), _tolerance(origin, config)
    )
    return SpeculationSettings(drafts, left_out)


def _ignored_keys(origin: str, config: dict[str, Any]) -> tuple[str, ...]:
    """Return sentences about ignored keys, one per reason. Raises ``UsageError`` for an unknown key."""
    names: dict[str, list[str]] = {}
    for key, value in config.items():
        if key in _READ:
            continue
        if key not in _UNREAD:
            near = nearest(key, [*_READ, *_UNREAD], 1)
            raise UsageError(
                f"{origin}: unknown key {key!r}", fix=f"did you mean {near[0]}?" if near else ("remove the key")
            )
        entry = _UNREAD[key]
        if entry.takes(value):
            continue
        if entry.fix:
            raise UsageError(f"{origin}: {key} {repr(value)[:100]} is not supported", why=entry.why, fix=entry.fix)
        names.setdefault(entry.why, []).append(key)
    return tuple(f"{origin}: ignored: {', '.join(left)} ({why})" for why, left in names.items())


def _count(origin: str, config: dict[str, Any], manifest: Manifest) -> NumSpeculativeTokens | None:
    count = config.get("num_speculative_tokens")
    if count is None or is_auto(count):
        return count
    max_drafts = manifest.speculation.max_num_speculative_tokens
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= max_drafts:
        raise UsageError(
            f"{origin}: num_speculative_tokens {count!r} is not supported",
            why=f"this engine supports 0 to {max_drafts}, and auto",
            fix=f"use at most {max_drafts}, or build the engine with a larger --num-speculative-tokens",
        )
    return count


def _tolerance(origin: str, config: dict[str, Any]) -> float:
    value = config.get("acceptance_tolerance")
    return 0.0 if value is None else number(f"{origin}: acceptance_tolerance", value, 0, 1)


def _draft(origin: str, config: dict[str, Any], manifest: Manifest) -> str | None:
    method = config.get("method")
    if method is None:
        return None
    method, methods = method.lower() if isinstance(method, str) else repr(method), methods_in_vllm()
    if method not in methods:
        raise UsageError(f"{origin}: unknown method {method!r}", fix=f"use one of {', '.join(methods)}")
    if not methods[method].needs_head:
        return methods[method].name
    if manifest.drafter is None:
        raise UsageError(
            f"{origin}: method is {method!r}, but this engine has no drafter",
            fix="build the engine with a drafter, or use ngram",
        )
    return None  # the engine's own: vLLM's method names do not say how many drafter passes a head makes
