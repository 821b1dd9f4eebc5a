"""Adapts a tokenizer for llguidance, so that tokens that are text are treated as text.

llguidance treats every added token that looks like ``<tool_call>`` as a symbol that no text contains. Qwen's models
write such tokens as text, so a form that contains one would force a token that llguidance then refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer


def with_texts(read: LLTokenizer, known: Tokenizer, eos: Sequence[int], size: int) -> LLTokenizer:
    """Return the tokenizer that llguidance has ``read`` from ``known``, with only special tokens as symbols.

    ``eos`` end a text; ``size`` is the number of ids. Returns ``read`` itself if nothing changes.
    """
    import llguidance

    added = known.get_added_tokens_decoder()
    special = {token for token, each in added.items() if each.special} | set(eos)
    if not eos or not any(read.is_special_token(token) for token in added if token not in special):
        return read
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_ReadTokenizer(read, known, sorted(special))), n_vocab=size, eos_token=list(eos)
    )


class _ReadTokenizer:
    """The interface that ``TokenizerWrapper`` requires: the bytes of each token, and a function that tokenizes text."""

    bos_token_id = None

    def __init__(self, read: LLTokenizer, known: Tokenizer, special: Sequence[int]) -> None:
        self.eos_token_id, self.special_token_ids, self._read = read.eos_token, list(special), read
        count = max(known.get_vocab().values(), default=-1) + 1
        is_there = [known.id_to_token(token) is not None for token in range(count)]
        self.tokens = [bytes(read.decode_bytes([token])) if there else b"" for token, there in enumerate(is_there)]

    def __call__(self, text: bytes) -> list[int]:
        return self._read.tokenize_bytes(text)
