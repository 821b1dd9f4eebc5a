"""Draft options of a call, validated against the engine's limits, with the engine's defaults for missing ones.

An engine can have several drafters in memory. Each drafter has its own policy, because each has its own acceptance
rate.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from ..plugins.errors import UsageError
from ..plugins.problems import counted
from .draft_methods import METHODS, PLAIN, DraftMethod
from .folder.manifest import BUILT_IN, Manifest
from .policy.adaptive import Adaptive
from .policy.drafts_per_round import AUTO, Fixed, NumSpeculativeTokens, Policy, spaced_counts
from .policy.prior import measured
from .requests.arguments import integer, refusal, shown
from .running.request import Drafter

_REBUILD = "rebuild the engine with a head or with `--draft ngram`"


@dataclass(frozen=True)
class Decoding:
    """The draft method and the policy of a call, and the drafter of a method that needs one, with its name.

    ``drafter`` is None for the backend's own.
    """

    method: DraftMethod
    policy: Policy
    drafter: Drafter | None = None
    drafter_name: str = ""


@dataclass(frozen=True)
class DraftDefaults:
    """Defaults of calls that draft with one drafter of an engine, or without any.

    ``manifest`` is that of the engine with this drafter, ``adaptive`` the policy for ``auto``. ``drafter`` is None for
    the backend's own.
    """

    manifest: Manifest
    method: DraftMethod
    policy: Policy
    adaptive: Policy
    drafter: Drafter | None = None

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        drafter: Drafter | None = None,
        *,
        draft: str | None = None,
        policy: Policy | None = None,
        prepares_rounds: bool = False,
    ) -> DraftDefaults:
        """Return the defaults of the build, except for a given method (``draft``) and ``policy``.

        Raises ``UsageError`` for a ``draft`` that the engine does not support.
        """
        method = manifest.draft_method if draft is None else usable_method(manifest, draft)
        adaptive = adaptive_policy(manifest, prepares_rounds=prepares_rounds)
        chosen = adaptive if manifest.speculation.adapts else Fixed(manifest.speculation.num_speculative_tokens)
        return cls(manifest, method, policy or chosen, adaptive, drafter)

    def decoding(self, draft: str | None, k: NumSpeculativeTokens | None) -> Decoding:
        """Return how a call with these options decodes; None is the default.

        Raises ``UsageError`` for a ``draft`` that the engine does not support, for more drafts than it has room for,
        and for drafts combined with plain decoding.
        """
        method, policy = self.method, self.policy
        if draft is not None:
            method = usable_method(self.manifest, draft)
        if k is not None:
            policy = self.adaptive if is_auto(k) else Fixed(drafts_of(self.manifest, k))
        if not method.drafts and (draft is not None or policy.max_drafts):
            if k and not is_auto(k):
                raise UsageError(
                    f"draft is {method.name}, but num_speculative_tokens is {k}",
                    why=f"{method.name} is plain decoding, which has no drafts",
                    fix="remove one of them",
                )
            policy = Fixed(0)
        method = method if policy.max_drafts else PLAIN
        if not method.needs_head:
            return Decoding(method, policy)
        return Decoding(method, policy, self.drafter, self.manifest.drafter_name)


class LoadedDrafters:
    """The drafters of an engine that are in memory, by name, its own first. Calls choose one of them, or a method.

    If ``unfit`` is set, it returns the names of drafters that calls do not use unless they choose them.
    """

    def __init__(self, defaults: DraftDefaults) -> None:
        self.defaults = defaults
        self.unfit: Callable[[], Collection[str]] | None = None
        self._others: dict[str, DraftDefaults] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all loaded drafters."""
        return tuple(filter(None, (self.defaults.manifest.drafter_name, *self._others)))

    def add(self, defaults: DraftDefaults) -> None:
        """Make a further drafter available to calls."""
        self._others = {**self._others, defaults.manifest.drafter_name: defaults}  # others read it meanwhile

    def remove(self, name: str) -> Drafter | None:
        """Make this drafter unavailable to new calls; calls that use it keep it. Returns it. Raises ``UsageError``."""
        if name == self.defaults.manifest.drafter_name:
            raise UsageError(
                f"the drafter {name} cannot be unloaded",
                why="the engine was loaded with this drafter",
                fix=f"send requests with draft {PLAIN.name}, or load the engine with another drafter (draft=...)",
            )
        if name not in self.names:
            there = ", ".join(self.names) or "none"
            raise UsageError(
                f"no drafter named {name} is loaded",
                why=f"the loaded drafters are: {there}",
                fix="name one of them; one that is not loaded needs no unloading",
            )
        drafter = self._others[name].drafter
        self._others = {each: defaults for each, defaults in self._others.items() if each != name}
        return drafter

    def usual_drafts(self, draft: str | None, k: NumSpeculativeTokens | None) -> NumSpeculativeTokens | None:
        """Return the default K of calls with this ``draft``, given the caller's default ``k``; None is the engine's.

        The default is at most the maximum of the drafter that ``draft`` names, and None for plain decoding.
        """
        if draft == PLAIN.name:
            return None
        return k if draft not in self._others else _at_most(self._others[draft], k)

    def decoding(self, draft: str | None, k: NumSpeculativeTokens | None) -> Decoding:
        """Return how a call with these options decodes: ``draft`` is the name of a drafter or of a draft method.

        Raises the errors of ``DraftDefaults.decoding``, and ``UsageError`` for a drafter that is not loaded.
        """
        if draft is None and self.unfit is not None and self.defaults.method.needs_head:
            unfit = self.unfit()
            fitting = (
                each for each in (self.defaults, *self._others.values()) if each.manifest.drafter_name not in unfit
            )
            chosen = next(fitting, None)
            decoding = self.defaults.decoding(None, k)  # refuses what would be refused if this drafter did fit
            if chosen is None:
                return self.defaults.decoding(PLAIN.name, 0)
            return decoding if chosen is self.defaults else chosen.decoding(None, _at_most(chosen, k))
        if not isinstance(draft, str) or draft in METHODS:
            return self.defaults.decoding(draft, k)
        manifest = self.defaults.manifest
        if draft == manifest.drafter_name:
            return self.defaults.decoding(manifest.method, k)
        if draft in self._others:
            return self._others[draft].decoding(None, k)
        if draft == BUILT_IN or draft in manifest.drafters:
            raise UsageError(
                f"draft is {draft}, but that drafter is not loaded",
                why=f"the loaded drafters are: {', '.join(self.names) or 'none'}",
                fix="load it first (Engine.load_drafter, or POST /v1/drafters of a server), or remove draft",
            )
        return self.defaults.decoding(draft, k)


