"""Soak test of ``peagle-compile serve``: clients of all kinds and faults of all kinds, and every answer is checked.

python -m tests.soak --seconds 120            with a demo engine, built into build/soak/engine
python -m tests.soak ENGINE --head HEAD       with another engine, and a head of its target that comes and goes

The right answers are those of the same engine in this process, without drafts and without other requests. The exit
code is 1 if an answer differs, a request fails that should not, the server's memory grows, or it does not end well.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.compiler.pipeline.engine_drafters import DrafterRequest, add_drafter, remove_drafter
from peagle.engines import Engine
from peagle.engines.folder.checks import DRAFTERS
from peagle.engines.folder.manifest import BUILT_IN
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from tests.fixtures.servers import serving
from tests.traffic import TEMPLATE, Answer, Asked, Client, answers_alone

KEY = "secret"
LATE = "late"  # the drafter that comes and goes
CLIENTS, AT_ONCE = 8, 3
MOST_GROWTH = 96 << 20  # bytes of the server's memory in the second half; caches and stored answers fill in the first
FULL_DISK = 64 << 10  # bytes of a file at which the child's disk is full; less than a drafter has


@dataclass
class Soak:
    """A run: what was done, by kind, how answers were drafted, and what was wrong. Memory in bytes."""

    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    drafts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: tuple[int, int, int] = (0, 0, 0)  # at the begin, after half of the time, at the end

    def lines(self) -> list[str]:
        """The report."""
        begin, half, end = (f"{size / 2**20:.0f} MiB" for size in self.memory)
        return [
            *(f"{count:8,}  {name}" for name, count in sorted(self.counts.items())),
            "answers by draft: " + ", ".join(f"{name} {count:,}" for name, count in sorted(self.drafts.items())),
            f"memory of the server: {begin} at the begin, {half} after half of the time, {end} at the end",
            *(f"WRONG: {each}" for each in self.wrong[:20]),
            f"{self.seconds:.0f} seconds, {self.counts.total():,} requests and faults, {len(self.wrong)} failures",
        ]


@dataclass
class Faults:
    """What is done to a server beside requests, until ``until``."""

    folder: Path
    head: str
    process: subprocess.Popen[str]
    address: tuple[str, int]
    until: float
    dice: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def run(self, *faults: Callable[[], None]) -> None:
        """Do these in turn, again and again."""
        while time.monotonic() < self.until:
            for fault in faults:
                if time.monotonic() < self.until:
                    try:
                        fault()
                    except Exception as error:
                        self.wrong.append(f"{fault.__name__}: {error!r}")
            time.sleep(self.dice.uniform(0.1, 1.0))

    def pause(self) -> None:
        """Stop the server as a whole, as a suspended machine does, and let it go on."""
        self.process.send_signal(signal.SIGSTOP)
        time.sleep(self.dice.uniform(0.1, 1.5))
        self.process.send_signal(signal.SIGCONT)
        self.counts["server stopped and continued"] += 1

    def nonsense(self) -> None:
        """Send bytes that are no request, and half of one."""
        whole = b'POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 90000\r\n\r\n{"prompt": "'
        for name, said in {
            "random bytes": self.dice.randbytes(300),
            "half a body": whole,
            "half a header": whole[:40],
            "a body that is no JSON": b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n{[}",
        }.items():
            with socket.create_connection(self.address, timeout=30) as line:
                line.sendall(said)
                line.settimeout(0.2)
                with suppress(OSError):  # it answers with an error, closes, or waits for the rest
                    line.recv(1000)
            self.counts[f"malformed: {name}"] += 1

    def drafter(self) -> None:
        """Add a drafter to the engine's folder, load it, let requests use it, unload and remove it."""
        add_drafter(DrafterRequest(self.folder, self.head, LATE))
        self._ask("POST", "/v1/drafters", {"name": LATE})
        time.sleep(self.dice.uniform(0.5, 3))
        self._ask("DELETE", f"/v1/drafters/{LATE}")
        remove_drafter(self.folder, LATE)
        self.counts["drafter added, loaded, unloaded and removed"] += 1

    def full_disk(self) -> None:
        """Add a drafter where no file can have its size: it fails with advice, and the engine stays as it was."""
        before = (self.folder / "engine.json").read_bytes()
        command = [sys.executable, "-m", "peagle", "drafter", "add", str(self.folder), "--draft", self.head]
        done = subprocess.run(
            [*command, "--name", "full"], preexec_fn=_small_files, capture_output=True, text=True, check=False
        )
        if done.returncode != 3 or "File too large" not in done.stderr:
            self.wrong.append(f"drafter add on a full disk: {done.returncode}: {done.stderr[-500:]}")
        if (self.folder / "engine.json").read_bytes() != before or (self.folder / DRAFTERS / "full").exists():
            self.wrong.append("a failed drafter add changed the engine")
        self.counts["drafter not added on a full disk"] += 1

    def _ask(self, method: str, path: str, body: Any = None) -> None:
        connection = http.client.HTTPConnection(*self.address, timeout=120)
        try:
            connection.request(method, path, json.dumps(body), {"Authorization": f"Bearer {KEY}"})
            response = connection.getresponse()
            if response.status != 200:
                self.wrong.append(f"{method} {path}: {response.status}: {response.read()!r}")
        finally:
            connection.close()


