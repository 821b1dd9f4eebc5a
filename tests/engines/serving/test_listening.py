"""Listening addresses: a port or a Unix socket, with or without a certificate."""

from __future__ import annotations

import http.client
import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from peagle.engines import Engine
from peagle.engines.serving.listening import Tls, bound, bound_unix
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.fixtures.servers import MODEL


@pytest.mark.parametrize("host", ["203.0.113.7", "no such host", "a\udcff", "x" * 300, "unix:/tmp/socket"])
def test_unavailable_address_is_reported(host: str) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot listen on"):
        bound(host, 0)


def test_empty_host_is_not_all_interfaces() -> None:
    with pytest.raises(UsageError, match="--host is empty"):
        bound("", 0)


def _get(connection: socket.socket, path: str, host: str = "localhost") -> int:
    """Status of a request over a connection that is open."""
    with connection:
        connection.settimeout(30)
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        response = http.client.HTTPResponse(connection)
        response.begin()
        return response.status


def _over(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(str(path))
    return client


def test_unix_socket_serves_and_is_removed(served_engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "s"
    server = Server(served_engine, ServerSettings(MODEL), address=bound_unix(path))
    assert server.url == f"unix:{path}"
    server.start()
    assert _get(_over(path), "/v1/models") == 200
    assert _get(_over(path), "/v1/models", host="any.example") == 200  # no browser can open this socket
    with pytest.raises(EnvironmentProblem, match="cannot listen on --uds"):
        bound_unix(path)
    server.stop()
    assert server.wait(10)
    assert not path.exists()


def test_socket_of_a_killed_server_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    os.close(bound_unix(path).detach())
    assert path.is_socket()
    bound_unix(path).close()
    assert not path.exists()


def test_unix_socket_of_a_server_that_loads_is_not_taken_over(tmp_path: Path) -> None:
    with bound_unix(tmp_path / "s"), pytest.raises(EnvironmentProblem, match="Address already in use"):
        bound_unix(tmp_path / "s")


def test_closed_unix_socket_leaves_the_file_of_another_server(tmp_path: Path) -> None:
    path = tmp_path / "s"
    first = bound_unix(path)
    path.unlink()
    second = bound_unix(path)
    first.close()
    assert _over(path).getpeername() == str(path)
    second.close()
    first.close()
    assert not path.exists()


@pytest.mark.parametrize("name", ["file", "no/folder", "x" * 200])
def test_occupied_socket_path_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(EnvironmentProblem, match="cannot listen on --uds"):
        bound_unix(tmp_path / name)
    assert (tmp_path / "file").read_text() == "kept"


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for localhost, its key, a foreign key, and the key with a passphrase."""
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    key = ("-newkey", "rsa:2048", "-nodes", "-days", "1", "-x509", "-subj", "/CN=localhost")
    openssl("req", *key, "-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem")
    openssl("req", *key, "-keyout", "foreign.pem", "-out", "foreign-cert.pem")
    openssl("rsa", "-aes256", "-passout", "pass:x", "-in", "key.pem", "-out", "encrypted.pem")
    return folder


def test_certificate_serves_https(served_engine: Engine, pems: Path) -> None:
    tls = Tls.of(pems / "cert.pem", pems / "key.pem")
    server = Server(served_engine, ServerSettings(MODEL), port=0, tls=tls)
    assert server.url.startswith("https://")
    server.start()
    trusting = ssl.create_default_context(cafile=str(pems / "cert.pem"))
    plain = socket.create_connection((server.host, server.port), timeout=30)
    assert _get(trusting.wrap_socket(plain, server_hostname="localhost"), "/v1/models") == 200
    server.stop()
    assert server.wait(10)


@pytest.mark.parametrize(
    ("certificate", "key", "says"),
    [
        ("gone.pem", "key.pem", "--ssl-certfile .*gone.pem cannot be read"),
        ("cert.pem", ".", "--ssl-keyfile .* cannot be read"),
        ("/dev/zero", "key.pem", "--ssl-certfile /dev/zero cannot be read"),
        ("key.pem", "key.pem", "--ssl-certfile .* is not usable"),
        ("cert.pem", "cert.pem", "--ssl-keyfile .* is not usable"),
        ("cert.pem", "foreign.pem", "does not belong to the certificate"),
        ("cert.pem", "encrypted.pem", "the key of --ssl-keyfile is encrypted"),
    ],
)
def test_bad_certificate_is_reported(pems: Path, certificate: str, key: str, says: str) -> None:
    with pytest.raises(EnvironmentProblem, match=says):
        Tls.of(pems / certificate, pems / key)


def test_certificate_and_key_come_together() -> None:
    assert Tls.of(None, None) is None
    for given, missing in (((Path("a"), None), "keyfile"), ((None, Path("a")), "certfile")):
        with pytest.raises(UsageError, match=f"--ssl-{missing} is missing"):
            Tls.of(*given)
