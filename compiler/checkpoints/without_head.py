"""What ``--draft`` says in place of a head, which goes before a folder or a short name of the same letters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...engines.folder.manifest import Draft

NGRAM = "ngram"  # drafts are looked up in the text
NO_DRAFTS = "none"  # plain decoding


def head_of(draft: str | None) -> str | None:
    """The head that ``--draft`` names, if it names one."""
    return None if draft in (NGRAM, NO_DRAFTS) else draft


def drafts_with(draft: str | None, k: int | None) -> Draft:
    """What is to draft, by ``--draft`` and K; nothing if either says so, so that a script may loop over K."""
    if draft == NO_DRAFTS or k == 0:
        return "none"
    return "ngram" if draft == NGRAM else "drafter"
