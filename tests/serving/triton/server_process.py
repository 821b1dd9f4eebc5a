"""A real Triton Inference Server, started on this machine's loopback and stopped so that nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS = 60
_SHARED = Path("/dev/shm")
_CRASHES = re.compile(r"Signal \((?!15)|terminate called|Non-graceful|not healthy")


@dataclass(frozen=True)
class Answer:
    """What came back: the status, and the JSON of the body, or of each event of a stream."""

    status: int
    events: list[dict[str, Any]]

    @property
    def text(self) -> str:
        """All text of an answer."""
        return "".join(event["text_output"] for event in self.events)


class TritonProcess:
    """Runs the server over a repository as long as the block lasts; models are loaded when they are asked for."""

    def __init__(self, launcher: Path, repository: Path, log: Path, *models: str) -> None:
        self._log, self.prefix = log, f"peagle_test_{os.getpid()}_{id(self)}_"
        self.http, self.grpc, self.metrics_port = _free_ports(3)
        addresses = {
            "http": self.http,
            "grpc": self.grpc,
            "metrics": self.metrics_port,
        }
        self._command = [str(launcher), "--model-repository", str(repository), "--model-control-mode", "explicit"]
        for name, port in addresses.items():
            self._command += [f"--{name}-address", "127.0.0.1", f"--{name}-port", str(port)]
        self._command += ["--allow-gpu-metrics", "false", "--exit-timeout-secs", "30"]
        self._command += ["--backend-config", f"python,shm-region-prefix-name={self.prefix}"]
        # On a busy machine a process of Python may take longer than the 30 seconds that it has by default.
        self._command += ["--backend-config", "python,stub-timeout-seconds=120", "--disable-auto-complete-config"]
        for model in models:
            self._command += ["--load-model", model]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TritonProcess:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        try:
            self.wait_until(lambda: self.get("/v2/health/live").status == 200)
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        process = self.process
        died = process.poll()
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            code = None
        left = self._kill()
        if kind is None:
            assert died is None, f"the server died: {self.log()[-3000:]}"
            assert code == 0, f"the server ended with {code}: {self.log()[-3000:]}"
            assert left == [], "it left shared memory"
            assert not _CRASHES.search(self.log()), self.log()[-3000:]

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server's own process, the first of its group."""
        assert self._process is not None
        return self._process

    def _kill(self) -> list[str]:
        """End the whole group, and remove its shared memory; returns the names of what was there."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        left = sorted(_SHARED.glob(f"{self.prefix}*"))
        for path in left:
            path.unlink(missing_ok=True)
        return [path.name for path in left]

    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(errors="replace")

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that comes by itself; fails after a minute, or when the server dies."""
        end = time.monotonic() + SECONDS
        while True:
            assert self.process.poll() is None, self.log()[-3000:]
            try:
                if holds():
                    return
            except OSError:
                pass
            assert time.monotonic() < end, self.log()[-3000:]
            time.sleep(0.02)

    def get(self, path: str) -> Answer:
        """``GET`` of the HTTP port."""
        return self._call(path, None)

    def post(self, path: str, body: Any) -> Answer:
        """``POST`` of a JSON body, or of bytes as they are."""
        return self._call(path, body if isinstance(body, bytes) else json.dumps(body).encode())

    def generate(self, model: str, **fields: Any) -> Answer:
        """An answer as a whole."""
        return self.post(f"/v2/models/{model}/generate", fields)

    def stream(self, model: str, **fields: Any) -> Answer:
        """An answer in pieces."""
        return self.post(f"/v2/models/{model}/generate_stream", {"stream": True, **fields})

    def events(self, model: str, **fields: Any) -> Iterator[dict[str, Any]]:
        """The pieces of an answer as they come; closing the iterator closes the connection."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.http}/v2/models/{model}/generate_stream",
            data=json.dumps({"stream": True, **fields}).encode(),
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as response:
            for line in response:
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])

    def load(self, model: str) -> Answer:
        """Ask for a model to be loaded, or loaded again."""
        return self.post(f"/v2/repository/models/{model}/load", {})

    def unload(self, model: str) -> Answer:
        """Ask for a model to be unloaded, and wait until it is."""
        answer = self.post(f"/v2/repository/models/{model}/unload", {})
        self.wait_until(lambda: self.get(f"/v2/models/{model}/ready").status != 200)
        return answer

    def metrics(self) -> dict[str, float]:
        """Every series by its name and labels, as the text has them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=SECONDS) as response:
            lines = response.read().decode().splitlines()
        return {name: float(value) for name, _, value in (x.rpartition(" ") for x in lines if not x.startswith("#"))}

    def counted(self, name: str, model: str, reason: str = "") -> float:
        """The value of a series of ours, 0 where there is none yet."""
        label = f'finished_reason="{reason}",' if reason else ""
        return self.metrics().get(f'vllm:{name}{{{label}model_name="{model}",version="1"}}', 0.0)

    def _call(self, path: str, data: bytes | None) -> Answer:
        request = urllib.request.Request(f"http://127.0.0.1:{self.http}{path}", data=data)
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as response:
                return Answer(response.status, _events(response.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _events(error.read()))


def _events(body: bytes) -> list[dict[str, Any]]:
    text = body.decode()
    pieces = re.findall(r"^data: ?(.*)$", text, re.MULTILINE) or [text] * bool(text.strip())
    return [json.loads(piece) for piece in pieces]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
