from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.op_spec import Attribute
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt import import_tensorrt, plugin_fields
from tests.plugins.tensorrt.rtx_builds import needs_rtx

pytestmark = needs_rtx

# Every kind of attribute a spec can have; our kernels' own have ints only.
SPEC = replace(
    OPS["PlaceholderDraft"],
    name="Mixed",
    attributes=(
        Attribute("count", int, -1, check=lambda value: "must be 0 or more" if value < 0 else None),
        Attribute("scale", float, 1.0),
        Attribute("mode", str, "greedy"),
    ),
    kernel=None,
)


@pytest.fixture(scope="module")
def trt() -> Any:
    return import_tensorrt.load("tensorrt-rtx")


def field(trt: Any, name: str, data: Any, kind: str) -> Any:
    return trt.PluginField(name, data, getattr(trt.PluginFieldType, kind))


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(0, 2**63 - 1),
    scale=st.floats(allow_nan=False),
    mode=st.text("a_ -'é€", max_size=20),
)
def test_fields_round_trip(trt: Any, count: int, scale: float, mode: str) -> None:
    values = {"count": count, "scale": scale, "mode": mode}
    entries = plugin_fields.write(trt, SPEC, values)
    assert plugin_fields.read(SPEC, trt.PluginFieldCollection(entries)) == values


def test_the_parser_s_own_field_types_are_read(trt: Any) -> None:
    entries = [
        field(trt, "count", np.array([3], np.int32), "INT32"),
        field(trt, "scale", np.array([0.5], np.float32), "FLOAT32"),
        field(trt, "mode", np.frombuffer(b"race\0", np.int8), "CHAR"),
    ]
    assert plugin_fields.read(SPEC, trt.PluginFieldCollection(entries)) == {"count": 3, "scale": 0.5, "mode": "race"}


def test_omitted_attributes_have_defaults(trt: Any) -> None:
    entries = [field(trt, "count", np.array([3], np.int32), "INT32")]
    assert plugin_fields.read(SPEC, trt.PluginFieldCollection(entries)) == {"count": 3, "scale": 1.0, "mode": "greedy"}


@pytest.mark.parametrize(
    ("name", "data", "kind", "complaint"),
    [
        ("count", np.array([3.5], np.float32), "FLOAT32", "count must be INT32 or INT64, not FLOAT32"),
        ("count", np.array([1, 2], np.int32), "INT32", "count must be one number, not 2"),
        ("count", np.array([], np.int32), "INT32", "count must be one number, not 0"),
        ("count", np.array([-2], np.int32), "INT32", "count must be 0 or more"),
        ("scale", np.array([1], np.int32), "INT32", "scale must be FLOAT32 or FLOAT64, not INT32"),
        ("mode", np.array([1], np.int32), "INT32", "mode must be CHAR, not INT32"),
        ("depth", np.array([1], np.int32), "INT32", "unknown attribute 'depth'"),
    ],
)
def test_a_field_that_does_not_fit_is_named(trt: Any, name: str, data: Any, kind: str, complaint: str) -> None:
    entries = [field(trt, name, data, kind)]
    if name != "count":
        entries.append(field(trt, "count", np.array([3], np.int32), "INT32"))
    with pytest.raises(BuildError) as caught:
        plugin_fields.read(SPEC, trt.PluginFieldCollection(entries))
    assert f"Mixed: {complaint}" in str(caught.value)


def test_a_required_attribute_must_be_there(trt: Any) -> None:
    with pytest.raises(BuildError, match="count must be given"):
        plugin_fields.read(SPEC, trt.PluginFieldCollection([]))


def test_a_creator_announces_every_attribute(trt: Any) -> None:
    entries = plugin_fields.declare(trt, SPEC)
    announced = [(each.name, each.type.name) for each in trt.PluginFieldCollection(entries)]
    assert announced == [("count", "INT32"), ("scale", "FLOAT32"), ("mode", "CHAR")]
