"""Raw bodies: errors say what is wrong with them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.reading import parse_body, parse_variant


class Content(Struct):
    """A body with one field."""

    a: Any


class Closed(Struct, forbid_unknown_fields=True):
    """A part with one field and no other."""

    a: Any


def _refused(raw: bytes) -> HttpRefusal:
    with pytest.raises(HttpRefusal) as refused:
        parse_body(raw, Content)
    assert (refused.value.status, refused.value.code) == (400, "invalid_json")
    return refused.value


@pytest.mark.parametrize("raw", [b"", b" \n"])
def test_an_empty_body_is_called_empty(raw: bytes) -> None:
    assert _refused(raw).message == "the body is empty; fix: send a JSON object"


@pytest.mark.parametrize(
    ("text", "half"),
    [
        (r"\ud83d", r"\ud83d at byte 6"),
        (r"\uDE00 and more than it", r"\uDE00 at byte 6"),
        (r"\ud83dA and more than it", r"\ud83d at byte 6"),
        (r"\ud83d\ud83d\ude00", r"\ud83d at byte 6"),
        (r"\ud83d\ude00\ude00", r"\ude00 at byte 18"),
        (r"\\\ud83d", r"\ud83d at byte 8"),
    ],
)
def test_half_of_a_surrogate_pair_is_named(text: str, half: str) -> None:
    message = _refused(b'{"a":"%b"}' % text.encode()).message
    assert f"{half} is an unpaired surrogate; fix: split text only between characters" in message


@pytest.mark.parametrize("text", [r"\ud83d\ude00", r"\\ud83d", r"\\\\ude00", r"\u0041"])
def test_text_without_half_a_pair_is_not_blamed(text: str) -> None:
    raw = b'{"a":"%b"' % text.encode()
    assert "surrogate" not in _refused(raw).message
    assert parse_body(raw + b"}", Content).a == json.loads(raw + b"}")["a"]


@given(text=st.text(st.sampled_from('\\"u\ud83d\ude00\ud83ddc0 A\n'), max_size=12))
def test_any_text_is_read_or_its_half_pair_is_named(text: str) -> None:
    raw = json.dumps({"a": text}).encode()
    if any("\ud800" <= each <= "\udfff" for each in json.loads(raw)["a"]):
        assert "is an unpaired surrogate" in _refused(raw).message
    else:
        assert parse_body(raw, Content).a == json.loads(raw)["a"]


def test_null_fields_of_a_part_are_absent() -> None:
    """Known or not: clients send back parts of answers with all the fields of their own version of the API."""
    assert parse_variant({"type": "text", "a": 1, "caller": None}, {"text": Closed}, "input[0]").a == 1
    with pytest.raises(HttpRefusal, match="unknown field `caller`"):
        parse_variant({"type": "text", "a": 1, "caller": "b"}, {"text": Closed}, "input[0]")
