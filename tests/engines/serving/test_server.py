"""The server around the application: its address, its shutdown, and failures between requests."""

from __future__ import annotations

import asyncio
import errno
import http.client
import json
import logging
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from peagle.engines import Engine
from peagle.engines.serving import server as server_module
from peagle.engines.serving.listening import bound
from peagle.engines.serving.server import LoopErrors, Server
from peagle.engines.serving.settings import Limits, ServerSettings
from peagle.plugins.errors import EnvironmentProblem
from tests.engines.serving.calls import call, connect, error_of
from tests.fixtures.servers import MODEL

WAYS = ({"n": 4}, {"n": 4, "stream": True})
ENDING = "the server is shutting down"


def test_an_address_is_had_before_anybody_is_let_in(served_engine: Engine) -> None:
    address = bound("127.0.0.1", 0)
    port = address.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))
    server = Server(served_engine, ServerSettings(MODEL), address=address)
    assert server.port == port
    server.start()
    assert call(server, "GET", "/v1/models")[0] == 200
    with pytest.raises(EnvironmentProblem, match="Address already in use"):
        bound("127.0.0.1", port)
    server.stop()
    assert server.wait(10)
    bound("127.0.0.1", port).close()


def test_failed_server_states_the_reason(served_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(served_engine, ServerSettings(MODEL), port=0)

    def no_loop() -> asyncio.AbstractEventLoop:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(server._server.config, "get_loop_factory", lambda: no_loop)
    server.start()
    with pytest.raises(EnvironmentProblem, match="Too many open files"):
        server.wait(10)
    server._socket.close()


@pytest.mark.parametrize("at_once", [False, True])
def test_requests_that_outlast_the_drain_get_an_error(
    served_engine: Engine, caplog: pytest.LogCaptureFixture, at_once: bool
) -> None:
    """Also one whose body has not arrived. The log has no traceback."""
    limits = Limits(drain_seconds=3600 if at_once else 0)
    server = Server(served_engine, ServerSettings(MODEL, limits=limits), port=0)
    server.start()
    body = {"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "num_speculative_tokens": 0}
    with ThreadPoolExecutor() as pool, connect(server) as sender:
        sender.sendall(
            b"POST /v1/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9\r\nExpect: 100-continue\r\n\r\n"
        )
        assert b"100 Continue" in sender.recv(1000)
        asked = [pool.submit(call, server, "POST", "/v1/completions", {**body, **more}) for more in WAYS]
        while served_engine.load_now.running + served_engine.load_now.waiting < 8:
            time.sleep(0.01)
        server.stop(immediately=at_once)
        whole, streamed = (each.result() for each in asked)
        unsent = b"".join(iter(lambda: sender.recv(1000), b""))
    assert server.wait(10)
    assert (whole[0], whole[1]["retry-after"], error_of(whole[2])["message"]) == (503, "1", ENDING)
    assert json.loads(streamed[2].split(b"data: ")[-2])["error"]["message"] == ENDING
    assert unsent.startswith(b"HTTP/1.1 503")
    assert ENDING.encode() in unsent
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


def test_connection_without_complete_headers_is_closed(served_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Be it the first request or a later one. A request is not cut off, however slowly its body arrives."""
    monkeypatch.setattr(server_module, "KEEP_ALIVE_SECONDS", 2)
    server = Server(served_engine, ServerSettings(MODEL), port=0)
    server.start()
    head = b"GET /version HTTP/1.1\r\nHost: localhost\r\n"
    with connect(server) as slow, connect(server) as silent, connect(server) as half, connect(server) as second:
        slow.sendall(b"POST /detokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 15\r\n\r\n")
        half.sendall(head)
        second.sendall(head + b"\r\n")
        answer = http.client.HTTPResponse(second)
        answer.begin()
        assert (answer.status, "version" in json.loads(answer.read())) == (200, True)
        second.sendall(head)
        assert [each.recv(1) for each in (silent, half, second)] == [b"", b"", b""]
        slow.sendall(b'{"tokens": [5]}')
        assert slow.recv(1000).startswith(b"HTTP/1.1 200")
    server.stop(immediately=True)
    assert server.wait(10)


def test_unread_response_is_dropped(
    served_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Be it still running or complete. A client that reads slowly gets all of it."""
    for name in ("UNREAD_SECONDS", "KEEP_ALIVE_SECONDS"):
        monkeypatch.setattr(server_module, name, 1)
    address = bound("127.0.0.1", 0)
    address.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # otherwise the system buffers the whole response
    server = Server(served_engine, ServerSettings(MODEL), address=address)
    server.start()

    def ask(client: socket.socket, tokens: int) -> None:
        body = json.dumps({"prompt": "a", "max_tokens": tokens, "ignore_eos": True, "stream": True, "logprobs": 5})
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", server.port))
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall((head + body).encode())

    with socket.socket() as slow, socket.socket() as running, socket.socket() as complete, caplog.at_level("INFO"):
        ask(running, 1500)
        ask(complete, 100)
        ask(slow, 300)
        began, told = time.monotonic(), b""
        while not told.endswith(b"[DONE]\n\n\r\n0\r\n\r\n"):
            time.sleep(0.004)
            told += slow.recv(400)
        assert time.monotonic() - began > 1
        while " ".join(caplog.messages).count("read nothing") < 2:
            time.sleep(0.02)
        for each in (running, complete):
            assert b"[DONE]" not in b"".join(iter(lambda client=each: client.recv(1000), b""))
    server.stop()
    assert server.wait(10)
    assert [json.loads(line)["status"] for line in caplog.messages if '"request"' in line] == [200] * 3


def test_grammar_vocabulary_loads_after_startup(served_engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    read = threading.Event()
    monkeypatch.setattr(server_module, "FORMS_SECONDS", 0.01)
    monkeypatch.setattr(served_engine, "prepare_forms", read.set)
    server = Server(served_engine, ServerSettings(MODEL), port=0)
    server.start()
    assert read.wait(20)
    server.stop(immediately=True)
    assert server.wait(10)


def test_accept_failures_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    loop, errors = asyncio.new_event_loop(), LoopErrors()
    with caplog.at_level(logging.INFO):
        errors(loop, {"message": "another", "exception": ValueError("Invalid file descriptor: -1")})
        assert [record.name for record in caplog.records] == ["asyncio"]
        for _ in range(100):
            errors(loop, {"message": "accept", "exception": OSError(errno.EMFILE, "Too many open files")})
            errors(loop, {"message": "closed by now", "exception": ValueError("Invalid file descriptor: -1")})
        errors(loop, {"message": "another", "exception": OSError(errno.EBADF, "Bad file descriptor")})
    loop.close()
    assert [record.name for record in caplog.records] == ["asyncio", "peagle.serving", "asyncio"]
    assert "ulimit -n" in caplog.messages[1]
