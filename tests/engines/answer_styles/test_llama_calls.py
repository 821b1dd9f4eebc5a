"""Tool calls in Llama 3's format, in pieces of any size, and invalid JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines.answer_styles.llama_calls import LlamaCallReader

TOOLS: list[dict[str, Any]] = [{"type": "function", "function": {"name": name}} for name in ("weather", "web-search")]
ONE = '{"name": "weather", "parameters": {"city": "K\u00f6ln; \\"x\\"", "days": 3}}'
PARSED = ("weather", {"city": 'K\u00f6ln; "x"', "days": 3})


def read(text: str, sizes: list[int] | None = None, most: int | None = None) -> tuple[str, list[tuple[str, Any]]]:
    """Return the text and the calls of an answer that arrives in pieces of these sizes."""
    reader, said, calls, begin = LlamaCallReader(TOOLS, most), "", list[Any](), 0
    for size in [*(sizes or []), len(text) + 1]:
        piece, begin = text[begin : begin + size], begin + size
        told, found = reader.push(piece, is_last=begin >= len(text))
        said, calls = said + told, calls + found
        if begin >= len(text):
            break
    assert [call.at for call in calls] == list(range(len(calls))) == list(range(reader.count))
    return said, [(call.name, json.loads(call.arguments)) for call in calls]


SIZES = st.lists(st.integers(1, 9), max_size=60)


@given(sizes=SIZES)
def test_calls_are_parsed_for_any_chunking(sizes: list[int]) -> None:
    assert read(ONE, sizes) == ("", [PARSED])
    assert read(f"\n<|python_tag|>{ONE}", sizes) == ("", [PARSED])
    assert read(f"{ONE}; {ONE}\n;{ONE} ;", sizes) == ("", [PARSED] * 3)
    assert read(f"{ONE};{ONE}", sizes, most=1) == ("", [PARSED])
    assert read(f"{ONE} It; is  warm", sizes) == (" It; is  warm", [PARSED])
    assert read('{"name": "weather", "arguments": {}}', sizes) == ("", [("weather", {})])
    python = '<|python_tag|>web-search.call(query="a (b)", top=[1, 2])'
    assert read(python, sizes) == ("", [("web-search", {"query": "a (b)", "top": [1, 2]})])
    two = 'weather.call(city="a)", days=(1)); weather.call(days=2)'
    assert read(two, sizes) == ("", [("weather", {"city": "a)", "days": 1}), ("weather", {"days": 2})])
    assert read("weather.call(days=1)\nDone.)", sizes) == ("\nDone.)", [("weather", {"days": 1})])


@pytest.mark.parametrize(
    "text",
    [
        "It is warm.",
        f"I call: {ONE}",
        '{"name": "Anna", "parameters": {"age": 3}}',
        '{"name": "weather", "parameters": [1]}',
        '{"answer": 42}',
        '{"name": "weather", "param',
        "[1, 2]",
        "{" * 3000,
        "weather is fine",
        "weather.call(",
        "weather.call(__import__('os').system('true'))",
        "weather.call(1)",
        "weather.called",
        "web",
        "<|python_tag|>print(1)",
        " ",
    ],
)
@given(sizes=SIZES)
def test_other_text_is_passed_through(text: str, sizes: list[int]) -> None:
    assert read(text, sizes) == (text, [])


def test_visible_text_is_not_delayed() -> None:
    reader = LlamaCallReader(TOOLS)
    assert reader.push("The", is_last=False) == ("The", [])
    assert reader.push(f" {ONE}", is_last=False) == (f" {ONE}", [])
    assert LlamaCallReader(TOOLS).push("we", is_last=False) == ("", [])
    reader = LlamaCallReader(TOOLS)
    assert reader.push('{"a": 1', is_last=False) == ("", [])
    assert reader.push("} is JSON", is_last=False) == ('{"a": 1} is JSON', [])


def test_text_after_a_call_is_visible() -> None:
    assert read(f"{ONE} and that is all") == (" and that is all", [PARSED])


def test_arguments_are_valid_json() -> None:
    reader = LlamaCallReader(TOOLS)
    _, (call,) = reader.push('{"name": "weather", "parameters": {"days": 1e999}}', is_last=True)
    assert json.loads(call.arguments, parse_constant=pytest.fail) == {"days": sys.float_info.max}
    for text in ('{"name": "weather", "parameters": {"days": NaN}}', "weather.call(days=1e999)"):
        assert read(text) == (text, [])


def test_escaped_surrogates_of_python_calls_are_characters() -> None:
    assert read(r'weather.call(city="\ud83d\ude00 \ud83d")') == ("", [("weather", {"city": "\U0001f600 \ufffd"})])
