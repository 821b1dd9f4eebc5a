"""Encoding and decoding as the model's authors intended, and a ``PeagleError`` for any bad ``tokenizer.json``."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peagle.engines import PromptTooLong
from peagle.engines.text import tokenizer as module
from peagle.engines.text.tokenizer import Tokenizer
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.tokenizer_files import (
    PADDING,
    PANICS,
    STEPS,
    TEXT,
    TEXT_AND_TEXT,
    TRUNCATION,
    byte_level,
    inserting,
    sentence_pieces,
)

CODE = "def add(a, b):\n    return a + b  # caf\u00e9 \u4e2d\u6587 \U0001f600"
PIECES = ("<unk>", "\u2581", "\u2581Once", "\u2581upon", "!", "<0xC3>", "<0xA9>")
# No tokenizer of this kind encodes a space as a byte; a decoder would drop it at the start of a text.
BYTES = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256) if byte != 0x20}
Make = Callable[..., Tokenizer]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """``make(**entries)``: the tokenizer of bytes with these entries in its file."""

    def made(vocab_size: int | None = None, **entries: Any) -> Tokenizer:
        (tmp_path / "tokenizer.json").write_text(json.dumps(byte_level(**entries)))
        return Tokenizer(tmp_path, (), vocab_size)

    return made


@pytest.mark.parametrize("entry", [{"truncation": TRUNCATION}, {"padding": PADDING}])
def test_a_text_is_neither_cut_nor_filled(make: Make, tmp_path: Path, entry: dict[str, Any]) -> None:
    from transformers import PreTrainedTokenizerFast

    ids = make(**entry).encode(CODE)
    assert ids == PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json")).encode(CODE)
    assert len(ids) == len(CODE.encode())


def test_the_last_ids_of_a_long_text_need_only_its_end(make: Make) -> None:
    cutting, dropping = make(), make(normalizer={"type": "Strip", "strip_left": True, "strip_right": True})
    for tokenizer, is_cut in ((cutting, True), (dropping, False)):  # spaces that are dropped could fill the end
        whole = tokenizer.encode(CODE * 50)
        for kept in (1, 40):
            ids = tokenizer.encode(CODE * 50, keep_last=kept, max_seq_len=2)
            assert ids[-kept:] == whole[-kept:]
            assert (len(ids) < len(whole) / 2) == is_cut
        assert tokenizer.encode("ab", keep_last=9) == tokenizer.encode("ab")


def test_encoding_is_deterministic(make: Make) -> None:
    """``dropout`` leaves out merges by chance, each time others."""
    content = byte_level()["model"]
    content |= {"vocab": content["vocab"] | {"aa": 256, "aaaa": 257}, "merges": [["a", "a"], ["aa", "aa"]]}
    assert make(model=content | {"dropout": 1.0}).encode("a" * 9) == make(model=content).encode("a" * 9)


def _decoders() -> list[Any]:
    from tokenizers import decoders

    return [
        decoders.Sequence(STEPS),
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
        decoders.Sequence(STEPS[:3]),  # in the manner of Gemma: keeps the space at the start of a text
    ]


@pytest.mark.parametrize("at", range(2))
def test_text_after_a_prompt_keeps_the_space_before_its_first_word(tmp_path: Path, at: int) -> None:
    """The library drops the space at the start of a text, and an answer is no start."""
    tokenizer = sentence_pieces(tmp_path, PIECES, _decoders()[at])
    for after, text in ((None, "upon Once!"), (2, " upon Once!"), (1, " upon Once!"), (4, " upon Once!")):
        stream = tokenizer.stream(after=after)
        assert "".join(map(stream.push, (3, 2, 4))) == text
    assert [tokenizer.piece(token) for token in (1, 2, 4, 5)] == [" ", " Once", "!", "\ufffd"]
    assert [tokenizer.bytes_of(token) for token in (1, 2, 4, 5, 6)] == [b" ", b" Once", b"!", b"\xc3", b"\xa9"]


@pytest.mark.parametrize("at", range(2))
def test_the_end_of_a_stream_shows_neither_the_prompt_nor_a_space_that_the_tokenizer_drops(
    tmp_path: Path, at: int
) -> None:
    tokens = (*PIECES, "<s>", "\ufffd", *(token for token in BYTES if token not in PIECES))
    tokenizer = sentence_pieces(tmp_path, tokens, _decoders()[at])
    replacement = [tokens.index(f"<0x{byte:02X}>") for byte in "\ufffd".encode()]
    for after, ids, text in (
        *((after, [], "") for after in range(len(tokens))),
        (None, [1], ""),
        (None, [1, 7], ""),
        (None, [1, 5], ""),
        (None, [1, *replacement], "\ufffd"),
        (1, [7], ""),
        (1, [5], ""),
        (1, replacement, "\ufffd"),
        (tokens.index("\ufffd"), [2], " Once"),
    ):
        stream = tokenizer.stream(after=after)
        assert "".join(map(stream.push, ids)) + stream.end() == text, (after, ids)


def _of_run(run: bytes) -> str:
    """The text of a run of byte tokens: the characters before the first invalid byte, and U+FFFD for each other."""
    for end in range(len(run), 0, -1):
        with contextlib.suppress(UnicodeDecodeError):
            text, rest = run[:end].decode(), len(run) - end
            if not rest or not text.endswith("\ufffd"):  # else it was held back, because it may be part of a character
                return text + "\ufffd" * rest
    return "\ufffd" * len(run)


def _streamed(tokens: Sequence[str], *, shows_special: bool) -> str:
    text, run = "", b""
    for token in tokens:
        run += BYTES.get(token, b"")
        if token not in BYTES and (token != "<s>" or shows_special):
            text, run = text + _of_run(run) + token.replace("\u2581", " "), b""
    return text + _of_run(run)


_CHARACTERS = ["\n", "\u00e9", "\u4e2d", "\U0001f600", "\ufffd"]
_BYTE_TOKENS = st.sampled_from([f"<0x{byte:02X}>" for text in _CHARACTERS for byte in text.encode()] + [*BYTES])
_WHOLE = st.sampled_from([[f"<0x{byte:02X}>" for byte in text.encode()] for text in _CHARACTERS])
_OTHERS = st.sampled_from([[token] for token in (*PIECES[1:5], "<s>")])
_TOKENS = st.lists(_WHOLE | st.lists(_BYTE_TOKENS, max_size=4) | _OTHERS)


@pytest.fixture(scope="module")
def byte_fallbacks(tmp_path_factory: pytest.TempPathFactory) -> list[Tokenizer]:
    tokens = (*PIECES[:5], "<s>", *BYTES)
    return [sentence_pieces(tmp_path_factory.mktemp("pieces"), tokens, decoder) for decoder in _decoders()]


@pytest.fixture(scope="module")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("bytes")
    (folder / "tokenizer.json").write_text(json.dumps(byte_level()))
    return Tokenizer(folder)


@given(at=st.integers(0, 2), parts=_TOKENS, after=st.none() | _BYTE_TOKENS | st.just("!"), shows_special=st.booleans())
@example(at=0, parts=[["!"], ["<0x0A>", "<0xF0>", "<0x9F>"]], after=None, shows_special=False)
@example(at=2, parts=[["!"], ["<0xC3>", "<0xA9>", "<0xC3>"]], after=None, shows_special=False)
@example(at=0, parts=[["<0xA9>"]], after="<0xC3>", shows_special=False)
@example(at=1, parts=[["<0xF0>"]], after="<0x0A>", shows_special=False)
def test_bytes_that_form_no_character_do_not_end_a_stream(
    byte_fallbacks: list[Tokenizer], at: int, parts: list[list[str]], after: str | None, shows_special: bool
) -> None:
    tokenizer, tokens = byte_fallbacks[at], [*itertools.chain(*parts), "!"]
    vocabulary = json.loads(tokenizer.as_json())["model"]["vocab"]
    stream = tokenizer.stream(after=None if after is None else vocabulary[after], shows_special=shows_special)
    wanted = _streamed(tokens, shows_special=shows_special)
    if after is None and at < 2:
        wanted = wanted.removeprefix(" ")
    assert "".join(stream.push(vocabulary[token]) for token in tokens) == wanted
    if after is None and not shows_special and "\ufffd" not in wanted:
        assert tokenizer.decode([vocabulary[token] for token in tokens]) == wanted


@given(texts=st.lists(st.sampled_from([*_CHARACTERS, "a"]), max_size=6), cut=st.integers(0, 3))
def test_the_end_of_a_stream_shows_every_whole_character(byte_tokenizer: Tokenizer, texts: list[str], cut: int) -> None:
    """The library holds back a text that ends in U+FFFD, which may be a partial character or the character itself."""
    stream, text = byte_tokenizer.stream(), "".join(texts)
    ids = byte_tokenizer.encode(text + "\U0001f600")
    ids = ids[: len(ids) - 4 + cut]  # without the last bytes of the smiley
    assert "".join(map(stream.push, ids)) + stream.end() == text
    assert stream.end() == ""


def test_bytes_of_tokens_form_the_text(make: Make) -> None:
    tokenizer = make()
    assert b"".join(map(tokenizer.bytes_of, tokenizer.encode(CODE))).decode() == CODE
    assert [tokenizer.bytes_of(token) for token in tokenizer.encode("\u00e9")] == [b"\xc3", b"\xa9"]
    assert {tokenizer.bytes_of(token) for token in range(tokenizer.vocab_size)} >= {bytes([at]) for at in range(256)}


def test_special_tokens_add_nothing_to_the_text(make: Make) -> None:
    options = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": 256 + at, "content": f"<{at}>", "special": not at, **options} for at in range(2)]
    tokenizer = make(added_tokens=added)
    ids = tokenizer.encode("<0>a<1>")
    assert [tokenizer.text_bytes_of(token) for token in ids] == [b"", b"a", b"<1>"]
    assert tokenizer.decode(ids) == "a<1>"


def test_padding_of_a_billion_tokens_does_not_end_the_process(make: Make) -> None:
    assert len(make(padding=PADDING | {"strategy": {"Fixed": 10**9}}).encode("ab")) == 2


def test_json_ignores_truncation_and_padding(make: Make) -> None:
    content = json.loads(make(truncation=TRUNCATION, padding=PADDING).as_json())
    assert (content["truncation"], content["padding"]) == (None, None)


def test_a_panic_while_text_is_encoded_is_an_error_of_that_text(make: Make) -> None:
    replace = {"type": "Replace", "pattern": {"Regex": PANICS}, "content": "x"}
    tokenizer = make(normalizer=replace)
    for call in (tokenizer.encode, lambda text: tokenizer.words([text])):
        with pytest.raises(UsageError, match="cannot encode this text") as error:
            call(CODE)
        assert "retry-limit-in-match" in error.value.why
    assert tokenizer.encode("") == []


def test_panic_while_decoding_is_an_error_of_those_ids(make: Make) -> None:
    replace = {"type": "Replace", "pattern": {"Regex": PANICS}, "content": "x"}
    tokenizer = make(decoder={"type": "Sequence", "decoders": [byte_level()["decoder"], replace]})
    ids = tokenizer.encode(CODE * 3)

    def stream() -> None:
        stream = tokenizer.stream()
        for token in ids:
            stream.push(token)

    for call in (lambda: tokenizer.decode(ids), stream):
        with pytest.raises(EnvironmentProblem, match="cannot decode the text") as error:
            call()
        assert "retry-limit-in-match" in error.value.why
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("content", ["", "{}", "[", '{"model": 3}'])
def test_invalid_tokenizer_is_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(EnvironmentProblem, match="cannot be read as a tokenizer"):
        Tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({}, "has token ids up to 255, but the model's vocabulary has 200 ids"),
        ({"post_processor": inserting(7, 1_000_000)}, "inserts token ids up to 1000000, but the model's"),
        (
            {"post_processor": {"type": "BertProcessing", "sep": ["s", 3], "cls": ["c", 10**6]}},
            "inserts token ids up to 1000000",
        ),
        ({"added_tokens": [{"id": 256, "content": "<x>", "special": True, "single_word": False, "lstrip": False,
                            "rstrip": False, "normalized": False}]}, "has token ids up to 256"),
    ],
    ids=["letters", "template", "bert", "added"],
)  # fmt: skip
def test_ids_that_the_model_does_not_have_are_refused(make: Make, entries: dict[str, Any], says: str) -> None:
    make(**entries)
    with pytest.raises(EnvironmentProblem, match=says):
        make(200, **entries)


DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLE] * 40}}, "can expand a text too far"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 10_000}}, "can expand a text too far"),
        ({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": "x" * 9999}}, "a text too far"),
        ({"post_processor": {"type": "TemplateProcessing", "single": [TEXT] * 9999, "pair": TEXT_AND_TEXT,
                             "special_tokens": {}}}, "can expand a text too far"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [byte_level()["pre_tokenizer"]] * 40}},
         "can expand a text too far"),
        ({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Metaspace", "replacement": letter, "prepend_scheme": "always", "split": True}
            for letter in "ab" * 20]}}, "can expand a text too far"),
        ({"decoder": {"type": "Sequence", "decoders": [DOUBLE] * 40}}, "the text of a token too long"),
        ({"decoder": {"type": "Sequence", "decoders": [
            {"type": "CTC", "pad_token": "x", "word_delimiter_token": "", "cleanup": True}] * 40}},
         "the text of a token too long"),
    ],
    ids=["doubled", "prepended", "inserted", "repeated", "bytes of bytes", "cut and prepended", "decoded", "delimited"],
)  # fmt: skip
def test_steps_that_make_a_text_too_long_are_refused(make: Make, entries: dict[str, Any], says: str) -> None:
    with pytest.raises(EnvironmentProblem, match=says):
        make(**entries)


def test_two_tokens_of_one_id_are_refused(make: Make) -> None:
    content = byte_level()["model"]
    content["vocab"]["b"] = content["vocab"]["a"]
    with pytest.raises(EnvironmentProblem, match="one id to two tokens") as error:
        make(model=content)
    assert f"token id {content['vocab']['a']} could be decoded as" in error.value.why


def test_character_map_with_a_false_length_is_rejected(make: Make) -> None:
    """The library reserves 4 GB for this one, and ends the process where it cannot."""
    charsmap = base64.b64encode(b"\xff" * 4).decode()
    with pytest.raises(EnvironmentProblem, match="precompiled_charsmap is truncated"):
        make(normalizer={"type": "Precompiled", "precompiled_charsmap": charsmap})


def test_text_that_may_expand_too_much_is_rejected(make: Make) -> None:
    tokenizer = make(normalizer={"type": "Sequence", "normalizers": [DOUBLE] * 8})
    assert len(tokenizer.encode("a" * 10)) == 2560
    with pytest.raises(UsageError, match="the text has 100000 characters"):
        tokenizer.encode("a" * 100_000)
    with pytest.raises(UsageError, match="bad_words has 100000 characters"):
        tokenizer.words(["a" * 100_000])


def test_a_text_is_counted_by_characters_before_it_is_encoded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is one byte here, and a character has one at least."""
    tokenizer = make()
    assert len(tokenizer.encode("a" * 99, max_seq_len=100)) == 99
    monkeypatch.setattr(tokenizer, "_encoded", lambda *_, **__: pytest.fail("it was encoded"))
    with pytest.raises(
        PromptTooLong, match="prompt has 100 characters, but this model's maximum context length is 100 "
    ):
        tokenizer.encode("a" * 100, max_seq_len=100, name="prompt")


def test_text_with_droppable_characters_is_encoded(make: Make) -> None:
    tokenizer = make(normalizer={"type": "Strip", "strip_left": True, "strip_right": True})
    assert len(tokenizer.encode("a" + " " * 10_000, max_seq_len=2)) == 1


def test_more_ids_than_fit_the_memory_are_not_decoded(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_DECODED_BYTES", 600)
    with pytest.raises(UsageError, match="201 token ids are too many to decode at once"):
        make().decode([70] * 201)


def test_other_threads_run_while_a_long_text_is_encoded(make: Make) -> None:
    tokenizer, text = make(), CODE * 20_000
    begun, done = threading.Event(), threading.Event()

    def encode() -> None:
        begun.set()
        tokenizer.encode(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    turns = 0
    while not done.is_set():
        time.sleep(0.001)
        turns += 1
    thread.join()
    assert turns > 20, "a thread that waits for Python's lock comes to its turn once"
