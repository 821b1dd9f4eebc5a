"""The draft methods, one file each, and the table of them that all other modules read."""

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
PLAIN = none.METHOD  # plain decoding, whose text every other method must reproduce


def register(method: DraftMethod) -> None:
    """Add a method to the table, from which ``--draft``, the manifest and the metrics take its name."""
    METHODS[method.name] = method


for _each in (peagle.METHOD, peagle_chain.METHOD, eagle3.METHOD, ngram.METHOD, none.METHOD):
    register(_each)


def method_named(name: str) -> DraftMethod:
    """Return the method of that name. Raises ``EnvironmentProblem`` if it is unknown."""
    if name not in METHODS:
        raise EnvironmentProblem(
            f"unknown draft method {name!r}",
            why=f"this version supports {', '.join(METHODS)}",
            fix=f"install the version of peagle-compile that built the engine ({upgrade()})",
        )
    return METHODS[name]


def names_for_builds() -> list[str]:
    """Return the names that ``--draft`` of a build accepts: kinds of heads, and methods without a head."""
    return [each.name for each in METHODS.values() if not each.variant_of]


def head_titles() -> dict[str, str]:
    """Return the titles of the kinds of heads, by method name."""
    return {each.name: each.title for each in METHODS.values() if each.needs_head and not each.variant_of}


def method_of_heads(passes: Passes) -> DraftMethod:
    """Return the default method for heads that need this many drafter passes."""
    return next(each for each in METHODS.values() if each.passes is passes and not each.variant_of)


def headless_named(draft: str | None) -> DraftMethod | None:
    """Return the method without a head that ``--draft`` names; it takes precedence over a folder of the same name."""
    method = METHODS.get(draft or "")
    return None if method is None or method.needs_head else method


def head_named(draft: str | None) -> str | None:
    """Return the kind of head that ``--draft`` names, or None."""
    return None if headless_named(draft) else draft


def methods_in_vllm() -> dict[str, DraftMethod]:
    """Return the methods by their names in vLLM's ``--speculative-config``.

    If a name covers several kinds of heads, it maps to the first.
    """
    return {name: each for each in reversed(METHODS.values()) for name in each.vllm_names}
