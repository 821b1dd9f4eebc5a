"""vLLM's JSON of speculation, as it is: ``--speculative-config``, and the variables of AWS's containers.

https://docs.vllm.ai/en/latest/features/speculative_decoding; an engine has its drafter built in, so ``model`` is not
loaded, and what else there is must be what the engine does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from ...plugins.errors import UsageError
from ..folder.manifest import Manifest
from ..policy.drafts_per_round import DraftsAsked
from ..requests.arguments import number
from ..strategies.asked import is_auto

VARIABLES = ("SM_VLLM_SPECULATIVE_CONFIG", "OPTION_SPECULATIVE_CONFIG")
_METHODS = {"eagle3": None, "eagle": None, "ngram": "ngram"}
_IGNORED = ("model", "revision", "quantization", "draft_tensor_parallel_size", "max_model_len", "prompt_lookup_max",
            "prompt_lookup_min", "parallel_drafting")  # fmt: skip


@dataclass(frozen=True)
class DefaultDrafts:
    """What a server does where a request says nothing; None leaves it to the engine.

    ``acceptance_tolerance`` above 0 makes requests lossy that do not say 0.
    """

    num_speculative_tokens: DraftsAsked | None = None
    draft: str | None = None
    acceptance_tolerance: float = 0.0


def speculation_of(text: str | None, environment: Mapping[str, str], manifest: Manifest) -> DefaultDrafts:
    """Read the JSON ``text``, or else the first of ``VARIABLES`` there is. Raises ``UsageError`` by the key's name."""
    where = "--speculative-config"
    if text is None:
        where = next((name for name in VARIABLES if environment.get(name)), "")
        if not where:
            return DefaultDrafts()
        text = environment[where]
    try:
        given = msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"{where} is no JSON: {error}", fix="give an object, as vLLM takes it") from None
    if not isinstance(given, dict):
        raise UsageError(f"{where} is no JSON object", fix='give one, such as {"num_speculative_tokens": 3}')
    return DefaultDrafts(_count(where, given, manifest), _draft(where, given, manifest), _tolerance(where, given))


def _count(where: str, given: dict[str, Any], manifest: Manifest) -> DraftsAsked | None:
    count = given.get("num_speculative_tokens")
    if count is None or is_auto(count):
        return count
    most = manifest.speculation.max_num_speculative_tokens
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= most:
        raise UsageError(
            f"{where}: num_speculative_tokens is {count!r}",
            why=f"the engine was built for 0 to {most}, or auto",
            fix=f"say {most} at most, or build the engine with --max-num-speculative-tokens {count}",
        )
    return count


def _tolerance(where: str, given: dict[str, Any]) -> float:
    value = given.get("acceptance_tolerance")
    return 0.0 if value is None else number(f"{where}: acceptance_tolerance", value, 0, 1)


def _draft(where: str, given: dict[str, Any], manifest: Manifest) -> str | None:
    for key in given:
        if key not in ("method", "num_speculative_tokens", "acceptance_tolerance", *_IGNORED):
            raise UsageError(f"{where}: {key!r} is not known here", fix="leave it out")
    method = given.get("method")
    if method is None:
        return None
    if method not in _METHODS:
        raise UsageError(
            f"{where}: method is {method!r}", why=f"known are {', '.join(_METHODS)}", fix="name one of them"
        )
    draft = _METHODS[method]
    if draft is None and manifest.drafter is None:
        raise UsageError(
            f"{where}: method is {method!r}, and this engine has no drafter",
            fix="build it with one, or say ngram",
        )
    return draft
