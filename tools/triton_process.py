"""Run a Triton Inference Server on the loopback interface for the duration of a block, and clean up afterwards.

Starts the installation of `make triton-server` on a model repository, for the server's tests and benchmark.
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
from collections.abc import Callable, Mapping
from pathlib import Path

SECONDS = 60
SHARED = Path("/dev/shm")
# On a busy machine a Python process may need more than the default of 30 seconds.
PATIENT = ("--backend-config", "python,stub-timeout-seconds=120", "--disable-auto-complete-config")


class TritonServer:
    """Runs the server on a repository while the block lasts; models load on request.

    ``environment`` is added to that of this process. After the block, ``code`` is its exit status (None: it had to be
    killed) and ``left`` lists its leftover shared memory, which has been removed. Raises ``RuntimeError`` with the end
    of its log.
    """

    def __init__(
        self, launcher: Path, repository: Path, log: Path, *models: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log, self.prefix = log, f"peagle_{os.getpid()}_{id(self)}_"
        self.http, self.grpc, self.metrics_port = free_ports(3)
        self._command = [str(launcher), "--model-repository", str(repository), "--model-control-mode", "explicit"]
        for name, port in {"http": self.http, "grpc": self.grpc, "metrics": self.metrics_port}.items():
            self._command += [f"--{name}-address", "127.0.0.1", f"--{name}-port", str(port)]
        self._command += ["--allow-gpu-metrics", "false", "--exit-timeout-secs", "30"]
        self._command += ["--backend-config", f"python,shm-region-prefix-name={self.prefix}", *PATIENT]
        for model in models:
            self._command += ["--load-model", model]
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self.code: int | None = None
        self.left: list[str] = []

    def __enter__(self) -> TritonServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it is live."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, process_group=0,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        try:
            self.wait_until(lambda: self.is_there("/v2/health/live"))
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """Stop the server, by force after a minute."""
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
        """Return the log so far."""
        return self._log.read_text(errors="replace")

    def is_there(self, path: str) -> bool:
        """Return True if a ``GET`` of the HTTP port answers 200."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http}{path}", timeout=SECONDS) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()
            return False

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until ``holds`` returns True. Raises ``RuntimeError`` after a minute, or if the server dies."""
        end = time.monotonic() + SECONDS
        while True:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the condition was not met in time; the log ends with: {self.log()[-3000:]}")
            with contextlib.suppress(OSError):
                if holds():
                    return
            time.sleep(0.02)

    def kill(self) -> list[str]:
        """End the whole process group and remove its shared memory; return the names of what was removed."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        left = sorted(SHARED.glob(f"{self.prefix}*"))
        for path in left:
            path.unlink(missing_ok=True)
        return [path.name for path in left]


def free_ports(count: int) -> list[int]:
    """Return unused ports of this machine."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports
