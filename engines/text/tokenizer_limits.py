"""Limits of a tokenizer: how far the steps in ``tokenizer.json`` can expand a text, and how few tokens a text can have.

The file is untrusted. Its steps can expand a text without limit: forty replacements of ``a`` by ``aa`` make a terabyte
from one letter, and the library aborts the process when memory runs out. The limits are computed from the description
of the steps, without running them.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

from ...plugins.errors import EnvironmentProblem

# Bytes of normalized text from one text; the library needs about 100 bytes for each.
MAX_ENCODED_BYTES = 16 << 20
# Bytes of text from one token, and from all tokens that are decoded at once.
MAX_TOKEN_BYTES = 64 << 10
MAX_DECODED_BYTES = 1 << 30
_MIN_TEXT = 4096  # bytes that must be encodable, or the tokenizer is refused

Step = Mapping[str, Any]


@dataclass(frozen=True)
class Growth:
    """An upper bound for a length after some steps: ``factor * length + more``."""

    factor: float = 1.0
    more: float = 0.0

    def __call__(self, length: float) -> float:
        """Return the bound for a length."""
        return self.factor * length + self.more

    def then(self, other: Growth) -> Growth:
        """Return the bound for both, one after the other."""
        return Growth(other.factor * self.factor, other.factor * self.more + other.more)


@dataclass(frozen=True)
class TokenizerLimits:
    """Bounds of a tokenizer's output.

    ``encoding`` bounds the bytes of normalized text and the number of tokens by the bytes of a text. ``decoding``
    bounds the bytes of a text by those of its tokens, of which the longest has ``longest``. ``characters`` is the
    maximum number of characters per token, None if a step can drop text. ``largest`` is the largest token id, and
    ``inserted`` are the ids that the post-processor adds.
    """

    encoding: Growth
    decoding: Growth
    longest: int
    characters: int | None
    largest: int
    inserted: frozenset[int]

    def require_possible(self) -> None:
        """Raise ``EnvironmentProblem`` for a tokenizer that may expand even short texts beyond the limits."""
        made = self.encoding(_MIN_TEXT)
        if not made <= MAX_ENCODED_BYTES:
            raise EnvironmentProblem(
                "tokenizer.json can expand a text too far",
                why=f"the normalizer and post-processor may make {_size(made)} from {_MIN_TEXT} bytes of text; "
                f"at most {_size(MAX_ENCODED_BYTES)} are allowed",
                fix="use the model's original tokenizer.json",
            )
        text = self.decoding(self.longest)
        if not text <= MAX_TOKEN_BYTES:
            raise EnvironmentProblem(
                "tokenizer.json can make the text of a token too long",
                why=f"the longest token has {self.longest} bytes, which the decoder may expand to {_size(text)}; "
                f"at most {_size(MAX_TOKEN_BYTES)} are allowed",
                fix="use the model's original tokenizer.json",
            )


def require_readable(content: bytes) -> None:
    """Raise ``ValueError`` for a character map whose declared length exceeds its actual length.

    The library allocates the declared length, up to 4 GB, and aborts the process if that fails.
    """
    if b"Precompiled" not in content and b"\\u00" not in content:  # it could be written with escapes
        return
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return  # the library reports the problem
    for step in _flat(document.get("normalizer")) if isinstance(document, dict) else ():
        blob = _decoded(step.get("precompiled_charsmap"))
        if blob and _size_of_trie(blob) > len(blob) - 4:
            raise ValueError("a precompiled_charsmap is truncated")


def limits_of(tokenizer: Any) -> TokenizerLimits:
    """Return the limits of a tokenizer that the library has loaded."""
    normalizers, pre_tokenizers = steps_of(tokenizer.normalizer), steps_of(tokenizer.pre_tokenizer)
    processors, decoders = steps_of(tokenizer.post_processor), steps_of(tokenizer.decoder)
    vocabulary = tokenizer.get_vocab()
    added = tokenizer.get_added_tokens_decoder().values()
    kept = [*map(_shrinkage_of_normalizer, normalizers), *map(_kept_of_pre_tokenizer, pre_tokenizers)]
    kept += [*map(_kept_of_processor, processors)]
    kept.append(_shrinkage_of_model(tokenizer.model, vocabulary, [*normalizers, *pre_tokenizers]))
    kept.append(None if any(each.lstrip or each.rstrip for each in added) else 1)
    longest = max(map(len, vocabulary), default=1)
    return TokenizerLimits(
        encoding=_all_of(map(_growth_of_normalizer, normalizers))
        .then(_growth_of_pre_tokenizers(pre_tokenizers))
        .then(_all_of(map(_growth_of_processor, processors))),
        decoding=_all_of(map(_growth_of_decoder, decoders)),
        longest=max((len(each.encode(errors="surrogatepass")) for each in vocabulary), default=1),
        characters=None if None in kept else longest * math.prod(each or 1 for each in kept),
        largest=max(vocabulary.values(), default=0),
        inserted=frozenset(token for step in processors for token in _inserted(step)),
    )


def steps_of(part: Any) -> list[Step]:
    """Return the steps of a normalizer, pre-tokenizer, post-processor or decoder in order, with sequences flattened."""
    if part is None:
        return []
    return list(_flat(json.loads(part.__getstate__())))


def _flat(step: Any) -> Iterable[Step]:
    if not isinstance(step, Mapping):
        return
    inner = next((step[name] for name in _LISTS if isinstance(step.get(name), list)), None)
    if step.get("type") != "Sequence" or inner is None:
        yield step
        return
    for each in inner:
        yield from _flat(each)


_LISTS = ("normalizers", "pretokenizers", "processors", "decoders")


def _all_of(growths: Iterable[Growth]) -> Growth:
    return reduce(Growth.then, growths, Growth())


# ------------------------------------------------------------------------------------------------- upper bounds


def _growth_of_normalizer(step: Step) -> Growth:
    kind = step.get("type")
    if kind == "Replace":
        return _growth_of_replace(step)
    if kind == "Prepend":  # applies to each piece between added tokens
        return _inserting(step.get("prepend"))
    if kind == "Precompiled":
        return Growth(_longest_of_charsmap(step.get("precompiled_charsmap")))
    return Growth(_BYTES_OF_NORMALIZERS.get(str(kind), _BYTES_OF_OTHERS))


# Maximum bytes per byte of text: U+FDFA has 3 bytes, and 33 in NFKC.
_BYTES_OF_NORMALIZERS = {
    "BertNormalizer": 6.0, "NFC": 3.0, "NFD": 3.0, "NFKC": 11.0, "NFKD": 11.0, "Lowercase": 2.0, "ByteLevel": 2.0,
    "Strip": 1.0, "StripAccents": 1.0, "Nmt": 1.0,
}  # fmt: skip
_BYTES_OF_OTHERS = 16.0


def _growth_of_pre_tokenizers(steps: Iterable[Step]) -> Growth:
    """Return the growth of all steps except one ``ByteLevel``, which ``MAX_ENCODED_BYTES`` includes."""
    growths = [_growth_of_pre_tokenizer(step) for step in steps]
    if _BYTE_LEVEL in growths:
        growths.remove(_BYTE_LEVEL)
    return _all_of(growths)


_BYTE_LEVEL = Growth(2.0)


def _growth_of_pre_tokenizer(step: Step) -> Growth:
    """Return the growth in bytes: a piece has at least one character, and some steps prepend to each piece."""
    kind = step.get("type")
    if kind == "ByteLevel":
        return Growth(4.0, 2.0) if step.get("add_prefix_space") else _BYTE_LEVEL
    if kind == "Metaspace":
        space = float(max(1, _bytes(str(step.get("replacement") or ""))))
        return Growth(space if step.get("prepend_scheme") in ("never", "first") else 2.0 * space, space)
    return Growth()


def _growth_of_decoder(step: Step) -> Growth:
    kind = step.get("type")
    if kind == "Replace":
        return _growth_of_replace(step)
    if kind in ("BPEDecoder", "CTC"):  # replaces a text by a space; an empty text matches everywhere
        return Growth() if step.get("suffix" if kind == "BPEDecoder" else "word_delimiter_token") else _inserting(" ")
    if kind in ("WordPiece", "Metaspace", "Fuse", "Strip", "ByteFallback"):
        return Growth(1.0, 1.0)  # WordPiece prepends a space
    return Growth(3.0)  # ByteLevel: an invalid byte becomes U+FFFD


def _growth_of_processor(step: Step) -> Growth:
    """Return the growth in tokens."""
    if step.get("type") != "TemplateProcessing":
        return Growth(1.0, 2.0)
    return Growth(float(_texts_of_template(step)), float(len(list(_inserted(step)))))


def _growth_of_replace(step: Step) -> Growth:
    pattern, content = step.get("pattern"), str(step.get("content", ""))
    searched = pattern.get("String") if isinstance(pattern, Mapping) else None
    if not searched:  # a regular expression can match between any two characters
        return _inserting(content)
    return Growth(max(1.0, _bytes(content) / _bytes(searched)))


def _inserting(text: Any) -> Growth:
    size = float(_bytes(str(text or "")))
    return Growth(1.0 + size, size)


def _longest_of_charsmap(text: Any) -> float:
    """Return the bytes of the longest text in a SentencePiece map: the size of a trie, the trie, and texts."""
    blob = _decoded(text)
    texts = blob[4 + _size_of_trie(blob) :]
    return float(max(map(len, texts.split(b"\0")), default=1) or 1) if blob else _BYTES_OF_OTHERS


def _size_of_trie(blob: bytes) -> int:
    return int.from_bytes(blob[:4], "little")


def _decoded(text: Any) -> bytes:
    try:
        return base64.b64decode(str(text or ""))
    except (binascii.Error, ValueError):
        return b""


# ------------------------------------------------------------------------------------------------- lower bounds


def _shrinkage_of_normalizer(step: Step) -> int | None:
    """Return the maximum number of characters that become one, None if any number can become none."""
    kind, pattern = step.get("type"), step.get("pattern")
    if kind == "Replace" and isinstance(pattern, Mapping) and pattern.get("String") and step.get("content"):
        return max(1, math.ceil(len(pattern["String"]) / len(step["content"])))
    return _CHARACTERS_OF_NORMALIZERS.get(str(kind))


# A canonical composition consists of at most four characters (U+1F82).
_CHARACTERS_OF_NORMALIZERS = {"NFC": 4, "NFKC": 4, "NFD": 1, "NFKD": 1, "Lowercase": 1, "ByteLevel": 1, "Prepend": 1}


def _kept_of_pre_tokenizer(step: Step) -> int | None:
    if step.get("type") in ("Split", "Punctuation"):
        return None if step.get("behavior") == "Removed" else 1
    return 1 if step.get("type") in ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength") else None


def _kept_of_processor(step: Step) -> int | None:
    return None if step.get("type") == "TemplateProcessing" and not _texts_of_template(step) else 1


def _shrinkage_of_model(model: Any, vocabulary: Mapping[str, int], before: Iterable[Step]) -> int | None:
    """Return 1 if each byte of a text is in some token, None if unknown text is dropped or becomes one token."""
    if type(model).__name__ != "BPE" or model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    if any(step.get("type") == "ByteLevel" for step in before):
        from tokenizers import pre_tokenizers

        letters: Callable[[], list[str]] = pre_tokenizers.ByteLevel.alphabet
        return 1 if all(letter in vocabulary for letter in letters()) else None
    return 1 if model.byte_fallback and all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)) else None


# ------------------------------------------------------------------------------------------------ post-processors


def _texts_of_template(step: Step) -> int:
    """Return how often the template of one text contains the text."""
    return sum("Sequence" in piece for piece in step.get("single", []))


def _inserted(step: Step) -> Iterable[int]:
    """The ids that a post-processor adds to one text, as often as it does."""
    for name in ("cls", "sep"):
        if isinstance(step.get(name), list):
            yield int(step[name][1])
    special = step.get("special_tokens", {})
    for piece in step.get("single", []):
        if "SpecialToken" in piece:
            yield from special.get(piece["SpecialToken"]["id"], {}).get("ids", [])


def _bytes(text: str) -> int:
    return len(text.encode(errors="surrogatepass"))


def _size(count: float) -> str:
    return f"{count:,.0f} bytes" if count < 1e15 else "more than 10^15 bytes"