def _at_most(defaults: DraftDefaults, k: NumSpeculativeTokens | None) -> NumSpeculativeTokens | None:
    max_drafts = defaults.manifest.speculation.max_num_speculative_tokens
    return k if k is None or isinstance(k, str) else min(k, max_drafts)


def is_auto(k: Any) -> bool:
    """Return True if K is ``"auto"``, so that the policy adapts it."""
    return isinstance(k, str) and k == AUTO


def adaptive_policy(manifest: Manifest, *, prepares_rounds: bool = False) -> Adaptive:
    """Return the policy that adapts K, starting from the build's measurements if there are any, else from its K.

    If ``prepares_rounds``, the backend prepares rounds of each K, so the policy uses only a few values of K.
    """
    speculation, max_drafts = manifest.speculation, manifest.speculation.max_num_speculative_tokens
    counts = spaced_counts(max_drafts) if prepares_rounds else None
    if speculation.measured is None:
        return Adaptive(speculation.num_speculative_tokens, max_drafts, counts=counts)
    rounds = speculation.measured
    prior = measured(rounds.tokens, rounds.costs, max_drafts, {each.rows: each.costs for each in rounds.batches})
    return Adaptive(prior.best, max_drafts, prior, manifest.method, counts)


def drafts_of(manifest: Manifest, k: Any) -> int:
    """Return K as an int; 0 is plain decoding. Raises ``UsageError`` if it exceeds the engine's maximum."""
    max_drafts = manifest.speculation.max_num_speculative_tokens
    why, fix = "this engine has no drafter and no room for drafts", f"remove num_speculative_tokens, or {_REBUILD}"
    if max_drafts:
        why = f"the engine's caches have room for {counted(max_drafts, 'draft')} per round"
        fix = "choose a smaller K (0 is plain decoding), or rebuild with a larger --num-speculative-tokens"
    return integer("num_speculative_tokens", k, 0, max_drafts, why=why, fix=fix)


