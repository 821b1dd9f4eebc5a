"""Draft options of a call, validated against the engine's limits, with the engine's defaults for missing ones."""

from __future__ import annotations

from typing import Any

from ..plugins.errors import UsageError
from .draft_methods import METHODS, PLAIN, DraftMethod
from .folder.manifest import Manifest
from .policy.adaptive import Adaptive
from .policy.drafts_per_round import AUTO, Fixed, NumSpeculativeTokens, Policy, spaced_counts
from .policy.prior import measured
from .requests.arguments import integer, refusal

_REBUILD = "rebuild the engine with a head or with `--draft ngram`"


def decoding(
    manifest: Manifest,
    method: DraftMethod,
    policy: Policy,
    adaptive: Policy,
    draft: str | None,
    k: NumSpeculativeTokens | None,
) -> tuple[DraftMethod, Policy]:
    """Return the draft method and policy of a call's ``draft`` and ``k``, by default ``method`` and ``policy``.

    ``adaptive`` is the policy for ``auto``. Raises ``UsageError`` for a ``draft`` that the engine does not support, for
    more drafts than it has room for, and for drafts combined with plain decoding.
    """
    if draft is not None:
        method = usable_method(manifest, draft)
    if k is not None:
        policy = adaptive if is_auto(k) else Fixed(drafts_of(manifest, k))
    if draft is not None and not method.drafts:
        if k and not is_auto(k):
            raise UsageError(
                f"draft is {draft}, but num_speculative_tokens is {k}",
                why=f"{draft} is plain decoding, which has no drafts",
                fix="remove one of the two",
            )
        policy = Fixed(0)
    return method if policy.most else PLAIN, policy


def is_auto(k: Any) -> bool:
    """Return whether K is ``"auto"``, so that the policy adapts it."""
    return isinstance(k, str) and k == AUTO


def adaptive_policy(manifest: Manifest, *, prepares_rounds: bool = False) -> Adaptive:
    """Return the policy that adapts K, starting from the build's measurements if there are any, else from its K.

    ``prepares_rounds`` says that the backend prepares rounds of each K, so that the policy uses only a few.
    """
    speculation, most = manifest.speculation, manifest.speculation.max_num_speculative_tokens
    counts = spaced_counts(most) if prepares_rounds else None
    if speculation.measured is None:
        return Adaptive(speculation.num_speculative_tokens, most, counts=counts)
    prior = measured(speculation.measured.tokens, speculation.measured.costs, most)
    return Adaptive(prior.best, most, prior, manifest.method, counts)


def drafts_of(manifest: Manifest, k: Any) -> int:
    """Return K as an int; 0 is plain decoding. Raises ``UsageError`` if it exceeds the engine's maximum."""
    most = manifest.speculation.max_num_speculative_tokens
    why, fix = "this engine has no drafter and no room for drafts", f"remove num_speculative_tokens, or {_REBUILD}"
    if most:
        why = f"the engine's caches have room for {most} drafts per round"
        fix = "choose a smaller K (0 is plain decoding), or rebuild with a larger --num-speculative-tokens"
    return integer("num_speculative_tokens", k, 0, most, why=why, fix=fix)


def drafting_methods(manifest: Manifest) -> list[DraftMethod]:
    """Return the methods with which an engine can draft, its own first; none if it has no room for drafts."""
    if not manifest.speculation.max_num_speculative_tokens:
        return []
    own = manifest.draft_method
    usable = [each for each in METHODS.values() if each.drafts and (not each.needs_head or _has_head(own, each))]
    return sorted(usable, key=lambda each: each is not own)


def usable_method(manifest: Manifest, draft: Any) -> DraftMethod:
    """Return the method that ``draft`` names. Raises ``UsageError`` if the engine cannot use it."""
    own = manifest.draft_method
    usable = [each.name for each in METHODS.values() if not each.needs_head or _has_head(own, each)]
    if not isinstance(draft, str) or draft not in METHODS:
        raise refusal("draft", f"{', '.join(usable)}, or None for the engine's own method", draft)
    method = METHODS[draft]
    if draft not in usable:
        head = f"a head for {METHODS[method.heads].title}"
        raise UsageError(
            f"draft is {draft}, but this engine has no such drafter",
            why=f"its head is for {own.title}" if own.needs_head else "it was built without a head",
            fix=f"remove draft to use the engine's own method, or build an engine with {head}",
        )
    if method.drafts and not manifest.speculation.max_num_speculative_tokens:
        raise UsageError(
            f"draft is {draft}, but this engine cannot draft",
            why="it was built for plain decoding, without room for drafts in its windows and caches",
            fix=_REBUILD,
        )
    return method


def _has_head(own: DraftMethod, method: DraftMethod) -> bool:
    return own.needs_head and own.heads == method.heads
