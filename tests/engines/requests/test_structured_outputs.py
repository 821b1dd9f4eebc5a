"""Parameters of structured outputs: five kinds, one at a time, validated before anything is compiled."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest

from peagle.engines import SamplingParams, StructuredOutputsParams
from peagle.engines.requests.structured_outputs import MAX_CHARACTERS
from peagle.plugins.errors import UsageError

CIRCLE: dict[str, Any] = {}
CIRCLE["properties"] = CIRCLE


def nested(count: int) -> dict[str, Any]:
    """The schema of so many objects, each inside of the one before."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(count):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


DEEP: dict[str, Any] = {}
for _ in range(100_000):
    DEEP = {"items": DEEP}


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({}, "must set exactly one format, not none"),
        ({"json_object": False}, "must set exactly one format, not none"),
        ({"json": {}, "regex": "a"}, "not json and regex"),
        ({"json": "{"}, r"structured_outputs\.json is not valid JSON"),
        ({"json": [1]}, r"structured_outputs\.json must be a JSON schema"),
        ({"json": '"text"'}, r"structured_outputs\.json must be a JSON schema"),
        ({"json": CIRCLE}, r"structured_outputs\.json is not valid JSON"),
        ({"json": DEEP}, r"structured_outputs\.json is nested more than 120 levels deep"),
        ({"json": "[" * 60_000}, r"structured_outputs\.json is nested more than 120 levels deep"),
        ({"json": nested(80)}, r"structured_outputs\.json is nested more than 120 levels deep"),
        ({"json": json.dumps(nested(80))}, r"structured_outputs\.json is nested more than 120 levels deep"),
        ({"json": {"const": float("nan")}}, r"structured_outputs\.json is not valid JSON"),
        ({"json": {"const": {1, 2}}}, r"structured_outputs\.json is not valid JSON"),
        ({"json": {"const": "\ud800"}}, "lone surrogate"),
        ({"json": {"const": "a" * MAX_CHARACTERS}}, "characters"),
        ({"regex": 3}, r"structured_outputs\.regex must be a str"),
        ({"regex": ""}, r"structured_outputs\.regex is empty"),
        ({"regex": "a" * (MAX_CHARACTERS + 1)}, "characters"),
        ({"choice": "yes"}, r"structured_outputs\.choice must be a list"),
        ({"choice": []}, r"structured_outputs\.choice must be a list"),
        ({"choice": ["a", ""]}, r"structured_outputs\.choice"),
        ({"choice": ["a", 1]}, r"structured_outputs\.choice"),
        ({"choice": ["a" * 1000] * 100}, "characters"),
        ({"grammar": ["start"]}, r"structured_outputs\.grammar must be a str"),
        ({"json_object": 1}, r"structured_outputs\.json_object must be True or False"),
        ({"regex": "a", "disable_any_whitespace": True}, "disable_any_whitespace requires JSON, not regex"),
        (
            {"json": {}, "disable_any_whitespace": True, "whitespace_pattern": " "},
            "disable_any_whitespace and whitespace_pattern",
        ),
        (
            {"regex": "a", "disable_additional_properties": False},
            "disable_additional_properties requires JSON, not",
        ),
        ({"jsn": None, "json": {}}, "a field of structured_outputs must be one of json, regex"),
        ({"json": {}, "structural_tag": "a"}, "a field of structured_outputs must be one of json, regex"),
        ({"jsn": {}}, "a field of structured_outputs must be one of json, regex"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, str) else None,
)
def test_contradictory_options_are_rejected_by_name(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named) as error:
        SamplingParams(structured_outputs=asked)
    assert len(str(error.value)) < 2000


def test_limit_error_names_the_remedy() -> None:
    for asked in ({"json": {"const": "a" * MAX_CHARACTERS}}, {"json": nested(80)}):
        with pytest.raises(UsageError) as error:
            SamplingParams(structured_outputs=asked)
        assert re.search("at most 65536|more than 120", str(error.value))
        assert "$defs" in error.value.fix


def test_null_fields_are_ignored() -> None:
    nothing = dict.fromkeys(field.name for field in dataclasses.fields(StructuredOutputsParams)) | {
        "structural_tag": None
    }
    params = SamplingParams(structured_outputs={**nothing, "json": {}})
    assert params.structured_outputs == StructuredOutputsParams(json={})


@pytest.mark.parametrize("asked", [3, "json", ["json"]])
def test_invalid_form_is_rejected(asked: Any) -> None:
    with pytest.raises(UsageError, match="structured_outputs must be StructuredOutputsParams or a dict"):
        SamplingParams(structured_outputs=asked)


def test_dict_form_is_equivalent_and_unmodified() -> None:
    schema = {"type": "object", "properties": {"é": {}}}
    params = SamplingParams(structured_outputs={"json": schema})
    same = StructuredOutputsParams(json='{"type": "object", "properties": {"é": {}}}')
    assert params.structured_outputs == same
    assert params == SamplingParams(**vars(params))
    assert hash(params) == hash(SamplingParams(structured_outputs=same))
    assert schema == {"type": "object", "properties": {"é": {}}}
    assert [each.kind for each in (same, StructuredOutputsParams(choice=["a"]))] == ["json", "choice"]