def drafting_methods(manifest: Manifest) -> list[DraftMethod]:
    """Return the methods with which an engine can draft, its own first; none if it has no room for drafts."""
    if not manifest.speculation.max_num_speculative_tokens:
        return []
    own_method = manifest.draft_method
    usable = [each for each in METHODS.values() if each.drafts and (not each.needs_head or _has_head(own_method, each))]
    return sorted(usable, key=lambda each: each is not own_method)


def engine_with(manifest: Manifest, draft: str | None) -> tuple[Manifest, str | None]:
    """Return the manifest of the engine with the drafter that ``draft`` names, and the draft method if it names one.

    Raises ``UsageError`` for a name that is neither.
    """
    if isinstance(draft, str) and (draft in manifest.drafters or (draft == BUILT_IN and manifest.drafter)):
        return manifest.using(draft), None
    built_in = manifest.using(BUILT_IN)
    return built_in, None if draft is None else usable_method(manifest, draft).name


def with_drafter(manifest: Manifest, name: Any) -> Manifest:
    """Return the manifest of the engine with one of its drafters. Raises ``UsageError`` if it has none of this name."""
    if isinstance(name, str) and name in METHODS:
        raise UsageError(
            f"{name} is a draft method, not a drafter", fix="calls can name it as draft without loading it"
        )
    there = [*([BUILT_IN] if manifest.drafter else []), *manifest.drafters]
    if name not in there:
        raise UsageError(
            f"the engine has no drafter {shown(name)}",
            why=f"the drafters of the engine are: {', '.join(there) or 'none'}",
            fix="use one of these, or add one with `peagle-compile drafter add`",
        )
    return manifest.using(name)


def usable_method(manifest: Manifest, draft: Any) -> DraftMethod:
    """Return the method that ``draft`` names. Raises ``UsageError`` if the engine cannot use it."""
    own_method = manifest.draft_method
    usable = [each.name for each in METHODS.values() if not each.needs_head or _has_head(own_method, each)]
    if not isinstance(draft, str) or draft not in METHODS:
        raise refusal(
            "draft", f"{', '.join([*usable, *manifest.drafters])}, or None for the engine's own method", draft
        )
    method = METHODS[draft]
    if draft not in usable:
        head = f"a head for {METHODS[method.heads].title}"
        raise UsageError(
            f"draft is {draft}, but this engine has no such drafter",
            why=f"the engine's head is for {own_method.title}"
            if own_method.needs_head
            else "the engine was built without a head",
            fix=f"remove draft to use the engine's own method, or build an engine with {head}",
        )
    if method.drafts and not manifest.speculation.max_num_speculative_tokens:
        raise UsageError(
            f"draft is {draft}, but this engine cannot draft",
            why="the engine was built for plain decoding, without room for drafts in its windows and caches",
            fix=_REBUILD,
        )
    return method


def _has_head(own_method: DraftMethod, method: DraftMethod) -> bool:
    return own_method.needs_head and own_method.heads == method.heads
