"""The OpenAPI description: the server accepts the bodies that it describes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import pytest
from starlette.routing import Route

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.api_face import BodyRoute
from peagle.engines.serving.faces import FACES
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from tests.engines.serving.calls import call, error_of
from tests.fixtures.servers import MODEL

ROUTES = [route for face in FACES.values() for route in face.routes]
PATHS = [route.path for route in ROUTES if isinstance(route, BodyRoute)]


@pytest.fixture(scope="module")
def description(server: Server) -> dict[str, Any]:
    status, _, content = call(server, "GET", "/openapi.json")
    assert status == 200
    found: dict[str, Any] = json.loads(content)
    return found


def _schema(description: dict[str, Any], path: str) -> dict[str, Any]:
    content = description["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return _resolved(description, content["schema"]["$ref"])


def _resolved(description: dict[str, Any], reference: str) -> dict[str, Any]:
    at: dict[str, Any] = description
    for name in reference.removeprefix("#/").split("/"):
        at = at[name]
    return at


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        value = list(value.values())
    for each in value if isinstance(value, list) else ():
        yield from _references(each)


def test_every_path_of_the_server_is_described(description: dict[str, Any]) -> None:
    shown = {
        route.path.replace(":path", "") for route in ROUTES if isinstance(route, Route) and route.include_in_schema
    }
    others = {"/v1/drafters", "/v1/drafters/{name}", "/health", "/metrics", "/load", "/version"}
    assert description["paths"].keys() == shown | others
    assert {*description["paths"]["/v1/drafters"]} == {"get", "post"}
    assert all(each["summary"] for methods in description["paths"].values() for each in methods.values())
    assert {*description["paths"]["/v1/responses/{identity}"]} == {"get", "delete"}
    assert all(_resolved(description, each) for each in _references(description))


@pytest.mark.parametrize("path", PATHS)
def test_a_described_field_is_accepted_and_no_other(server: Server, description: dict[str, Any], path: str) -> None:
    schema = _schema(description, path)
    assert schema["additionalProperties"] is False

    def refusal(body: dict[str, Any]) -> str:
        status, _, content = call(server, "POST", path, body)
        assert status == 400, content
        return str(json.loads(content)["error"]["message"])

    for name in (*schema["properties"], "no_such_field"):
        said = refusal({name: None, "another": 1})  # the first unknown field is named
        assert (f"unknown field `{name}`" in said) == (name == "no_such_field"), said
    for name in schema.get("required", ()):
        others = {each: _sample(schema["properties"][each]) for each in schema["required"] if each != name}
        assert f"missing required field `{name}`" in refusal(others)


def _sample(schema: dict[str, Any]) -> Any:
    """A value of a required field's type."""
    if "anyOf" in schema:
        return _sample(schema["anyOf"][0])
    return {"array": [], "string": "a", "integer": 1}[schema["type"]]


def test_values_without_effect_are_listed(description: dict[str, Any]) -> None:
    fields = _schema(description, "/v1/chat/completions")["properties"]
    assert fields["use_beam_search"] == {"enum": [None, False]}
    assert fields["user"] == {}
    assert fields["return_token_ids"]["anyOf"] == [{"type": "boolean"}, {"type": "null"}]


def test_key_and_root_path_are_described(served_engine: Engine) -> None:
    server = Server(served_engine, ServerSettings(MODEL, api_keys=("k",), root_path="/llm"), port=0)
    server.start()
    try:
        assert call(server, "GET", "/load")[0] == 200
        assert call(server, "GET", "/version")[0] == 401
        status, _, content = call(server, "GET", "/openapi.json")
        assert (status, error_of(content)["code"]) == (401, "invalid_api_key")
        found = json.loads(call(server, "GET", "/llm/openapi.json", headers={"Authorization": "Bearer k"})[2])
        assert found["servers"] == [{"url": "/llm"}]
        assert found["security"] == [{"bearer": []}]
    finally:
        server.stop(immediately=True)
        assert server.wait(10)


def test_load_counts_running_and_waiting_requests(server: Server, served_engine: Engine) -> None:
    idle = json.loads(call(server, "GET", "/load")[2])
    assert idle == {"server_load": 0, "running": 0, "waiting": 0}
    params = SamplingParams(max_tokens=400, ignore_eos=True)
    submissions = [served_engine.submit("a", params) for _ in range(5)]
    busy = json.loads(call(server, "GET", "/load")[2])
    assert busy["server_load"] == busy["running"] + busy["waiting"] == 5
    for each in submissions:
        each.cancel()
    for each in submissions:
        each.result()


def test_version_is_that_of_the_package(server: Server) -> None:
    assert json.loads(call(server, "GET", "/version")[2]) == {"version": version("peagle-compile")}
