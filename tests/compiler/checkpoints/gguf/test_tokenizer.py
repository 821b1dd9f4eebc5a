"""Tokenizers from GGUF metadata, compared with transformers' and with their own rules."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from peagle.compiler.checkpoints.gguf.header import GgufHeader
from peagle.compiler.checkpoints.gguf.pre_tokenizers import PRE_TOKENIZERS
from peagle.compiler.checkpoints.gguf.tokenizer import end_ids, settings, tokenizer_json
from peagle.plugins.errors import BuildError
from tests import gguf_files

TEXTS = (
    "hello world", "  two  spaces ", "It's 2026, isn't it?\r\n\tYES: 12345.67", "naïve café ½ 你好 🎉 e\u0301",
    "", " ", "\n\n\n", "a<|user|>hello<|end|>", "x" * 50, "snake_case(camelCase)[0] != 'q'",
)  # fmt: skip
PIECES = {
    "<unk>": (0.0, 2), "<s>": (0.0, 3), "</s>": (0.0, 3), "<mine>": (0.0, 4),
    **{f"<0x{byte:02X}>": (0.0, 6) for byte in range(256)},
    **{piece: (-float(rank), 1) for rank, piece in enumerate(
        ("he", "ll", "▁w", "or", "ld", "hell", "hello", "▁hello", "orld", "▁world", "▁▁", "is", "▁is", "It"))},
    **{letter: (-100.0 - rank, 1) for rank, letter in enumerate("▁helowrdabcItis'n.,:?!")},
}  # fmt: skip


def header(**said: Any) -> GgufHeader:
    metadata = {"general.architecture": "llama"} | {f"tokenizer.ggml.{key}": value for key, value in said.items()}
    return GgufHeader(Path("tiny.gguf"), metadata, {})


def byte_pairs(**said: Any) -> GgufHeader:
    texts, kinds = gguf_files.tokens()
    merges = [" ".join(pair) for pair in gguf_files.MERGES]
    lists = {"tokens": texts, "token_type": kinds, "merges": merges}
    return header(**({"model": "gpt2", "pre": "smollm", **lists, "eos_token_id": 0, "bos_token_id": 1} | said))


def pieces(**said: Any) -> GgufHeader:
    scores, kinds = zip(*PIECES.values(), strict=True)
    lists = {"tokens": [*PIECES], "scores": [*scores], "token_type": [*kinds]}
    ids = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return header(**({"model": "llama", **lists, **ids} | said))


def made(of: GgufHeader) -> Any:
    return Tokenizer.from_str(tokenizer_json(of))


def transformers_s(of: GgufHeader) -> Any:
    """Return transformers' tokenizer for the same metadata."""
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_TOKENIZER_MAPPING, convert_gguf_tokenizer

    names = GGUF_TOKENIZER_MAPPING["tokenizer"]
    said = {name: of.metadata[f"tokenizer.{key}"] for key, name in names.items() if f"tokenizer.{key}" in of.metadata}
    return convert_gguf_tokenizer(of.architecture, said)[0]


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "tekken", "gpt-4o", "gpt-2"])
def test_byte_pair_tokenizer_matches_transformers(pre: str) -> None:
    of = byte_pairs(pre=pre, add_bos_token=False)
    ours, theirs = made(of), transformers_s(of)
    for text in TEXTS:
        text = text.replace("e\u0301", "")  # transformers ignores that Qwen composes it
        assert ours.encode(text).tokens == theirs.encode(text, add_special_tokens=False).tokens, text


def test_digits_are_tokens_of_their_own_in_smollm() -> None:
    merges = ["1 2", *(" ".join(pair) for pair in gguf_files.MERGES)]
    texts, kinds = gguf_files.tokens()
    of = byte_pairs(merges=merges, tokens=[*texts, "12"], token_type=[*kinds, 1])
    assert made(of).encode("a 12").tokens == ["a", "Ġ", "1", "2"]
    assert made(byte_pairs(**{**_own(of), "pre": "gpt-2"})).encode("a12").tokens == ["a", "12"]


def _own(of: GgufHeader) -> dict[str, Any]:
    return {key.removeprefix("tokenizer.ggml."): value for key, value in of.metadata.items() if "ggml" in key}


def test_sentencepiece_tokenizer_matches_transformers() -> None:
    of = pieces()
    ours, theirs = made(of), transformers_s(of)
    for text in ("hello world", "It is", "Isn't hello: helloworld?", "a.b", "é", "hell or world"):
        assert ours.encode(text, add_special_tokens=False).tokens == theirs.encode(text).tokens, text


def by_scores(text: str) -> list[str]:
    """The pieces as SentencePiece joins them: the pair whose piece has the highest score, the leftmost first."""
    parts = [*text.replace(" ", "▁")]
    while True:
        pairs = ["".join(pair) for pair in pairwise(parts)]
        joined = [(PIECES[pair][0], -at) for at, pair in enumerate(pairs) if pair in PIECES]
        if not joined:
            return parts
        at = -max(joined)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@given(st.text("helowrdIts' ", max_size=40))
