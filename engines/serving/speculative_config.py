"""vLLM's JSON of speculation, as it is: ``--speculative-config``, and the variables of AWS's containers.

https://docs.vllm.ai/en/latest/features/speculative_decoding; an engine has its drafter built in, so ``model`` is not
loaded, and what else there is must be what the engine does. What says nothing here is told, with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...plugins.errors import UsageError, nearest
from ..draft_methods import methods_in_vllm
from ..draft_options import is_auto
from ..folder.manifest import Manifest
from ..policy.drafts_per_round import DraftsAsked
from ..requests.arguments import number
from .speculative_words import NO_COUNTERPARTS, OF_A_BUILD, by_key

VARIABLES = ("SM_VLLM_SPECULATIVE_CONFIG", "OPTION_SPECULATIVE_CONFIG")
_READ = ("method", "num_speculative_tokens", "acceptance_tolerance")
_UNREAD = by_key(NO_COUNTERPARTS, OF_A_BUILD)


@dataclass(frozen=True)
class DefaultDrafts:
    """What a server does where a request says nothing; None leaves it to the engine.

    ``acceptance_tolerance`` above 0 makes requests lossy that do not say 0.
    """

    num_speculative_tokens: DraftsAsked | None = None
    draft: str | None = None
    acceptance_tolerance: float = 0.0


@dataclass(frozen=True)
class SpeculationSaid:
    """The ``drafts`` that were asked for, and sentences on what was ``left_out``, one for each reason."""

    drafts: DefaultDrafts = DefaultDrafts()
    left_out: tuple[str, ...] = ()


def speculation_of(text: str | None, environment: Mapping[str, str], manifest: Manifest) -> SpeculationSaid:
    """Read the JSON ``text``, or else the first of ``VARIABLES`` there is. Raises ``UsageError`` by the key's name."""
    where = "--speculative-config"
    if text is None:
        where = next((name for name in VARIABLES if environment.get(name)), "")
        if not where:
            return SpeculationSaid()
        text = environment[where]
    try:
        given = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}", fix="give an object, as vLLM takes it") from None
    if not isinstance(given, dict):
        raise UsageError(f"{where} is no JSON object", fix='give one, such as {"num_speculative_tokens": 3}')
    left_out = _left_out(where, given)
    drafts = DefaultDrafts(_count(where, given, manifest), _draft(where, given, manifest), _tolerance(where, given))
    return SpeculationSaid(drafts, left_out)


def _left_out(where: str, given: dict[str, Any]) -> tuple[str, ...]:
    """What says nothing here, told once for all that have one reason. Raises ``UsageError`` for what is not known."""
    names: dict[str, list[str]] = {}
    for key, value in given.items():
        if key in _READ:
            continue
        if key not in _UNREAD:
            near = nearest(key, [*_READ, *_UNREAD], 1)
            raise UsageError(
                f"{where}: {key!r} is not known here", fix=f"did you mean {near[0]}?" if near else "leave it out"
            )
        entry = _UNREAD[key]
        if entry.takes(value):
            continue
        if entry.fix:
            raise UsageError(f"{where}: {key} {repr(value)[:100]} is not to be had here", why=entry.why, fix=entry.fix)
        names.setdefault(entry.why, []).append(key)
    return tuple(f"{where}: not read: {', '.join(left)} ({why})" for why, left in names.items())


def _count(where: str, given: dict[str, Any], manifest: Manifest) -> DraftsAsked | None:
    count = given.get("num_speculative_tokens")
    if count is None or is_auto(count):
        return count
    most = manifest.speculation.max_num_speculative_tokens
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= most:
        raise UsageError(
            f"{where}: num_speculative_tokens is {count!r}",
            why=f"the engine was built for 0 to {most}, or auto",
            fix=f"say {most} at most, or build the engine with more --num-speculative-tokens",
        )
    return count


def _tolerance(where: str, given: dict[str, Any]) -> float:
    value = given.get("acceptance_tolerance")
    return 0.0 if value is None else number(f"{where}: acceptance_tolerance", value, 0, 1)


def _draft(where: str, given: dict[str, Any], manifest: Manifest) -> str | None:
    method = given.get("method")
    if method is None:
        return None
    method, methods = method.lower() if isinstance(method, str) else repr(method), methods_in_vllm()
    if method not in methods:
        raise UsageError(
            f"{where}: method is {method!r}", why=f"known are {', '.join(methods)}", fix="name one of them"
        )
    if not methods[method].needs_head:
        return methods[method].name
    if manifest.drafter is None:
        raise UsageError(
            f"{where}: method is {method!r}, and this engine has no drafter",
            fix="build it with one, or say ngram",
        )
    return None  # the engine's own: vLLM's names of heads say nothing of how many passes one makes
