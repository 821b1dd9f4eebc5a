"""Faults of all kinds that are injected into a server during requests."""

from __future__ import annotations

import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.compiler.console.progress import Quiet
from peagle.compiler.deploy.triton.options import RepositoryOptions
from peagle.compiler.deploy.triton.repository import write_repository
from peagle.compiler.pipeline.engine_drafters import DrafterRequest, add_drafter, remove_drafter
from peagle.engines.folder.checks import DRAFTERS
from tests.serving.triton.server_process import TritonProcess
from tests.triton_traffic import LATE_MODEL, MODEL
from tests.wall_clock import HOUR, WallClock

LATE = "late"  # the drafter that comes and goes
FULL_DISK = 64 << 10  # bytes of a file at which the child's disk is full; less than a drafter has
_SMALL_FILES = f"""
import resource, runpy
resource.setrlimit(resource.RLIMIT_FSIZE, ({FULL_DISK}, {FULL_DISK}))
runpy.run_module("peagle", run_name="__main__", alter_sys=True)
"""


@dataclass
class Faults:
    """Inject faults into one or all servers until ``until``."""

    seed: int
    until: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)

    def each(self) -> list[Callable[[], None]]:
        """The faults that are done in turn."""
        raise NotImplementedError

    def run(self) -> None:
        """Do these in turn, again and again."""
        while time.monotonic() < self.until:
            for fault in self.each():
                if time.monotonic() < self.until:
                    try:
                        fault()
                    except Exception as error:
                        self.wrong.append(f"{fault.__name__}: {error!r}")
            time.sleep(self.dice.uniform(0.1, 1.0))


@dataclass
class Jumps(Faults):
    """The time of day jumps by an hour or two; all other clocks continue."""

    clock: WallClock = field(kw_only=True)
    _moved: int = 0

    def each(self) -> list[Callable[[], None]]:
        """The faults that are done in turn."""
        return [self.jump]

    def jump(self) -> None:
        """Move the time of day."""
        self._moved = self.dice.choice([each for each in (-HOUR, 0, HOUR) if each != self._moved])
        self.clock.move(self._moved)
        self.counts["time of day moved by an hour or two"] += 1


@dataclass
class Disturbance(Faults):
    """The faults that a server must withstand. ``process`` is None if it must not be stopped."""

    address: tuple[str, int] = field(kw_only=True)
    path: str = field(kw_only=True)  # where requests go
    process: subprocess.Popen[str] | None = field(kw_only=True, default=None)

    def each(self) -> list[Callable[[], None]]:
        """The faults that are done in turn."""
        return [self.pause, self.nonsense] if self.process else [self.nonsense]

    def pause(self) -> None:
        """Stop the server as a whole, as a suspended machine does, and let it go on."""
        assert self.process
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.1, 1.5))
        self.process.send_signal(signal.SIGCONT)
        self.counts["server stopped and continued"] += 1

    def nonsense(self) -> None:
        """Send bytes that are not a request, and half a request."""
        head = f"POST {self.path} HTTP/1.1\r\nhost: a\r\ncontent-length: ".encode()
        for name, said in {
            "random bytes": self.dice.randbytes(300),
            "half a body": head + b'90000\r\n\r\n{"prompt": "',
            "half a header": head[:40],
            "a body that is no JSON": head + b"3\r\n\r\n{[}",
        }.items():
            with socket.create_connection(self.address, timeout=30) as line:
                line.sendall(said)
                line.settimeout(0.2)
                with suppress(OSError):  # it answers with an error, closes, or waits for the rest
                    line.recv(1000)
            self.counts[f"malformed: {name}"] += 1


@dataclass
class DrafterChanges(Faults):
    """Load and unload a drafter of `serve`, sometimes without room for it."""

    folder: Path = field(kw_only=True)
    head: str = field(kw_only=True)
    address: tuple[str, int] = field(kw_only=True)
    key: str = field(kw_only=True)

    def each(self) -> list[Callable[[], None]]:
        """The faults that are done in turn."""
        return [self.drafter, self.full_disk]

    def drafter(self) -> None:
        """Add a drafter to the engine's folder, load it, let requests use it, unload and remove it."""
        add_drafter(DrafterRequest(self.folder, self.head, LATE))
        self._ask("POST", "/v1/drafters", {"name": LATE})
        time.sleep(self.dice.uniform(0.5, 3))
        self._ask("DELETE", f"/v1/drafters/{LATE}")
        remove_drafter(self.folder, LATE)
        self.counts["drafter added, loaded, unloaded and removed"] += 1

    def full_disk(self) -> None:
        """Add a drafter where the disk is too small: it fails with advice, and the engine is unchanged."""
        before = (self.folder / "engine.json").read_bytes()
        command = ["drafter", "add", str(self.folder), "--draft", self.head, "--name", "full"]
        done = subprocess.run(
            [sys.executable, "-c", _SMALL_FILES, *command], capture_output=True, text=True, check=False
        )
        if done.returncode != 3 or "File too large" not in done.stderr:
            self.wrong.append(f"drafter add on a full disk: {done.returncode}: {done.stderr[-500:]}")
        if (self.folder / "engine.json").read_bytes() != before or (self.folder / DRAFTERS / "full").exists():
            self.wrong.append("a failed drafter add changed the engine")
        self.counts["drafter not added on a full disk"] += 1

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        try:
            connection.request(method, path, json.dumps(body), {"Authorization": f"Bearer {self.key}"})
            response = connection.getresponse()
            if response.status != 200:
                self.wrong.append(f"{method} {path}: {response.status}: {response.read()!r}")
        finally:
            connection.close()


@dataclass
class ModelChanges(Faults):
    """Models of Triton are replaced while they answer, and unloaded and loaded."""

    server: TritonProcess = field(kw_only=True)
    engine: Path = field(kw_only=True)
    repository: Path = field(kw_only=True)

    def each(self) -> list[Callable[[], None]]:
        """The faults that are done in turn."""
        return [self.reload, self.come_and_go]

    def reload(self) -> None:
        """Replace the model by one with another number of slots: no request may notice."""
        write_model(self.engine, self.repository, MODEL, self.dice.choice((1, 2, 4)))
        self.server.load_over_grpc(MODEL)
        self.counts["model replaced while it answers"] += 1

    def come_and_go(self) -> None:
        """Load the late model, let requests use it, and unload it."""
        self.server.load_over_grpc(LATE_MODEL)
        time.sleep(self.dice.uniform(0.5, 3))
        self.server.unload(LATE_MODEL)
        self.counts["model loaded and unloaded"] += 1


def write_model(engine: Path, repository: Path, name: str, at_once: int) -> None:
    """Write the models of an engine, or replace them."""
    options = RepositoryOptions(name, "link", max_batch_size=at_once, threads=1)
    write_repository(engine, repository, options, Quiet(), force=False)
