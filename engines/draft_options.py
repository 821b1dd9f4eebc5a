"""How a call decodes: its options on drafts, checked against what the engine has room for; else the engine's own."""

from __future__ import annotations

from typing import Any

from ..plugins.errors import UsageError
from .draft_methods import METHODS, PLAIN, DraftMethod
from .folder.manifest import Manifest
from .policy.adaptive import Adaptive
from .policy.drafts_per_round import AUTO, DraftsAsked, Fixed, Policy
from .policy.prior import measured
from .requests.arguments import integer, refusal

_REBUILD = "build again with `--draft ngram`, or with a head"


def decoding(
    manifest: Manifest,
    method: DraftMethod,
    policy: Policy,
    adaptive: Policy,
    draft: str | None,
    k: DraftsAsked | None,
) -> tuple[DraftMethod, Policy]:
    """Return the method and the policy of a call that says ``draft`` and ``k``; else they are as given.

    ``adaptive`` is the policy of a call that says ``auto``. Raises ``UsageError`` for a ``draft`` that the engine
    cannot do, for more drafts than there is room for, and for some where there are to be none.
    """
    if draft is not None:
        method = usable_method(manifest, draft)
    if k is not None:
        policy = adaptive if is_auto(k) else Fixed(drafts_of(manifest, k))
    if draft is not None and not method.drafts:
        if k and not is_auto(k):
            raise UsageError(
                f"draft is {draft} and num_speculative_tokens is {k}",
                why=f"with {draft} nothing is drafted: that is plain decoding",
                fix="leave one of the two out",
            )
        policy = Fixed(0)
    return method if policy.most else PLAIN, policy


def is_auto(k: Any) -> bool:
    """Whether a caller leaves K to what pays."""
    return isinstance(k, str) and k == AUTO


def adaptive_policy(manifest: Manifest) -> Adaptive:
    """Return the policy that finds out which K pays, beginning with what the build measured, or else with its K."""
    speculation, most = manifest.speculation, manifest.speculation.max_num_speculative_tokens
    if speculation.measured is None:
        return Adaptive(speculation.num_speculative_tokens, most)
    prior = measured(speculation.measured.tokens, speculation.measured.costs, most)
    return Adaptive(prior.best, most, prior, manifest.method)


def drafts_of(manifest: Manifest, k: Any) -> int:
    """Return K as an int; 0 is plain decoding. Raises ``UsageError`` for one that the engine has no room for."""
    most = manifest.speculation.max_num_speculative_tokens
    why, fix = "this engine has no drafter, and no room for other drafts", f"leave it out, or {_REBUILD}"
    if most:
        why = "the caches have room for no more drafts per round"
        fix = "choose a smaller K (0 is plain decoding), or rebuild with a larger --num-speculative-tokens"
    return integer("num_speculative_tokens", k, 0, most, why=why, fix=fix)


def usable_method(manifest: Manifest, draft: Any) -> DraftMethod:
    """Return the method that ``draft`` names. Raises ``UsageError`` where the engine lacks what it takes."""
    own = manifest.draft_method
    usable = [each.name for each in METHODS.values() if not each.needs_head or _has_head(own, each)]
    if not isinstance(draft, str) or draft not in METHODS:
        raise refusal("draft", f"{', '.join(usable)}, or left out for what the engine was built with", draft)
    method = METHODS[draft]
    if draft not in usable:
        head = f"a head for {METHODS[method.heads].title}"
        raise UsageError(
            f"draft is {draft}, and this engine has no such drafter",
            why=f"its head is for {own.title}" if own.needs_head else "it was built without a head",
            fix=f"leave it out for what the engine was built with, or build one with {head}",
        )
    if method.drafts and not manifest.speculation.max_num_speculative_tokens:
        raise UsageError(
            f"draft is {draft}, and this engine drafts nothing",
            why="it was built for plain decoding: there is no room for drafts in its windows and caches",
            fix=_REBUILD,
        )
    return method


def _has_head(own: DraftMethod, method: DraftMethod) -> bool:
    return own.needs_head and own.heads == method.heads
