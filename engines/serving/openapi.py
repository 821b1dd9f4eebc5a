"""The description of the server's paths in OpenAPI's format, generated from the types that parse the bodies.

https://spec.openapis.org/oas/v3.1.0
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.routing import BaseRoute, Route

from .api_face import BodyRoute
from .inert_fields import InertFields

_REFERENCE = "#/components/schemas/{name}"
_BEARER = "bearer"
_CONTENT = {"200": {"description": "The answer as JSON, or as server-sent events if a stream was requested."}}
_ERROR = {"default": {"description": "An error; the message names the invalid field, if any."}}


def described(routes: Sequence[BaseRoute], version: str, root_path: str, *, needs_key: bool) -> dict[str, Any]:
    """Return the description of those routes that have one."""
    shown = [route for route in routes if isinstance(route, Route) and route.include_in_schema]
    bodies = [route for route in shown if isinstance(route, BodyRoute)]
    references, schemas = msgspec.json.schema_components([route.body for route in bodies], ref_template=_REFERENCE)
    bodies_by_path = {route.path: reference for route, reference in zip(bodies, references, strict=True)}
    for each in bodies:
        schema = schemas[bodies_by_path[each.path]["$ref"].rpartition("/")[2]]
        schema["properties"] = {**_without_effect(each.inert), **schema["properties"]}
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = _operation(route, bodies_by_path.get(route.path))
            paths.setdefault(_template(route.path), {})[method.lower()] = operation
    keys = {"securitySchemes": {_BEARER: {"type": "http", "scheme": "bearer"}}} if needs_key else {}
    return {
        "openapi": "3.1.0",
        "info": {"title": "peagle-compile", "version": version},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {"schemas": schemas, **keys},
        **({"security": [{_BEARER: []}]} if needs_key else {}),
    }


def _operation(route: Route, body: dict[str, Any] | None) -> dict[str, Any]:
    summary, _, rest = (inspect.getdoc(route.endpoint) or "").partition("\n\n")
    description = summary.partition(": ")[2] or summary
    operation: dict[str, Any] = {"summary": description.replace("``", "`"), "responses": {**_CONTENT, **_ERROR}}
    if rest:
        operation["description"] = rest.replace("``", "`")
    if names := re.findall(r"{(\w+)", route.path):
        operation["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names
        ]
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    return operation


def _template(path: str) -> str:
    """Return a path without the converters of its parameters."""
    return re.sub(r"{(\w+):\w+}", r"{\1}", path)


def _without_effect(inert: InertFields) -> dict[str, Any]:
    """Return the schemas of fields without effect: any value, or those that are accepted."""
    neutral = {name: {"enum": [None, *values]} for name, values in inert.neutral.items()}
    return {**{name: {} for name in inert.ignored}, **neutral}
