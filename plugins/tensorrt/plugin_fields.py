"""Plugin fields: convert attributes to TensorRT's fields and back.

TensorRT passes any field whose name was declared, whatever its type and length: a float where an int was declared
arrives as a float. So every field is checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import BuildError
from ..op_spec import DOMAIN, OpSpec
from .check_call import check_attributes

# The parser converts an ONNX INT to INT32; a serialized plan holds INT64.
_ACCEPTED = {int: ("INT32", "INT64"), float: ("FLOAT32", "FLOAT64"), str: ("CHAR",)}
_DECLARED = {int: "INT32", float: "FLOAT32", str: "CHAR"}


def declare(trt: ModuleType, spec: OpSpec) -> list[Any]:
    """Return the fields that a creator announces: the parser only passes attributes with these names.

    A ``PluginFieldCollection`` copies pointers to its fields: keep this list alive as long as the collection.
    """
    kinds = trt.PluginFieldType
    return [trt.PluginField(a.name, np.array([], np.int8), getattr(kinds, _DECLARED[a.kind])) for a in spec.attributes]


def write(trt: ModuleType, spec: OpSpec, values: Mapping[str, Any]) -> list[Any]:
    """Return the fields to store in a plan; keep them alive like those of ``declare``."""
    kinds = trt.PluginFieldType
    fields = []
    for attribute in spec.attributes:
        value = values[attribute.name]
        if attribute.kind is str:
            data, kind = np.frombuffer(value.encode() + b"\0", np.int8), kinds.CHAR
        elif attribute.kind is int:
            data, kind = np.array([value], np.int64), kinds.INT64
        else:
            data, kind = np.array([value], np.float64), kinds.FLOAT64
        fields.append(trt.PluginField(attribute.name, data, kind))
    return fields


def read(spec: OpSpec, collection: Any) -> dict[str, Any]:
    """Return the attributes in a field collection, with defaults filled in.

    Raises ``BuildError`` naming a field that is mistyped, of the wrong length, unknown, out of range, or missing
    without a default.
    """
    kinds = {a.name: a.kind for a in spec.attributes}
    values: dict[str, Any] = {}
    for field in collection:
        accepted = _ACCEPTED[kinds[field.name]] if field.name in kinds else ()
        if accepted and field.type.name not in accepted:
            raise BuildError(
                f"{spec.name}: {field.name} must be {' or '.join(accepted)}, not {field.type.name}",
                fix=f"set the field as in the spec of {DOMAIN}::{spec.name}",
            )
        values[field.name] = _value(spec, field) if accepted else None
    return check_attributes(spec, values)


def _value(spec: OpSpec, field: Any) -> Any:
    data = np.asarray(field.data)
    if field.type.name == "CHAR":
        return data.tobytes().rstrip(b"\0").decode(errors="replace")
    if field.size != 1:
        raise BuildError(
            f"{spec.name}: {field.name} must be one number, not {field.size}",
            fix=f"set the field as in the spec of {DOMAIN}::{spec.name}",
        )
    return data.reshape(-1)[0].item()
