"""A local Hugging Face Hub: the part of its HTTP API that downloads use, over files in memory."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

LARGE = 1000  # from this size on, the storage backend of the Hub serves a file, under another host name


@dataclass
class Repo:
    """Files by path, one set per commit; branches and tags name commits."""

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    gated: bool = False


@dataclass
class FakeHub:
    """The server; ``log`` records the requests, ``breaks`` sets the storage's next answers."""

    repos: dict[str, Repo]
    log: list[str] = field(default_factory=list)
    breaks: list[str] = field(default_factory=list)

    def __enter__(self) -> FakeHub:
        hub = self

        class Handler(_Handler):
            served = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def fetched(self) -> list[str]:
        """Names of the files whose content was handed out, sorted."""
        return sorted(line.rpartition("/")[2] for line in self.log if re.match(r"GET /(?!api/)", line))


class _Handler(BaseHTTPRequestHandler):
    served: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.log.append(f"{self.command} {path}")
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
            self._info(found[1], found[2] or "main")
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            self._tree(found[1], found[2])
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self._file(found[1], found[2], found[3])
        elif found := re.fullmatch(r"/store/([^/]+/[^/]+)/([^/]+)/(.+)", path):
            self._store(self.served.repos[found[1]].commits[found[2]][found[3]])
        else:
            self._refuse(404, "EntryNotFound")

    def _commit(self, name: str, revision: str) -> str | None:
        repo = self.served.repos.get(name)
        if repo is None:
            self._refuse(404, "RepoNotFound")
            return None
        commit = repo.refs.get(revision, revision)
        if commit not in repo.commits:
            self._refuse(404, "RevisionNotFound")
            return None
        return commit

    def _info(self, name: str, revision: str) -> None:
        if commit := self._commit(name, revision):
            siblings = [{"rfilename": path} for path in self.served.repos[name].commits[commit]]
            self._json({"id": name, "modelId": name, "sha": commit, "private": False, "siblings": siblings, "tags": []})

    def _tree(self, name: str, revision: str) -> None:
        if commit := self._commit(name, revision):
            files = self.served.repos[name].commits[commit]
            entries: list[dict[str, Any]] = [
                {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for path, content in files.items()
            ]
            folders = {path.partition("/")[0] for path in files if "/" in path}
            entries += [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders]
            self._json(entries)

    def _file(self, name: str, revision: str, path: str) -> None:
        if not (commit := self._commit(name, revision)):
            return
        if self.served.repos[name].gated and not self.headers.get("Authorization"):
            self._refuse(401, "GatedRepo")
            return
        content = self.served.repos[name].commits[commit][path]
        etag = f'"{hashlib.sha256(content).hexdigest()}"'
        if len(content) < LARGE:
            self._send(200, content, {"ETag": etag, "X-Repo-Commit": commit})
            return
        store = f"http://localhost:{self.served.port}/store/{name}/{commit}/{path}"
        linked = {"X-Linked-Etag": etag, "X-Linked-Size": str(len(content)), "X-Repo-Commit": commit}
        self._send(302, b"", {"Location": store, **linked})

    def _store(self, content: bytes) -> None:
        failure = self.served.breaks.pop(0) if self.served.breaks else ""
        if failure == "refuse":
            self._send(500, b"", {})
            return
        first = 0
        if wanted := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")):
            first = int(wanted[1])
            self.served.log.append(f"RANGE {first}")
        headers = {"Content-Range": f"bytes {first}-{len(content) - 1}/{len(content)}"} if wanted else {}
        if failure == "drop":
            self.close_connection = True
            self._send(200, content, headers, sent=len(content) // 2)
            return
        self._send(206 if wanted else 200, content[first:], headers)

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"", {"X-Error-Code": code, "X-Error-Message": code})

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str], sent: int | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:sent])
