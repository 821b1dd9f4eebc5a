"""A Triton Inference Server that runs on this machine's loopback as long as a block lasts, and leaves nothing behind.

What `make triton-server` makes is started over a repository; the tests and the benchmark of the server do so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

SECONDS = 60
SHARED = Path("/dev/shm")
# On a busy machine a process of Python may take longer than the 30 seconds that it has by default.
PATIENT = ("--backend-config", "python,stub-timeout-seconds=120", "--disable-auto-complete-config")


class TritonServer:
    """Runs the server over a repository as long as the block lasts; models are loaded when they are asked for.

    ``code`` and ``left`` say after the block how it ended (None: it had to be killed) and what it had left in shared
    memory, which is gone by then. Raises ``RuntimeError`` with the end of its log.
    """

    def __init__(self, launcher: Path, repository: Path, log: Path, *models: str) -> None:
        self._log, self.prefix = log, f"peagle_{os.getpid()}_{id(self)}_"
        self.http, self.grpc, self.metrics_port = free_ports(3)
        self._command = [str(launcher), "--model-repository", str(repository), "--model-control-mode", "explicit"]
        for name, port in {"http": self.http, "grpc": self.grpc, "metrics": self.metrics_port}.items():
            self._command += [f"--{name}-address", "127.0.0.1", f"--{name}-port", str(port)]
        self._command += ["--allow-gpu-metrics", "false", "--exit-timeout-secs", "30"]
        self._command += ["--backend-config", f"python,shm-region-prefix-name={self.prefix}", *PATIENT]
        for model in models:
            self._command += ["--load-model", model]
        self._process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.left: list[str] = []

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and wait until it is alive."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0
            )
        try:
            self.wait_until(lambda: self.is_there("/v2/health/live"))
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Have it end, by force after a minute."""
        self.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.code = self.process.wait(SECONDS)
        self.left = self.kill()

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The server's own process, the first of its group."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def log(self) -> str:
        """What it wrote so far."""
        return self._log.read_text(errors="replace")

    def is_there(self, path: str) -> bool:
        """Whether a ``GET`` of the HTTP port is answered with 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=SECONDS) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that comes by itself. Raises ``RuntimeError`` after a minute, or when the server dies."""
        end = time.monotonic() + SECONDS
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"it did not come, and the server says: {self.log()[-3000:]}")
            with contextlib.suppress(OSError):
                if holds():
                    return
            time.sleep(0.02)

    def kill(self) -> list[str]:
        """End the whole group, and remove its shared memory; returns the names of what was there."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        left = sorted(SHARED.glob(f"{self.prefix}*"))
        for path in left:
            path.unlink(missing_ok=True)
        return [path.name for path in left]


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
