"""How a call decodes: what it says of drafts, held against what the engine has room for, else what the engine does."""

from __future__ import annotations

from typing import Any

from ...plugins.errors import UsageError
from ..folder.manifest import Manifest, Method
from ..policy.adaptive import Adaptive
from ..policy.drafts_per_round import AUTO, DraftsAsked, Fixed, Policy
from ..policy.prior import measured
from ..requests.arguments import integer, refusal
from .base import STRATEGIES

_BY_METHOD: dict[Method, str] = {"peagle": "tree", "eagle3": "autoregressive"}
_OTHER = {"peagle-chain": "parallel"}  # ways to draft with a P-EAGLE head beside its engine's own
_ASKED = {"ngram": "ngram", "none": "plain"}
_TITLES: dict[str, str] = {"peagle": "a P-EAGLE head", "eagle3": "an EAGLE-3 head"}
_REBUILD = "build again with `--draft ngram`, or with a head"


def own_strategy(manifest: Manifest) -> str:
    """The name of the strategy that an engine was built for."""
    return _BY_METHOD[manifest.method] if manifest.method else _ASKED[manifest.draft]


def named_strategy(manifest: Manifest, name: str) -> str:
    """``name``, if it is a strategy that the engine has what it takes for; ``UsageError`` otherwise."""
    of_heads, own = {*_BY_METHOD.values(), *_OTHER.values()}, {own_strategy(manifest)}
    if manifest.method == "peagle":
        own |= {*_OTHER.values()}
    known = sorted(each for each in STRATEGIES if each not in of_heads - own)
    if name not in known:
        raise refusal("strategy", f"one of {', '.join(known)}", name)
    return name


def decoding(
    manifest: Manifest, strategy: str, policy: Policy, adaptive: Policy, draft: str | None, k: DraftsAsked | None
) -> tuple[str, Policy]:
    """The name of the strategy and the policy of a call that says ``draft`` and ``k``; else they are as given.

    ``adaptive`` is the policy of one that says ``auto``. Raises ``UsageError`` for what is neither ``ngram`` nor
    ``none`` nor the kind of the engine's own drafter, for more drafts than there is room for, and for some where there
    are to be none.
    """
    if draft is not None:
        strategy = _strategy_of(manifest, draft)
    if k is not None:
        policy = adaptive if is_auto(k) else Fixed(drafts_of(manifest, k))
    if draft == "none":
        if k and not is_auto(k):
            raise UsageError(
                f"draft is none and num_speculative_tokens is {k}",
                why="with none nothing is drafted: that is plain decoding",
                fix="leave one of the two out",
            )
        policy = Fixed(0)
    return strategy if policy.most else "plain", policy


def is_auto(k: Any) -> bool:
    """Whether a caller leaves K to what pays."""
    return isinstance(k, str) and k == AUTO


def adaptive_policy(manifest: Manifest) -> Adaptive:
    """The policy that finds out which K pays, beginning with what the build measured, or else with its K."""
    speculation, most = manifest.speculation, manifest.speculation.max_num_speculative_tokens
    if speculation.measured is None:
        return Adaptive(speculation.num_speculative_tokens, most)
    prior = measured(speculation.measured.tokens, speculation.measured.costs, most)
    return Adaptive(prior.best, most, prior, own_strategy(manifest))


def drafts_of(manifest: Manifest, k: Any) -> int:
    """K as an int; 0 is plain decoding. Raises ``UsageError`` for one that the engine has no room for."""
    most = manifest.speculation.max_num_speculative_tokens
    why, fix = "this engine has no drafter, and no room for other drafts", f"leave it out, or {_REBUILD}"
    if most:
        why = "the caches have room for no more drafts per round"
        fix = "choose a smaller K (0 is plain decoding), or rebuild with a larger --num-speculative-tokens"
    return integer("num_speculative_tokens", k, 0, most, why=why, fix=fix)


def _strategy_of(manifest: Manifest, draft: Any) -> str:
    own = manifest.method
    if isinstance(draft, str) and own and draft == own:
        return _BY_METHOD[own]
    if isinstance(draft, str) and own == "peagle" and draft in _OTHER:
        return _OTHER[draft]
    if isinstance(draft, str) and draft in _TITLES:
        has = f"its drafter is {_TITLES[own]}" if own else "it was built without a head"
        raise UsageError(
            f"draft is {draft}, and this engine has no such drafter",
            why=has,
            fix=f"leave it out for what the engine was built with, or build one with {_TITLES[draft]}",
        )
    if not isinstance(draft, str) or draft not in _ASKED:
        names = [*([own] if own else []), *(_OTHER if own == "peagle" else ()), *_ASKED]
        raise refusal("draft", f"{', '.join(names)}, or left out for what the engine was built with", draft)
    if draft == "ngram" and not manifest.speculation.max_num_speculative_tokens:
        raise UsageError(
            "draft is ngram, and this engine drafts nothing",
            why="it was built for plain decoding: there is no room for drafts in its windows and caches",
            fix=_REBUILD,
        )
    return _ASKED[draft]