def test_pieces_are_joined_by_their_scores(text: str) -> None:
    tokenizer = _PIECES
    assert tokenizer.encode(text, add_special_tokens=False).tokens == (by_scores(f" {text}") if text else [])
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


@given(st.text(max_size=60))
def test_byte_pair_round_trip_is_lossless(text: str) -> None:
    text = text.replace("<|", "")
    assert _PAIRS.decode(_PAIRS.encode(text).ids, skip_special_tokens=False) == text


def test_bos_token_is_added_when_the_file_requests_it() -> None:
    assert made(byte_pairs()).encode("a").tokens == ["a"]
    assert made(byte_pairs(add_bos_token=True)).encode("a").tokens == ["<|user|>", "a"]
    assert made(byte_pairs(pre="llama-bpe")).encode("a").tokens == ["<|user|>", "a"]
    assert made(pieces()).encode("he").tokens == ["<s>", "▁", "he"]
    assert made(pieces(add_bos_token=False, add_space_prefix=False)).encode("he").tokens == ["he"]


def test_gemma_merges_come_from_the_file() -> None:
    of = pieces(model="gemma4", merges=["h e", "l l", "he ll", "hell o", "▁ hello"])
    tokenizer, theirs = made(of), transformers_s(of)
    assert tokenizer.encode("hello hello<mine>").tokens == ["hello", "▁hello", "<mine>"]
    for text in ("hello  hello", "he said: hell", "é"):
        assert tokenizer.encode(text).tokens == theirs.encode(text, add_special_tokens=False).tokens
    assert tokenizer.decode(tokenizer.encode("hello  é").ids) == "hello  é"


def test_special_tokens_are_whole_and_named() -> None:
    of = pieces()
    tokenizer = made(of)
    assert tokenizer.encode("he<mine></s>", add_special_tokens=False).tokens == ["▁", "he", "<mine>", "</s>"]
    assert tokenizer.decode(tokenizer.encode("he<mine></s>").ids) == "he<mine>"
    assert settings(of)["eos_token"] == "</s>"
    of = header(tokens=["a", "b", "c"], eos_token_id=2, eot_token_id=1, eom_token_id=2)
    assert end_ids(of) == [2, 1]
    assert end_ids(of, ("a", "c", "d")) == [2, 1, 0], "with those that its model has, though the file does not say so"


WRONG: dict[str, tuple[GgufHeader, str]] = {
    "another kind": (byte_pairs(model="bert"), "of type 'bert'"),
    "no kind": (header(tokens=["a"]), "of type ''"),
    "another cut": (byte_pairs(pre="deepseek-llm"), "'deepseek-llm'"),
    "no cut": (byte_pairs(pre=""), "a tokenizer without a named pre-tokenizer"),
    "no tokens": (byte_pairs(tokens=[]), "no valid list of tokens"),
    "tokens that are numbers": (byte_pairs(tokens=[1, 2]), "no valid list of tokens"),
    "a token without end": (pieces(tokens=["a" * 10**6], token_type=[1], scores=[0.0]), "1000000 characters"),
    "a token twice": (byte_pairs(tokens=["a", "a"], token_type=[], merges=[]), "2 tokens have only 1 different"),
    "too few kinds": (byte_pairs(token_type=[1]), "tokens, but 1 token types"),
    "merges of other tokens": (byte_pairs(merges=["q zz"]), "damaged"),
    "merges of three": (byte_pairs(merges=["a b c"]), "two tokens separated by a space"),
    "merges that are no text": (byte_pairs(merges=[1]), "two tokens separated by a space"),
    "an end that is no token": (byte_pairs(eos_token_id=10**6), "eos_token_id is 1000000"),
    "an end that is text": (byte_pairs(eos_token_id="2"), "eos_token_id is '2'"),
    "a beginning that is not named": (byte_pairs(add_bos_token=True, bos_token_id=None), "bos_token_id is missing"),
    "no scores": (pieces(scores=[]), f"there are {len(PIECES)} tokens, but 0 scores"),
    "scores that are no numbers": (pieces(scores=[float("nan")] * len(PIECES)), "why: some scores are not finite"),
    "scores that are text": (pieces(scores=["1"] * len(PIECES)), "why: some scores are not finite"),
    "a switch that is a number": (pieces(add_bos_token=1), "add_bos_token must be of type bool, not 1"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_tokenizer_that_does_not_fit_is_refused(name: str) -> None:
    of, said = WRONG[name]
    with pytest.raises(BuildError) as caught:
        (tokenizer_json(of), settings(of))
    assert said in str(caught.value)
    assert "tiny.gguf" in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_all_merges_of_the_file_are_kept(pre: str) -> None:
    content = json.loads(tokenizer_json(byte_pairs(pre=pre)))
    assert content["pre_tokenizer"]
    assert content["model"]["ignore_merges"] == PRE_TOKENIZERS[pre].whole


_PIECES, _PAIRS = made(pieces()), made(byte_pairs())
