"""A tokenizer as llguidance needs it, in which every token that is text is text.

llguidance takes each token that was added to a vocabulary and looks like ``<tool_call>`` for a symbol that no text has.
Qwen's models write such tokens as text: a form that spells one out would force a token that it then refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLTokenizer
    from tokenizers import Tokenizer


def with_texts(read: LLTokenizer, known: Tokenizer, eos: Sequence[int], size: int) -> LLTokenizer:
    """Return the tokenizer that llguidance has ``read`` out of ``known``, its symbols the special tokens alone.

    ``eos`` end a text; ``size`` is the number of ids. It is ``read`` itself where nothing is to be changed.
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
    """What ``TokenizerWrapper`` asks for: the bytes of each token, and how text is cut into them."""

    bos_token_id = None

    def __init__(self, read: LLTokenizer, known: Tokenizer, special: Sequence[int]) -> None:
        self.eos_token_id, self.special_token_ids, self._read = read.eos_token, list(special), read
        count = max(known.get_vocab().values(), default=-1) + 1
        is_there = [known.id_to_token(token) is not None for token in range(count)]
        self.tokens = [bytes(read.decode_bytes([token])) if there else b"" for token, there in enumerate(is_there)]

    def __call__(self, text: bytes) -> list[int]:
        return self._read.tokenize_bytes(text)