def _small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_DISK, FULL_DISK))


def right_answers(folder: Path) -> dict[Asked, Answer]:
    """The answers of the engine in this process, without drafts."""
    with Engine.load(folder, threads=1, draft="none", chat_template=TEMPLATE) as engine:
        server = Server(engine, ServerSettings("demo"), port=0)
        server.start()
        try:
            return answers_alone((server.host, server.port))
        finally:
            server.stop()
            server.wait(30)


def soak(
    folder: Path,
    seconds: float,
    *,
    head: str = "demo",
    seed: int = 0,
    alone: Mapping[Asked, Answer] | None = None,
    adds_drafters: bool = True,
) -> Soak:
    """Serve the engine for some seconds to clients and faults. ``alone``: the right answers, if they are known.

    The engine is changed and restored if ``adds_drafters``, so it should be a copy.
    """
    alone = right_answers(folder) if alone is None else alone
    done = Soak(seconds)
    with tempfile.TemporaryDirectory() as place:
        template = Path(place, "template.jinja")
        template.write_text(TEMPLATE)
        flags = ("--max-batch-size", str(AT_ONCE), "--api-key", KEY, "--chat-template", str(template))
        with serving(folder, *flags, "--prefix-cache-bytes", str(4 << 20)) as (process, url):
            log: list[str] = []
            reader = threading.Thread(target=lambda: log.append(process.stderr.read() if process.stderr else ""))
            reader.start()
            host, port = url.removeprefix("http://").split(":")
            _disturb(done, process, (host, int(port)), folder, head, seed, alone, adds_drafters=adds_drafters)
            process.send_signal(signal.SIGTERM)
            if (code := process.wait(60)) != 0:
                done.wrong.append(f"the server ended with {code}")
            reader.join()
            if "Traceback" in log[0]:
                done.wrong.append(f"the server's log has a traceback: {log[0][-2000:]}")
    return done


def _disturb(
    done: Soak,
    process: subprocess.Popen[str],
    address: tuple[str, int],
    folder: Path,
    head: str,
    seed: int,
    alone: Mapping[Asked, Answer],
    *,
    adds_drafters: bool,
) -> None:
    begin, until = _memory(process), time.monotonic() + done.seconds
    clients = [
        Client(address, alone, seed * 100 + at, until, KEY, _any_drafts if adds_drafters else _own_drafts)
        for at in range(CLIENTS)
    ]
    faults = [Faults(folder, head, process, address, until, random.Random(seed + at)) for at in (1, 2)]
    threads = [threading.Thread(target=client.run) for client in clients]
    threads.append(threading.Thread(target=faults[0].run, args=(faults[0].pause, faults[0].nonsense)))
    if adds_drafters:
        threads.append(threading.Thread(target=faults[1].run, args=(faults[1].drafter, faults[1].full_disk)))
    for thread in threads:
        thread.start()
    time.sleep(done.seconds / 2)
    half = _memory(process)
    for thread in threads:
        thread.join()
    done.memory = begin, half, _memory(process)
    for client in clients:
        done.counts += client.counts
        done.drafts += client.drafted
        done.wrong += client.wrong
    for each in faults:
        done.counts += each.counts
        done.wrong += each.wrong
    if (growth := done.memory[2] - half) > MOST_GROWTH:
        done.wrong.append(f"memory grew by {growth >> 20} MiB in the second half")
    if not any(client.finished for client in clients):
        done.wrong.append("nobody got an answer")
    again = answers_alone(address, KEY, [*alone])  # every slot still serves
    done.wrong += [f"after all, {asked}" for asked, answer in again.items() if answer[:2] != alone[asked][:2]]


def _own_drafts(dice: random.Random) -> tuple[dict[str, Any], bool]:
    return {"num_speculative_tokens": dice.choice((None, "auto", 0, 2, 4))}, False


def _any_drafts(dice: random.Random) -> tuple[dict[str, Any], bool]:
    """Fields that choose a drafter or a method, and whether it may be gone."""
    draft = dice.choice((None, BUILT_IN, "ngram", "none", LATE, LATE))
    k = None if draft in ("none", LATE) else dice.choice((None, "auto", 2, 4))
    return {"draft": draft, "num_speculative_tokens": k}, draft == LATE


def _memory(process: subprocess.Popen[str]) -> int:
    """Bytes of a process that are in memory."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmRSS"))


def main() -> int:
    """Run it from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", nargs="?", type=Path, help="engine folder, which is copied (default: a demo engine)")
    parser.add_argument("--head", default="demo", help="head to add and remove")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    work = Path("build/soak")
    engine = options.engine or work / "engine"
    if not engine.exists():
        from peagle import build

        build("demo", lowering="cpu", precision="int8", num_speculative_tokens=4, out=engine)
    with tempfile.TemporaryDirectory() as place:
        done = soak(
            Path(shutil.copytree(engine, Path(place, "engine"))),
            options.seconds,
            head=options.head,
            seed=options.seed,
        )
    print("\n".join(done.lines()))
    return 1 if done.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
