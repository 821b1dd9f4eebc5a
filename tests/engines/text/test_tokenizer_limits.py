"""The output of a tokenizer is within the bounds that follow from its steps."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from peagle.engines.text.tokenizer_limits import Growth, TokenizerLimits, _longest_of_charsmap, limits_of

# Characters that grow or shrink the most: in NFKC, in NFC and its opposite, when they become lower case.
LETTERS_THAT_CHANGE = "ab \n\u00e9\ufdfa\u1f82\u03b1\u0313\u0300\u0345\u0130\uac01\u1100\u1161\u4e2d\U0001f600"
TEXTS = st.text(st.sampled_from(LETTERS_THAT_CHANGE), max_size=30)
PRE_TOKENIZERS = st.one_of(
    st.builds(pre_tokenizers.Metaspace, st.sampled_from("ab\u2581"), st.sampled_from(["always", "first", "never"])),
    st.builds(pre_tokenizers.ByteLevel, st.booleans(), use_regex=st.booleans()),
)
WORDS = st.sampled_from(["a", "b", " ", "ab", "\u2581", "aab", "\u00e9"])
NORMALIZERS = st.one_of(
    st.sampled_from([
        normalizers.NFC(), normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(),
        normalizers.ByteLevel(),
    ]),
    st.builds(normalizers.Replace, WORDS, WORDS),
    st.builds(normalizers.Prepend, WORDS),
)  # fmt: skip
LETTERS = sorted(pre_tokenizers.ByteLevel.alphabet())


def tokenizer_of(steps: list[Any]) -> Tokenizer:
    """A tokenizer of bytes with these normalizers, and some longer tokens."""
    merges = [("a", "b"), ("a", "a"), ("\u0120", "\u0120"), ("\u0120\u0120", "\u0120\u0120")]
    tokens = [*LETTERS, *("".join(pair) for pair in merges)]
    made = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    made.normalizer = normalizers.Sequence(steps)
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens(["<|end|>"])
    return made


@settings(max_examples=100, deadline=None)
@given(steps=st.lists(NORMALIZERS, max_size=4), texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_the_length_of_any_text_stays_within_the_bounds(steps: list[Any], texts: list[str]) -> None:
    tokenizer, text = tokenizer_of(steps), "<|end|>".join(texts)
    limits = limits_of(tokenizer)
    ids = tokenizer.encode(text).ids
    assert limits.characters is not None
    assert len(text) <= limits.characters * len(ids)
    normalized = [tokenizer.normalizer.normalize_str(each) for each in texts]
    assert sum(len(each.encode()) for each in normalized) <= limits.encoding(len(text.encode()))
    assert len(ids) <= limits.encoding(len(text.encode()))
    decoded = tokenizer.decode(ids, skip_special_tokens=False)
    assert len(decoded.encode()) <= len(ids) * limits.decoding(limits.longest)


@given(steps=st.lists(PRE_TOKENIZERS, max_size=4), text=TEXTS)
def test_token_count_stays_within_the_bound(steps: list[Any], text: str) -> None:
    tokenizer = tokenizer_of([])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    cut = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    assert sum(len(piece) for piece, _ in cut) <= limits_of(tokenizer).encoding(len(text.encode()))


@given(
    steps=st.lists(st.builds(decoders.Replace, WORDS, WORDS), max_size=4), ids=st.lists(st.integers(0, 259), max_size=9)
)
def test_decoded_length_stays_within_the_bound(steps: list[Any], ids: list[int]) -> None:
    tokenizer = tokenizer_of([])
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), *steps])
    limits = limits_of(tokenizer)
    assert len(tokenizer.decode(ids).encode()) <= max(1, len(ids)) * limits.decoding(limits.longest)


def _dropping(**parts: Any) -> TokenizerLimits:
    made = tokenizer_of([])
    for name, part in parts.items():
        setattr(made, name, part)
    return limits_of(made)


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": normalizers.Strip()},
        {"normalizer": normalizers.Replace("a", "")},
        {"normalizer": normalizers.BertNormalizer()},
        {"pre_tokenizer": pre_tokenizers.Whitespace()},
        {"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), pre_tokenizers.ByteLevel()])},
        {"pre_tokenizer": None},
        {"model": models.WordLevel({"a": 0}, "a")},
        {"model": models.BPE({letter: at for at, letter in enumerate(LETTERS[1:])}, [])},
    ],
    ids=["strip", "nothing", "bert", "space", "split", "no bytes", "words", "a byte less"],
)
def test_droppable_text_disables_the_character_bound(parts: dict[str, Any]) -> None:
    assert _dropping().characters == 7, "the longest token is the special one"
    assert _dropping(**parts).characters is None


def test_growth_is_that_of_one_step_after_the_other() -> None:
    both = Growth(2, 3).then(Growth(5, 1))
    assert both(10) == Growth(5, 1)(Growth(2, 3)(10))


def test_the_longest_text_of_a_map_of_characters_is_found() -> None:
    blob = (8).to_bytes(4, "little") + bytes(8) + b"ab\0" + b"abcdef\0" + b"x\0"
    assert _longest_of_charsmap(base64.b64encode(blob).decode()) == 6
