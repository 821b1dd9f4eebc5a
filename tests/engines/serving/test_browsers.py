"""Pages of other sites cannot use the server through their visitors' browsers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.datastructures import Headers

from peagle.engines import Engine
from peagle.engines.serving.browsers import allowed_hosts, check_host_name, check_json, check_origin
from peagle.engines.serving.problems import HttpRefusal
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.plugins.errors import UsageError
from tests.engines.serving.calls import call, error_of
from tests.fixtures.servers import MODEL

BODY = {"prompt": "def f", "max_tokens": 1}
SITE = "https://chat.example.com"


@pytest.fixture(scope="module")
def open_server(served_engine: Engine) -> Iterator[Server]:
    """It lets one site use it, is called by another name too, and wants a key."""
    settings = ServerSettings(MODEL, api_keys=("key",), cors_origins=(SITE,), allowed_hosts=("AI.example.com",))
    server = Server(served_engine, settings, port=0)
    server.start()
    yield server
    server.stop(immediately=True)
    assert server.wait(10)


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"]
)
def test_a_site_that_leads_to_this_machine_is_not_answered(server: Server, path: str, host: str) -> None:
    status, _, content = call(server, "GET", path, headers={"Host": host})
    assert (status, error_of(content)["code"]) == (403, "host_not_allowed")
    assert "--allowed-host" in error_of(content)["message"]


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8000", "127.0.0.1:1", "[::1]:8000", "[::1]"])
def test_local_server_accepts_its_host_names(server: Server, host: str) -> None:
    assert call(server, "GET", "/v1/models", headers={"Host": host})[0] == 200


def test_a_server_is_called_by_the_names_it_was_given(open_server: Server) -> None:
    key = {"Authorization": "Bearer key"}
    assert call(open_server, "GET", "/v1/models", headers={**key, "Host": "ai.example.COM:443"})[0] == 200
    assert call(open_server, "GET", "/v1/models", headers={**key, "Host": "example.com"})[0] == 403


def test_a_server_on_other_addresses_is_called_by_any_name_unless_some_are_given() -> None:
    assert allowed_hosts("0.0.0.0", "0.0.0.0", ()) is None
    assert allowed_hosts("::", "::", ()) is None
    hosts = allowed_hosts("0.0.0.0", "0.0.0.0", ("ai.example.com",))
    assert hosts is not None
    for host in ("ai.example.com", "192.0.2.7:8000", "[2001:db8::1]:8000", "localhost", ""):
        hosts.check(Headers({"Host": host}))
    hosts.check(Headers({}))  # as in HTTP/1.0
    with pytest.raises(HttpRefusal):
        hosts.check(Headers({"Host": "evil.example"}))


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2", "::1"])
def test_a_loopback_address_is_checked_and_no_other_address_is_its_name(address: str) -> None:
    hosts = allowed_hosts(address, address, ())
    assert hosts is not None
    hosts.check(Headers({"Host": f"[{address}]:1" if ":" in address else f"{address}:1"}))
    with pytest.raises(HttpRefusal):
        hosts.check(Headers({"Host": "192.0.2.7"}))


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "application/vnd.api+json"])
def test_json_from_browsers_is_accepted(server: Server, kind: str) -> None:
    headers = {"Content-Type": kind, "Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert call(server, "POST", "/v1/completions", BODY, headers)[0] == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data; boundary=a", "text/json", "application/jsonp"])
def test_body_with_non_json_content_type_is_rejected(server: Server, path: str, kind: str) -> None:
    status, _, content = call(server, "POST", path, BODY, {"Content-Type": kind})
    assert (status, error_of(content)["code"]) == (415, "unsupported_media_type")
    assert "application/json" in error_of(content)["message"]


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded", "text/plain", "application/octet-stream"])
@pytest.mark.parametrize("mark", ["Origin", "Sec-Fetch-Site"])
@pytest.mark.parametrize("path", ["/v1/completions", "/invocations"])
def test_simple_cross_site_request_is_rejected(server: Server, path: str, mark: str, kind: str | None) -> None:
    headers = {mark: "null" if mark == "Origin" else "cross-site", **({"Content-Type": kind} if kind else {})}
    assert call(server, "POST", path, BODY, headers)[0] == 415


def test_curl_and_sagemaker_requests_are_accepted() -> None:
    for kind in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
        check_json(Headers(kind))
    for kind in ({"Content-Type": "application/octet-stream"}, {"Content-Type": "text/csv"}):
        check_json(Headers(kind), any_type=True)


def test_no_other_site_reads_an_answer_unless_it_was_named(server: Server, open_server: Server) -> None:
    asks = {"Origin": SITE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    headers = {"Origin": SITE, "Content-Type": "application/json", "Authorization": "Bearer key"}

    def allowed(at: Server, **other: str) -> tuple[Any, ...]:
        asked = call(at, "OPTIONS", "/v1/completions", headers={**asks, **other})
        answered = call(at, "POST", "/v1/completions", BODY, {**headers, **other})
        return tuple(each[1].get("access-control-allow-origin") for each in (asked, answered))

    assert allowed(server) == (None, None)
    assert allowed(open_server) == (SITE, SITE)
    assert allowed(open_server, Origin="https://evil.example") == (None, None)
    status, found, _ = call(open_server, "OPTIONS", "/v1/completions", headers=asks)
    assert (status, found["access-control-allow-headers"]) == (200, "content-type")
    assert {"GET", "POST", "DELETE"} <= set(found["access-control-allow-methods"].split(", "))
    refused = call(open_server, "POST", "/v1/completions", BODY, {**headers, "Authorization": "Bearer wrong"})
    assert (refused[0], refused[1]["access-control-allow-origin"]) == (401, SITE), "a page can read why"
    assert json.loads(refused[2])["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("origin", ["*", "https://example.com", "http://localhost:3000", "HTTP://[::1]:80"])
def test_browser_origins_are_accepted(origin: str) -> None:
    assert check_origin(origin) == origin.lower()


@pytest.mark.parametrize("origin", ["", "example.com", "https://", "https://a/", "https://a/b", "https://u@a", "null"])
def test_malformed_origin_is_rejected(origin: str) -> None:
    with pytest.raises(UsageError, match="is not a valid origin"):
        check_origin(origin)


def test_host_names_have_no_scheme_and_no_port() -> None:
    for name in ("ai.example.com", "192.0.2.7", "::1", "[2001:db8::1]"):
        assert check_host_name(name) == name
    for name in ("", " a", "https://a", "a:80", "a/b"):
        with pytest.raises(UsageError, match="is not a host name"):
            check_host_name(name)
