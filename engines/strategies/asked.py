"""How a call decodes: what it says of drafts, held against what the engine has room for, else what the engine does."""

from __future__ import annotations

from typing import Any

from ...plugins.errors import UsageError
from ..folder.manifest import Draft, Manifest
from ..policy.drafts_per_round import Fixed, Policy
from ..requests.arguments import integer, refusal

_OWN: dict[Draft, str] = {"drafter": "parallel", "ngram": "ngram", "none": "plain"}
_ASKED = {"ngram": "ngram", "none": "plain"}
_REBUILD = "build again with `--draft ngram`, or with a P-EAGLE head"


def own_strategy(manifest: Manifest) -> str:
    """The name of the strategy that an engine was built for."""
    return _OWN[manifest.draft]


def decoding(manifest: Manifest, strategy: str, policy: Policy, draft: str | None, k: int | None) -> tuple[str, Policy]:
    """The name of the strategy and the policy of a call that says ``draft`` and ``k``; else they are as given.

    Raises ``UsageError`` for what is neither ``ngram`` nor ``none``, for more drafts than there is room for, and for
    some where there are to be none.
    """
    if draft is not None:
        strategy = _strategy_of(manifest, draft)
    if k is not None:
        policy = Fixed(drafts_of(manifest, k))
    if draft == "none":
        if k:
            raise UsageError(
                f"draft is none and num_speculative_tokens is {k}",
                why="with none nothing is drafted: that is plain decoding",
                fix="leave one of the two out",
            )
        policy = Fixed(0)
    return strategy if policy.most else "plain", policy


def drafts_of(manifest: Manifest, k: Any) -> int:
    """K as an int; 0 is plain decoding. Raises ``UsageError`` for one that the engine has no room for."""
    most = manifest.speculation.max_num_speculative_tokens
    why, fix = "this engine has no drafter, and no room for other drafts", f"leave it out, or {_REBUILD}"
    if most:
        why = "the caches have room for no more drafts per round"
        fix = "choose a smaller K (0 is plain decoding), or rebuild with a larger --num-speculative-tokens"
    return integer("num_speculative_tokens", k, 0, most, why=why, fix=fix)


def _strategy_of(manifest: Manifest, draft: Any) -> str:
    if not isinstance(draft, str) or draft not in _ASKED:
        raise refusal("draft", "ngram, none, or left out for what the engine was built with", draft)
    if draft == "ngram" and not manifest.speculation.max_num_speculative_tokens:
        raise UsageError(
            "draft is ngram, and this engine drafts nothing",
            why="it was built for plain decoding: there is no room for drafts in its windows and caches",
            fix=_REBUILD,
        )
    return _ASKED[draft]
