"""Soak test of ``peagle-compile serve`` and Triton: clients and faults of all kinds; every answer is checked.

make soak ARGS="--seconds 120"            with a demo engine, built into build/soak/engine
make soak ARGS="ENGINE --head HEAD"       with another engine, and a head of its target that comes and goes

The right answers are those of the same engine in this process, without drafts and without other requests. The exit
code is 1 if an answer differs, a request fails that should not, a server's memory grows, its metrics tell impossible
times, or it does not end well. Where Triton's server cannot run, or with ``--without-triton``, only `serve` is tested.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peagle.engines import Engine
from peagle.engines.folder.manifest import BUILT_IN
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from tests.faults import LATE, Disturbance, DrafterChanges, Faults, Jumps, ModelChanges, write_model
from tests.fixtures.servers import serving
from tests.serving.triton.server_process import TritonProcess, installed
from tests.traffic import TEMPLATE, Answer, Asked, Client, answers_alone
from tests.triton_traffic import LATE_MODEL, MODEL, OF_TRITON, WHOLE, TritonClient, triton_answers
from tests.wall_clock import ONLY, WallClock

KEY = "secret"
CLIENTS, AT_ONCE = 8, 3
TRITON_CLIENTS = 4
MAX_GROWTH = 96 << 20  # bytes of a server's memory in the second half; caches and stored answers fill in the first
MAX_SECONDS = 120  # of one request, however busy the machine is
_SECONDS = re.compile(r"^(\S*seconds_(?:sum|total)\S*) (\S+)$", re.MULTILINE)  # of one series


@dataclass
class Soak:
    """A run: what was done, by server and kind, how answers were drafted, and what was wrong."""

    seconds: float
    counts: Counter[str] = field(default_factory=Counter)
    drafts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: dict[str, tuple[int, int, int]] = field(default_factory=dict)  # bytes at the begin, in mid-time, at the end

    def lines(self) -> list[str]:
        """The report."""
        begin, half, end = "at the begin", "after half of the time", "at the end"
        return [
            *(f"{count:8,}  {name}" for name, count in sorted(self.counts.items())),
            "answers by draft: " + ", ".join(f"{name} {count:,}" for name, count in sorted(self.drafts.items())),
            *(
                f"memory of {name}: "
                + ", ".join(f"{size >> 20} MiB {when}" for size, when in zip(sizes, (begin, half, end), strict=True))
                for name, sizes in self.memory.items()
            ),
            *(f"WRONG: {each}" for each in self.wrong[:20]),
            f"{self.seconds:.0f} seconds, {self.counts.total():,} requests and faults, {len(self.wrong)} failures",
        ]


@dataclass
class Subject:
    """A server, who asks it, what is done to it, and what it can be asked about itself."""

    name: str
    clients: list[Client]
    faults: list[Faults]
    memory: Callable[[], int]
    metrics: Callable[[], str]
    answers: Callable[[], Mapping[Asked, Answer]]  # of every kind, after all


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
    triton: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Soak:
    """Serve the engine for some seconds to clients and faults. ``alone``: the right answers, if they are known.

    ``triton`` is the launcher of its server, if that is tested too. The engine is changed and restored if
    ``adds_drafters``, so it should be a copy. ``environment`` is added to that of the servers.
    """
    alone = right_answers(folder) if alone is None else alone
    done = Soak(seconds)
    with tempfile.TemporaryDirectory() as place, ExitStack() as servers:
        clock = WallClock(Path(place))
        seen = {**clock.environment, **(environment or {})}
        found = [
            servers.enter_context(_serve(done, folder, Path(place), alone, seed, seen, head if adds_drafters else ""))
        ]
        if triton:
            found.append(servers.enter_context(_triton(done, triton, folder, Path(place), alone, seed, seen)))
        if clock.processes() < len(found):
            done.wrong.append("a server does not see the clock that jumps")
        _disturb(done, found, Jumps(seed, clock=clock), alone)
    return done


@contextmanager
def _serve(
    done: Soak,
    folder: Path,
    place: Path,
    alone: Mapping[Asked, Answer],
    seed: int,
    environment: Mapping[str, str],
    head: str,
) -> Iterator[Subject]:
    template = place / "template.jinja"
    template.write_text(TEMPLATE)
    flags = ("--max-batch-size", str(AT_ONCE), "--api-key", KEY, "--chat-template", str(template))
    with serving(folder, *flags, "--prefix-cache-bytes", str(4 << 20), environment=environment) as (process, url):
        log: list[str] = []
        reader = threading.Thread(target=lambda: log.append(process.stderr.read() if process.stderr else ""))
        reader.start()
        host, port = url.removeprefix("http://").split(":")
        address = host, int(port)
        drafts = _any_drafts if head else _own_drafts
        clients = [Client(address, alone, seed * 100 + at, 0, KEY, drafts) for at in range(CLIENTS)]
        faults: list[Faults] = [Disturbance(seed + 1, address=address, path="/v1/completions", process=process)]
        if head:
            faults.append(DrafterChanges(seed + 2, folder=folder, head=head, address=address, key=KEY))
        yield Subject(
            "serve",
            clients,
            faults,
            memory=lambda: _memory(process),
            metrics=lambda: _text(f"{url}/metrics", {"Authorization": f"Bearer {KEY}"}),
            answers=lambda: answers_alone(address, KEY, [*alone]),
        )
        process.send_signal(signal.SIGTERM)
        try:
            if (code := process.wait(60)) != 0:
                done.wrong.append(f"serve: it ended with {code}")
        except subprocess.TimeoutExpired:
            done.wrong.append("serve: it does not end")
            process.kill()
        reader.join()
        if "Traceback" in log[0]:
            done.wrong.append(f"serve: its log has a traceback: {log[0][-2000:]}")


@contextmanager
def _triton(
    done: Soak,
    launcher: Path,
    folder: Path,
    place: Path,
    alone: Mapping[Asked, Answer],
    seed: int,
    environment: Mapping[str, str],
) -> Iterator[Subject]:
    engine, repository = Path(shutil.copytree(folder, place / "of-triton")), place / "models"
    (engine / "chat_template.jinja").write_text(TEMPLATE)
    write_model(engine, repository, MODEL, AT_ONCE)
    write_model(engine, repository, LATE_MODEL, 1)
    alone = {asked: answer for asked, answer in alone.items() if asked[0] in OF_TRITON}
    environment = {**environment, ONLY: "triton_python_backend_stub"}  # the processes of the models
    server = TritonProcess(launcher, repository, place / "triton.log", MODEL, WHOLE, environment=environment)
    try:
        with server:
            server.wait_until(lambda: server.get("/v2/health/ready").status == 200)
            address = "127.0.0.1", server.http
            yield Subject(
                "triton",
                [TritonClient(address, alone, seed * 100 + at, 0) for at in range(TRITON_CLIENTS)],
                [
                    Disturbance(seed + 3, address=address, path=f"/v2/models/{MODEL}/generate"),
                    ModelChanges(seed + 4, server=server, engine=engine, repository=repository),
                ],
                memory=server.memory,
                metrics=lambda: _text(f"http://127.0.0.1:{server.metrics_port}/metrics", {}),
                answers=lambda: triton_answers(address, [*alone]),
            )
    except AssertionError as error:
        done.wrong.append(f"triton: {error}")


def _disturb(done: Soak, subjects: list[Subject], jumps: Faults, alone: Mapping[Asked, Answer]) -> None:

    def memory() -> dict[str, int]:
        return {each.name: _memory_or_wrong(each, done) for each in subjects}

    begin = memory()
    began = time.monotonic()
    everybody: list[tuple[str, Client | Faults]] = [("all", jumps)]
    everybody += [(each.name, one) for each in subjects for one in (*each.clients, *each.faults)]
    threads = [
        threading.Thread(target=one.run, name=f"{name}: {type(one).__name__}", daemon=True) for name, one in everybody
    ]
    for _, one in everybody:
        one.until = began + done.seconds
    for thread in threads:
        thread.start()
    time.sleep(done.seconds / 2)
    half = memory()
    last = began + done.seconds + 2 * MAX_SECONDS
    for thread in threads:
        thread.join(max(0, last - time.monotonic()))
    done.wrong += [f"{thread.name} does not end" for thread in threads if thread.is_alive()]
    for name, one in everybody:
        done.counts.update({f"{name}: {what}": count for what, count in one.counts.items()})
        done.wrong += [f"{name}: {each}" for each in one.wrong]
    for each in subjects:
        for client in each.clients:
            done.drafts += client.drafted
        try:
            done.wrong += [f"{each.name}: {what}" for what in _wrong_after_all(each, alone, time.monotonic() - began)]
        except Exception as error:
            done.wrong.append(f"{each.name}: after all, {error!r}")
    for name, size in memory().items():
        done.memory[name] = begin[name], half[name], size
        if (growth := size - half[name]) > MAX_GROWTH:
            done.wrong.append(f"{name}: memory grew by {growth >> 20} MiB in the second half")


def _memory_or_wrong(subject: Subject, done: Soak) -> int:
    """Return the bytes of a server; 0 if it has died, which is wrong."""
    try:
        return subject.memory()
    except (OSError, LookupError, StopIteration) as error:
        wrong = f"{subject.name}: its memory cannot be read, so it has died: {error!r}"
        done.wrong += [wrong] if wrong not in done.wrong else []
        return 0


def _wrong_after_all(subject: Subject, alone: Mapping[Asked, Answer], seconds: float) -> list[str]:
    found = [] if any(client.finished for client in subject.clients) else ["nobody got an answer"]
    again = subject.answers()  # every slot still serves
    found += [f"after all, {asked}" for asked, answer in again.items() if answer[:2] != alone[asked][:2]]
    most = (len(subject.clients) + 1) * (seconds + MAX_SECONDS)  # all requests together, a jump of the clock is more
    times = [(name, float(value)) for name, value in _SECONDS.findall(subject.metrics())]
    found += [f"after {seconds:.0f} seconds, {name} is {value}" for name, value in times if not 0 <= value <= most]
    return found if times else [*found, "its metrics tell no times"]


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


def _text(url: str, headers: Mapping[str, str]) -> str:
    with urllib.request.urlopen(urllib.request.Request(url, headers=dict(headers)), timeout=60) as response:
        return str(response.read().decode())


def main() -> int:
    """Run it from the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", nargs="?", type=Path, help="engine folder, which is copied (default: a demo engine)")
    parser.add_argument("--head", default="demo", help="head to add and remove")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-triton", action="store_true")
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
            triton=None if options.without_triton else triton_launcher(),
        )
    print("\n".join(done.lines()))
    return 1 if done.wrong else 0


def triton_launcher() -> Path | None:
    """The launcher of Triton's server, which is installed where it is missing; None, and why, where it cannot be."""
    from tools import triton_server

    if reason := triton_server.missing():
        print(f"Triton is not tested: {reason}")
        return None
    return installed()


if __name__ == "__main__":
    sys.exit(main())
