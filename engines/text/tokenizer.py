"""The engine's tokenizer: encoding, decoding and streaming."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, cached_property
from itertools import dropwhile
from pathlib import Path
from typing import Any

from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.problems import shown
from ..errors import PromptTooLong
from ..panics import is_library_fault, reason_of
from .tokenizer_limits import (
    MAX_DECODED_BYTES,
    MAX_ENCODED_BYTES,
    TokenizerLimits,
    limits_of,
    require_readable,
    steps_of,
)

_FIX = "use the tokenizer.json that belongs to the model"
_BYTE = re.compile("<0x([0-9A-F]{2})>")
_CHANGED = "Invalid prefix encountered"  # error of a stream if a token changes text before it
_REPLACEMENT = "\ufffd"
_UTF8 = getincrementaldecoder("utf-8")  # omits a partial character at the end
_CUT_TOKENS = 64  # how many tokens after a cut may differ from those of the uncut text


class Tokenizer:
    """Wraps ``tokenizer.json``; ``eos_token_ids`` end a text.

    Truncation, padding and merge dropout are disabled, whatever the file says; they are for training. Exceptions of the
    tokenizers library, including Rust panics, are converted to the project's errors.
    """

    def __init__(self, folder: Path, eos_token_ids: Iterable[int] = (), vocab_size: int | None = None) -> None:
        """Read the file. ``vocab_size`` is the number of the model's ids, which the tokenizer must not exceed.

        Raises ``EnvironmentProblem`` for a file that the library cannot read, ids that the model does not have, and
        steps that may make a text too long.
        """
        path = folder / "tokenizer.json"
        self._tokenizer, self._limits = _read(path)
        if vocab_size is not None:
            self._require_ids_below(vocab_size, path)
        self.eos_token_ids = frozenset(eos_token_ids)

    def _require_ids_below(self, vocab_size: int, path: Path) -> None:
        largest = max(self._limits.largest, *self._limits.inserted, 0)
        if largest >= vocab_size:
            is_inserted = largest > self._limits.largest
            raise EnvironmentProblem(
                f"{path} {'inserts token ids' if is_inserted else 'has token ids'} up to {largest}, "
                f"but the model's vocabulary has {vocab_size} ids",
                why="the post-processor adds these ids to texts"
                if is_inserted
                else "the tokenizer and the weights belong to different models",
                fix="use the checkpoint's own tokenizer.json",
            )

    @property
    def vocab_size(self) -> int:
        """Number of ids in the tokenizer's vocabulary."""
        return int(self._tokenizer.get_vocab_size())

    def as_json(self) -> str:
        """Return the loaded ``tokenizer.json`` without truncation and padding; the file may have changed since."""
        return str(self._tokenizer.to_str())

    def encode(
        self,
        text: str,
        *,
        adds_special: bool = True,
        max_seq_len: int | None = None,
        keep_last: int | None = None,
        name: str = "the text",
    ) -> list[int]:
        """Return the ids of ``text``, with the special tokens that the tokenizer adds, or only those in the text.

        If only the last ``keep_last`` ids are needed, as much of the end of the text is encoded as certainly has them,
        and some more, because a cut changes the ids near it.

        Releases the GIL. Raises ``UsageError`` for text that the tokenizer cannot encode or may make too long. Raises
        ``PromptTooLong`` with ``name``, without encoding, if so many characters cannot give fewer than ``max_seq_len``
        tokens; not with ``keep_last``.
        """
        if keep_last is not None:
            max_seq_len = None
            if self._limits.characters:
                text = text[-(keep_last + _CUT_TOKENS) * self._limits.characters :]
        self._require_short(text, max_seq_len, name)
        return self._encoded([text], adds_special=adds_special)[0]

    def _require_short(self, text: str, max_seq_len: int | None, name: str) -> None:
        limits = self._limits
        if max_seq_len is not None and limits.characters and len(text) > (max_seq_len - 1) * limits.characters:
            raise PromptTooLong(name, len(text), max_seq_len, unit="characters")
        size = 4 * len(text)  # upper bound in bytes
        if limits.encoding(size) > MAX_ENCODED_BYTES:
            size = len(text.encode(errors="surrogatepass"))
        if (num_tokens := limits.encoding(size)) > MAX_ENCODED_BYTES:
            raise UsageError(
                f"{name} has {len(text)} characters",
                why=f"the tokenizer may expand them to {num_tokens:,.0f} bytes, and at most {MAX_ENCODED_BYTES:,} are "
                "allowed",
                fix="shorten it, or pass token ids",
            )

    def _encoded(self, texts: Sequence[str], *, adds_special: bool) -> list[list[int]]:
        try:  # `encode` of one text would hold the GIL
            found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=adds_special)
            return [list(each.ids) for each in found]
        except BaseException as error:
            if not is_library_fault(error):
                raise
            raise UsageError(
                "the engine's tokenizer cannot encode this text", why=reason_of(error), fix="pass token ids"
            ) from error

    def words(self, words: Sequence[str]) -> list[list[int]]:
        """Return the ids of bad words as in vLLM: at the beginning of a text, and after a space if that is a token.

        Raises ``UsageError`` for a word without any token.
        """
        both = [space + word.lstrip() for word in words for space in ("", " ")]
        for text in both:
            self._require_short(text, None, "bad_words")
        ids = self._encoded(both, adds_special=False) if both else []
        found = []
        for word, first, spaced in zip(words, ids[::2], ids[1::2], strict=True):
            if not first:
                raise UsageError(
                    f"bad_words: {word!r} has no tokens",
                    why="the tokenizer removes all of its text",
                    fix="remove the word",
                )
            found += [first, spaced] if len(spaced) == len(first) and spaced[0] != first[0] else [first]
        return found

    def ids_of(self, texts: Iterable[str]) -> frozenset[int]:
        """Return the ids of those texts that are tokens."""
        return frozenset(token for text in texts if (token := self._tokenizer.token_to_id(text)) is not None)

    def is_added(self, token_id: int) -> bool:
        """Return True if an id is a special or another added token, such as ``<|im_end|>``."""
        return token_id in self._added_ids

    @cached_property
    def _added_ids(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    @cached_property
    def added_texts(self) -> dict[str, bool]:
        """The added tokens, each with whether ``decode`` omits it."""
        return {each.content: bool(each.special) for each in self._tokenizer.get_added_tokens_decoder().values()}

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids`` without special tokens. Raises ``UsageError`` for too many ids."""
        if len(ids) > self._most_ids:
            raise UsageError(
                f"{len(ids)} token ids are too many to decode at once",
                why=f"the limit is {self._most_ids}, because a token can be {self._limits.longest} bytes long",
                fix="decode them in several calls",
            )
        return self._decoded(ids, skips_special=True)

    @cached_property
    def _most_ids(self) -> int:
        return int(MAX_DECODED_BYTES // self._limits.decoding(self._limits.longest))

    def piece(self, token_id: int) -> str:
        """Return the text of a single id within a text, including special tokens; a partial character is U+FFFD."""
        text = self._decoded([token_id], skips_special=False)
        return self._decoded([token_id] * 2, skips_special=False)[len(text) :] if self._trims_start else text

    def bytes_of(self, token_id: int) -> bytes:
        """Return the bytes of a single id within a text. Those of a partial character are not UTF-8."""
        token = None if self.is_added(token_id) else self._tokenizer.id_to_token(token_id)
        if token and "ByteLevel" in self._decoders and all(letter in _bytes_of_letters() for letter in token):
            return bytes(_bytes_of_letters()[letter] for letter in token)
        return self._fallback_byte(token_id) or self.piece(token_id).encode()

    def _fallback_byte(self, token_id: int) -> bytes:
        """Return the byte of a token like ``<0x0A>``, which is part of a character; nothing for other tokens."""
        if "ByteFallback" not in self._decoders or self.is_added(token_id):
            return b""
        code = _BYTE.fullmatch(self._tokenizer.id_to_token(token_id) or "")
        return bytes.fromhex(code[1]) if code else b""

    def text_bytes_of(self, token_id: int) -> bytes:
        """Return the bytes that a single id adds to the text of ``decode``: none if it is a special token."""
        return b"" if token_id in self._special_ids else self.bytes_of(token_id)

    @cached_property
    def _special_ids(self) -> frozenset[int]:
        return frozenset(at for at, each in self._tokenizer.get_added_tokens_decoder().items() if each.special)

    @cached_property
    def _decoders(self) -> frozenset[str]:
        return frozenset(str(step.get("type")) for step in steps_of(self._tokenizer.decoder))

    @property
    def _trims_start(self) -> bool:
        """Return True if ``decode`` drops a space at the start of a text, as tokenizers of SentencePiece do."""
        return not self._decoders.isdisjoint(("Strip", "Metaspace"))

    def _decoded(self, ids: Sequence[int], *, skips_special: bool) -> str:
        try:
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=skips_special))
        except BaseException as error:
            if not is_library_fault(error):
                raise
            raise _undecodable(error) from error

    def stream(self, *, after: int | None = None, shows_special: bool = False) -> TokenStream:
        """Return a decoder that takes ids and returns text as soon as it is complete; it can show special tokens.

        The text continues one that ends with the id ``after``; None begins a text, without a space at its start if the
        tokenizer drops that.
        """
        bytes_of = self.bytes_of if shows_special else self.text_bytes_of
        if not self._trims_start:
            after = None
        elif after is not None and (self._fallback_byte(after) or _REPLACEMENT in self.piece(after)):
            after = self._word  # the library could hold it back as part of a character, which is not the answer's
        return TokenStream(self._tokenizer, bytes_of, after=after, shows_special=shows_special)

    @cached_property
    def _word(self) -> int | None:
        """The first id with text of its own, if there is one."""
        ids = range(self._limits.largest + 1)
        words = (each for each in ids if not self.is_added(each) and not self._fallback_byte(each))
        return next((each for each in words if self._decoded([each], skips_special=True)), None)


class TokenStream:
    """Incremental decoding: an id may give no text yet (part of a character) or several characters.

    Each byte that is not part of a character becomes U+FFFD. ``decode`` also replaces the whole characters in the same
    run of byte tokens (``<0x0A>``); a stream has returned those before it, and keeps them.
    """

    def __init__(
        self, tokenizer: Any, bytes_of: Callable[[int], bytes], *, after: int | None, shows_special: bool
    ) -> None:
        """The text continues one that ends with the id ``after``, of which this stream returns nothing."""
        self._tokenizer, self._bytes_of, self._shows_special = tokenizer, bytes_of, shows_special
        self._unshown: list[int] = []  # the last ids, which have given no text yet
        self._begin()
        if after is not None:
            self.push(after)
            self._unshown.clear()

    def _begin(self) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream = DecodeStream(skip_special_tokens=not self._shows_special)

    def push(self, token_id: int) -> str:
        """Return the text that ``token_id`` completes, possibly empty. Raises ``EnvironmentProblem``."""
        self._unshown.append(token_id)
        try:
            text = self._completed(token_id)
        except BaseException as error:
            if not is_library_fault(error):
                raise
            raise _undecodable(error) from error
        if text:
            self._unshown.clear()
        return text

    def end(self) -> str:
        """Return the last characters that are complete, and forget the rest.

        A text that ends in U+FFFD is held back, because its last ids may be part of another character. Whole characters
        before these ids were not held back: the decoder drops them, such as a space at the start of a text.
        """
        held_back = dropwhile(_is_whole, map(self._bytes_of, self._unshown))
        text = _UTF8("replace").decode(b"".join(held_back))
        self._unshown.clear()
        return text

    def _completed(self, token_id: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token_id) or ""
        except Exception as error:  # the library has no type for it
            if _CHANGED not in str(error):
                raise
        self._begin()
        return "".join(self._stream.step(self._tokenizer, each) or "" for each in self._unshown)


def _is_whole(content: bytes) -> bool:
    """Return True for whole characters, if U+FFFD is not among them."""
    return _REPLACEMENT not in content.decode(errors="replace")


@cache
def _bytes_of_letters() -> Mapping[str, int]:
    """Return the byte of each letter of byte-level tokens: bytes that cannot be printed follow U+00FF in order."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = {*ByteLevel.alphabet()}
    hidden = [byte for byte in range(256) if chr(byte) not in letters]
    return {chr(byte): byte for byte in range(256) if chr(byte) in letters} | {
        chr(256 + at): byte for at, byte in enumerate(hidden)
    }


def _read(path: Path) -> tuple[Any, TokenizerLimits]:
    """The tokenizer of a file, and its limits. Raises ``EnvironmentProblem``."""
    import tokenizers

    try:
        content = path.read_bytes()
        require_readable(content)
        tokenizer = tokenizers.Tokenizer.from_buffer(content)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None) is not None:
            tokenizer.model.dropout = None
        limits = limits_of(tokenizer)
    except BaseException as error:  # the binding raises bare Exception and panics
        if not is_library_fault(error):
            raise
        raise EnvironmentProblem(f"{path} cannot be read as a tokenizer", why=reason_of(error), fix=_FIX) from error
    limits.require_possible()
    _require_one_text_each(tokenizer, path)
    return tokenizer, limits


def _require_one_text_each(tokenizer: Any, path: Path) -> None:
    """Raise ``EnvironmentProblem`` if two tokens share an id: its text would be random, and differ from load to
    load."""
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    if len({*vocabulary.values()}) < len(vocabulary):
        token_of_id: dict[int, str] = {}
        for token, number in vocabulary.items():
            if (other := token_of_id.setdefault(number, token)) != token:
                raise EnvironmentProblem(
                    f"{path} assigns one id to two tokens",
                    why=f"token id {number} could be decoded as {shown(other)} or as {shown(token)}",
                    fix=_FIX,
                )


def _undecodable(error: BaseException) -> EnvironmentProblem:
    return EnvironmentProblem("the engine's tokenizer cannot decode the text", why=reason_of(error), fix=_FIX)
