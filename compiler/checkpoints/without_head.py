"""What ``--draft`` says in place of a head, which goes before a folder or a short name of the same letters."""

from __future__ import annotations

NGRAM = "ngram"  # drafts are looked up in the text
NO_DRAFTS = "none"  # plain decoding
