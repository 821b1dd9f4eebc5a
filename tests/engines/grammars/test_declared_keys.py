"""Objects of a schema have only declared keys, wherever they are declared, unless the schema permits others."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from peagle.engines import StructuredOutputsParams
from peagle.engines.grammars.declared_keys import keep_to_declared_keys
from peagle.engines.grammars.grammar_text import grammar_text
from peagle.plugins.errors import UsageError

llguidance = pytest.importorskip("llguidance")

ONE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TWO = {"type": "object", "properties": {"b": {"type": "integer"}}, "required": ["b"]}
DEFS = {"one": ONE, "two": TWO}


def takes(schema: Any, text: str, **options: Any) -> bool:
    """Whether ``text`` is a whole text of the form."""
    form = StructuredOutputsParams(json=schema, disable_any_whitespace=True, **options)
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar_text(form), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return all(matcher.consume_token(byte) for byte in text.encode()) and matcher.is_accepting()


CASES: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "an object": (ONE, ['{"a":1}'], ['{"a":1,"z":2}']),
    "an object in an object": ({"properties": {"x": ONE}}, ['{"x":{"a":1}}', "{}"], ['{"x":{"a":1,"z":2}}', '{"z":1}']),
    "an object in a list": ({"items": ONE}, ['[{"a":1}]'], ['[{"a":1,"z":2}]']),
    "no keys at all": ({"type": "object", "properties": {}}, ["{}"], ['{"z":1}']),
    "keys by patterns": ({"type": "object", "patternProperties": {"^x": {}}}, ['{"x1":2}'], ['{"z":1}']),
    "a required key": ({**ONE, "required": ["a", "z"]}, ['{"a":1,"z":2}'], ['{"a":1,"z":2,"y":3}']),
    "one definition": ({"$ref": "#/$defs/one", "$defs": DEFS}, ['{"a":1}'], ['{"a":1,"z":2}']),
    "a definition in an odd place": ({"$ref": "#/d/0", "d": [ONE]}, ['{"a":1}'], ['{"a":1,"z":2}']),
    "a definition as pydantic has it": (
        {"allOf": [{"$ref": "#/$defs/one"}], "default": {}, "$defs": DEFS}, ['{"a":1}'], ['{"a":1,"z":2}'],
    ),
    "a definition with keys beside it": (
        {"$ref": "#/$defs/one", "properties": {"c": {}}, "$defs": DEFS}, ['{"a":1,"c":2}'], ['{"a":1,"z":2}'],
    ),
    "all of several": ({"allOf": [ONE, TWO]}, ['{"a":1,"b":2}'], ['{"a":1,"b":2,"z":3}', '{"a":1}']),
    "all of several definitions": (
        {"allOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}], "$defs": DEFS},
        ['{"a":1,"b":2}'],
        ['{"a":1,"b":2,"z":3}'],
    ),
    "a definition that is also used alone": (
        {
            "allOf": [{"$ref": "#/$defs/one"}, {"properties": {"c": {"$ref": "#/$defs/one"}}}],
            "$defs": DEFS,
        },
        ['{"a":1,"c":{"a":2}}'],
        ['{"a":1,"c":{"a":2,"b":3}}', '{"a":1,"z":3}'],
    ),
    "any of several": ({"anyOf": [ONE, TWO, {"type": "null"}]}, ['{"a":1}', '{"b":1}', "null"], ['{"a":1,"b":2}']),
    "one of several": ({"oneOf": [ONE, TWO]}, ['{"a":1}', '{"b":1}'], ['{"a":1,"b":2}']),
    "any of several beside keys": (
        {"anyOf": [ONE, TWO], "properties": {"k": {"type": "integer"}}},
        ['{"a":1,"k":2}', '{"b":1}'],
        ['{"a":1,"b":2}', '{"a":1,"z":2}'],
    ),
    "one or the other is required": (
        {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        ['{"a":1}', '{"b":1}', '{"a":1,"b":2}'],
        ["{}", '{"a":1,"z":2}'],
    ),
    "a tree": (
        {"properties": {"child": {"$ref": "#"}, "v": {"type": "integer"}}},
        ['{"child":{"child":{"v":1}}}'],
        ['{"child":{"z":1}}'],
    ),
    "keys that are called as keywords": (
        {"properties": {"properties": {"properties": {"required": {"type": "integer"}}}}},
        ['{"properties":{"required":1}}'],
        ['{"properties":{"properties":1}}'],
    ),
}  # fmt: skip
FREE: dict[str, tuple[dict[str, Any], str]] = {
    "an object that declares nothing": ({"type": "object"}, '{"z":1}'),
    "any value": ({}, '{"z":1}'),
    "an object that admits others": ({**ONE, "additionalProperties": True}, '{"a":1,"z":2}'),
    "an object that admits some": ({**ONE, "additionalProperties": {"type": "null"}}, '{"a":1,"z":null}'),
    "parts of which one admits others": (
        {"allOf": [ONE, {"properties": {"b": {}}, "additionalProperties": True}]},
        '{"a":1,"z":2}',
    ),
    "values that look like schemas": ({"enum": [{"properties": {"a": 1}}]}, '{"properties":{"a":1}}'),
}


@pytest.mark.parametrize("name", CASES)
def test_objects_keep_to_the_keys_that_they_declare(name: str) -> None:
    schema, good, bad = CASES[name]
    assert [text for text in good if not takes(schema, text)] == []
    assert [text for text in bad if takes(schema, text)] == []


@pytest.mark.parametrize("name", FREE)
def test_open_objects_stay_open(name: str) -> None:
    schema, text = FREE[name]
    assert takes(schema, text)


def test_standard_behaviour_can_be_requested() -> None:
    assert takes(ONE, '{"a":1,"z":2}', disable_additional_properties=False)
    assert takes({"properties": {"x": ONE}}, '{"x":{"a":1,"z":2},"y":3}', disable_additional_properties=False)


def test_schema_is_not_modified() -> None:
    schema = {"allOf": [{"$ref": "#/$defs/one"}, {"properties": {"b": ONE}}], "$defs": {"one": ONE, "open-0": TWO}}
    before = json.dumps(schema)
    kept = keep_to_declared_keys(schema, "it")
    assert json.dumps(schema) == before
    assert kept["$defs"]["open-0"] == {**TWO, "additionalProperties": False}, "the name of a copy is a new one"


@pytest.mark.parametrize(
    "schema",
    [
        {"allOf": [{"$ref": "http://example.com/a.json"}, ONE]},
        {"allOf": [{"$ref": "#/$defs/gone"}, ONE]},
        {"allOf": [{"$ref": 3}, {"$ref": ["#"]}], "properties": {}},
        {"allOf": [{"$ref": "#/x/y"}, ONE], "x": {"$id": "http://example.com/b.json", "y": {"type": "object"}}},
    ],
)
def test_object_with_unreadable_part_stays_open(schema: dict[str, Any]) -> None:
    assert "additionalProperties" not in keep_to_declared_keys(schema, "it")


@pytest.mark.parametrize(
    "schema",
    [
        3 * [{"properties": 3, "required": 4, "allOf": 5, "anyOf": {"a": 1}, "items": "x", "type": 7, "$defs": []}],
        {"properties": {"a": 3, "b": None, "c": [1]}, "patternProperties": [], "required": [3, None], "type": [1, {}]},
        {"allOf": [3, None, "a"], "anyOf": [4], "oneOf": [[]], "properties": {"a": {}}},
        {"$ref": "#", "properties": {"a": {}}},
    ],
)
def test_invalid_schema_is_left_to_the_compiler(schema: Any) -> None:
    assert keep_to_declared_keys({"items": schema}, "it")


BOMBS: dict[str, dict[str, Any]] = {
    "many alternatives of many keys": {"properties": {f"k{i}": {} for i in range(3000)}, "anyOf": [{}] * 10_000},
    "many parts of one large definition": {
        "items": [{"allOf": [{"$ref": "#/$defs/large"}, {"properties": {}}]}] * 1000,
        "$defs": {"large": {"properties": {f"k{i}": {} for i in range(1000)}}},
    },
}


@pytest.mark.parametrize("name", BOMBS)
def test_parts_that_combine_in_millions_of_ways_are_refused_in_time(name: str) -> None:
    began = time.thread_time()
    with pytest.raises(UsageError, match="it combines its parts in too many ways") as error:
        keep_to_declared_keys(BOMBS[name], "it")
    assert time.thread_time() - began < 2
    assert "100,000" in error.value.why


def test_a_long_chain_of_references_is_followed() -> None:
    chain = {str(at): {"allOf": [{"$ref": f"#/$defs/{at + 1}"}], "properties": {}} for at in range(100)}
    kept = keep_to_declared_keys({"$ref": "#/d/0", "$defs": {**chain, "100": ONE}, "d": chain}, "it")
    assert kept["$ref"].startswith("#/$defs/")
