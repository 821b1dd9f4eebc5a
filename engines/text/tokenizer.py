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

    def as_json(self) -> str:
        """What ``tokenizer.json`` says; the file may say something else by now."""
        return str(self._tokenizer.to_str())

    def encode(self, text: str, *, adds_special: bool = True) -> list[int]:
        """The ids of ``text``, with the special tokens that the tokenizer adds, or those alone that are in the text."""
        try:
            return list(self._tokenizer.encode(text, add_special_tokens=adds_special).ids)
        except Exception as error:  # as above
            raise UsageError(
                "the engine's tokenizer cannot encode this prompt", why=str(error), fix="pass token ids"
            ) from error

    def words(self, words: Iterable[str]) -> list[list[int]]:
        """The ids of words as vLLM takes them: at the beginning of a text, and after a space where that is a token.

        Raises ``UsageError`` for one without any token.
        """
        found = []
        for word in words:
            first, spaced = (self.encode(space + word.lstrip(), adds_special=False) for space in ("", " "))
            if not first:
                raise UsageError(f"bad_words: {word!r} has no token", fix="leave it out")
            found += [first, spaced] if len(spaced) == len(first) and spaced[0] != first[0] else [first]
        return found

    def ids_of(self, texts: Iterable[str]) -> frozenset[int]:
        """The ids of those texts that are tokens."""
        return frozenset(token for text in texts if (token := self._tokenizer.token_to_id(text)) is not None)

    def is_added(self, token_id: int) -> bool:
        """Whether an id is a special token or another that was added to the vocabulary, such as ``<|im_end|>``."""
        return token_id in self._tokenizer.get_added_tokens_decoder()

    def added_texts(self) -> dict[str, bool]:
        """The tokens that were added to the vocabulary, and whether ``decode`` leaves each of them out."""
        return {each.content: bool(each.special) for each in self._tokenizer.get_added_tokens_decoder().values()}

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ``ids``, special tokens left out."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def piece(self, token_id: int) -> str:
        """The text of one id by itself, also of a special token; a part of a character is U+FFFD."""
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False))

    def stream(self, *, shows_special: bool = False) -> TokenStream:
        """A decoder that is fed ids and gives text as soon as it is whole; it may show special tokens."""
        return TokenStream(self._tokenizer, shows_special=shows_special)


class TokenStream:
    """Incremental decoding: an id may give no text yet (part of a character) or several characters."""

    def __init__(self, tokenizer: Any, *, shows_special: bool) -> None:
        from tokenizers.decoders import DecodeStream

        self._tokenizer, self._stream = tokenizer, DecodeStream(skip_special_tokens=not shows_special)

    def push(self, token_id: int) -> str:
        """Return the text that ``token_id`` completes, perhaps none."""
        return self._stream.step(self._tokenizer, token_id) or ""
