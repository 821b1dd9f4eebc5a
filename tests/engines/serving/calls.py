"""Raw HTTP requests, including those that no regular client sends."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.server import Server


def call(
    server: Server,
    method: str,
    path: str,
    body: Any = None,
    headers: dict[str, str] | None = None,
    seconds: float = 30,
) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers (lower-case names) and body of a response; a body that is not bytes is sent as JSON."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=seconds)
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request(method, path, content, headers or {})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def error_of(content: bytes) -> dict[str, Any]:
    """The error object of a response."""
    error: dict[str, Any] = json.loads(content)["error"]
    return error


@contextmanager
def all_slots_taken(engine: Engine) -> Iterator[None]:
    """Within it, a request waits for those of others."""
    params = SamplingParams(max_tokens=10_000, ignore_eos=True)
    running = [engine.submit("a", params) for _ in range(engine._loop.slots)]
    try:
        yield
    finally:
        for each in running:
            each.cancel()
        for each in running:
            each.result()


def connect(server: Server) -> socket.socket:
    """A connection of which the caller sends every byte itself."""
    return socket.create_connection((server.host, server.port), timeout=30)


def events(content: bytes) -> list[dict[str, Any]]:
    """The events of a stream whose names are the types in their data."""
    found = []
    for block in content.decode().strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
