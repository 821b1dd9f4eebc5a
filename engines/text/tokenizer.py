"""The engine folder's tokenizer: text to ids and back, streaming."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ...plugins.errors import EnvironmentProblem, UsageError


class Tokenizer:
    """Wraps ``tokenizer.json``; ``eos_token_ids`` end a text."""

    def __init__(self, folder: Path, eos_token_ids: Iterable[int]) -> None:
        import tokenizers

        path = folder / "tokenizer.json"
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the binding raises bare Exception
            raise EnvironmentProblem(
                f"{path} cannot be read as a tokenizer", why=str(error), fix="rebuild the engine"
            ) from error
        self.eos_token_ids = frozenset(eos_token_ids)

    @property
    def vocab_size(self) -> int:
        """Number of ids the tokenizer knows."""
        return int(self._tokenizer.get_vocab_size())

    def encode(self, text: str) -> list[int]:
        """The ids of ``text``, special tokens added as the tokenizer prescribes."""
        return list(self._tokenizer.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def stream(self) -> TokenStream:
        """A decoder that is fed ids and gives text as soon as it is whole."""
        return TokenStream(self._tokenizer)


class TokenStream:
    """Incremental decoding: an id may give no text yet (part of a character) or several characters."""

    def __init__(self, tokenizer: Any) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """Return the text that ``token_id`` completes, perhaps none."""
        return self._stream.step(self._tokenizer, token_id) or ""


def check_prompt(ids: Sequence[int], vocab_size: int, max_seq_len: int) -> tuple[int, ...]:
    """Return ``ids`` as a tuple. Raises ``UsageError`` when empty, out of range, or too long for the cache."""
    prompt = tuple(int(i) for i in ids)
    if not prompt:
        raise UsageError("the prompt is empty", why="there is no token to continue from", fix="give at least one token")
    bad = [i for i in prompt if not 0 <= i < vocab_size]
    if bad:
        raise UsageError(
            f"token id {bad[0]} is out of range ({len(bad)} in this prompt)",
            why=f"the target's vocabulary has ids 0..{vocab_size - 1}",
            fix="encode the prompt with this engine's tokenizer",
        )
    if len(prompt) >= max_seq_len:
        raise UsageError(
            f"the prompt has {len(prompt)} tokens, the engine's cache holds {max_seq_len} including at least one new",
            fix=f"shorten it to {max_seq_len - 1} tokens, or rebuild with a larger --max-seq-len",
        )
    return prompt
