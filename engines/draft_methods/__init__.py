"""The draft methods, one file each, and the table that everything else reads: parser, builder, runtime, servers."""

from __future__ import annotations

from ...plugins.errors import EnvironmentProblem
from ...plugins.optional_packages import upgrade
from . import eagle3, ngram, none, peagle, peagle_chain
from .record import DraftMethod, Passes, Proposer, Strategy

__all__ = [
    "METHODS",
    "PLAIN",
    "DraftMethod",
    "Passes",
    "Proposer",
    "Strategy",
    "head_named",
    "head_titles",
    "headless_named",
    "method_named",
    "method_of_heads",
    "methods_in_vllm",
    "names_for_builds",
    "register",
]

METHODS: dict[str, DraftMethod] = {}
PLAIN = none.METHOD  # plain decoding: what every other method's text must equal


def register(method: DraftMethod) -> None:
    """Offer a method by its name, from ``--draft`` to the metrics."""
    METHODS[method.name] = method


for _each in (peagle.METHOD, peagle_chain.METHOD, eagle3.METHOD, ngram.METHOD, none.METHOD):
    register(_each)


def method_named(name: str) -> DraftMethod:
    """Return the method of an engine. Raises ``EnvironmentProblem`` for one that is not known here."""
    if name not in METHODS:
        raise EnvironmentProblem(
            f"the draft method {name!r} is not known here",
            why=f"known are {', '.join(METHODS)}",
            fix=f"install the version of peagle-compile that built the engine ({upgrade()})",
        )
    return METHODS[name]


def names_for_builds() -> list[str]:
    """Return what ``--draft`` of a build may say in place of a head: kinds of heads, and methods without one."""
    return [each.name for each in METHODS.values() if not each.variant_of]


def head_titles() -> dict[str, str]:
    """Return the titles of the kinds of heads, by the method's name."""
    return {each.name: each.title for each in METHODS.values() if each.needs_head and not each.variant_of}


def method_of_heads(passes: Passes) -> DraftMethod:
    """Return what an engine does by itself with a head that drafts in so many passes."""
    return next(each for each in METHODS.values() if each.passes is passes and not each.variant_of)


def headless_named(draft: str | None) -> DraftMethod | None:
    """Return the method without a head that ``--draft`` names; it goes before a folder of the same name."""
    method = METHODS.get(draft or "")
    return None if method is None or method.needs_head else method


def head_named(draft: str | None) -> str | None:
    """Return the head that ``--draft`` names, if it names one."""
    return None if headless_named(draft) else draft


def methods_in_vllm() -> dict[str, DraftMethod]:
    """Return the methods by the names that vLLM's ``--speculative-config`` has for them.

    Where a name means any kind of head, the first of them stands for all.
    """
    return {name: each for each in reversed(METHODS.values()) for name in each.vllm_names}
