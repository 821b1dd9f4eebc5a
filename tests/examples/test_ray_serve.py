"""Replicas behind Ray Serve: one is killed under load, and every request is answered with the text it has alone."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from socket import create_server
from typing import Any

import pytest

from peagle.engines import Engine, SamplingParams

ROOT = Path(__file__).parents[2]
SECONDS = 300  # for Ray to start on a machine that has other things to do
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with Ray and this project, in an environment of its own, with what the lock pins."""
    folder = tmp_path_factory.mktemp("ray") / "environment"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    command = [
        folder / "bin" / "pip",
        "install",
        "-q",
        "-c",
        ROOT / "requirements.lock",
        "ray[serve]",
        f"{ROOT}[serve]",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"ray[serve] cannot be installed here: {done.stderr.strip()[-300:]}")
    return folder / "bin" / "python"


class Cluster:
    """A Ray of its own on this machine, and the example on it."""

    def __init__(self, python: Path, engine: Path, folder: Path) -> None:
        with create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._mark = f"RAY_TMPDIR={folder}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHONPATH"))}
        environment |= {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
        environment["RAY_raylet_start_wait_time_s"] = str(SECONDS)
        self._log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [python, ROOT / "examples" / "ray_serve.py", engine, "--port", str(self.port)],
            env=environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def log(self) -> str:
        """The end of what it said."""
        self._log.seek(0)
        return self._log.read()[-4000:]

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60):
                return
            time.sleep(1)
        raise AssertionError(self.log())

    def pids(self, name: str = "") -> list[int]:
        """Its processes, or those of that name."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (folder / "environ").read_bytes().split(b"\0")
                if self._mark.encode() in variables and name.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
        return found

    def stop(self) -> None:
        """End all of it."""
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._log.close()


@pytest.fixture(scope="module")
def cluster(python: Path, talking_engine: Path) -> Iterator[Cluster]:
    """Two replicas."""
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # the names of its sockets must be short
    cluster = Cluster(python, talking_engine, folder)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


def _ask(cluster: Cluster, path: str, body: dict[str, Any], begun: threading.Event | None = None) -> tuple[str, str]:
    """The whole text of an answer, and the replica that began it."""
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=SECONDS)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        replica = response.getheader("x-replica", "")
        assert response.status == 200, response.read()
        if not body.get("stream"):
            (choice,) = json.loads(response.read())["choices"]
            return choice["text"] if "text" in choice else choice["message"]["content"], replica
        texts, names = [], set()
        for line in iter(response.readline, b""):
            event = line.decode().strip().removeprefix("data: ")
            if begun is not None:
                begun.set()
            if event == "[DONE]":
                break
            if event:
                content = json.loads(event)
                assert "error" not in content, content
                names.add(content["id"])
                texts += [
                    each["text"] if "text" in each else each["delta"].get("content") for each in content["choices"]
                ]
        assert event == "[DONE]"
        assert len(names) == 1  # one stream, however many wrote it
        return "".join(text or "" for text in texts), replica
    finally:
        connection.close()


def test_common_prefix_prompts_go_to_one_replica(cluster: Cluster) -> None:
    begins = "".join(f"def name_{i}(x): return {i}\n" for i in range(12))
    alike = {_ask(cluster, "/v1/completions", {"prompt": f"{begins}# {i}", "max_tokens": 1})[1] for i in range(6)}
    assert len(alike) == 1
    apart = {_ask(cluster, "/v1/completions", {"prompt": f"{i} {begins}", "max_tokens": 1})[1] for i in range(16)}
    assert len(apart) == 2
    assert alike < apart


def test_a_replica_is_killed_under_load_and_every_request_is_answered(cluster: Cluster, talking_engine: Path) -> None:
    prompts = [f"def f{i}(x):\n" for i in range(12)]
    params = [SamplingParams(max_tokens=160, temperature=0.9, seed=i, ignore_eos=True) for i in range(12)]
    with Engine.load(talking_engine, max_batch_size=4, threads=1) as engine:
        alone = [output.text for output in engine.generate(prompts, params)]
    begun = [threading.Event() for _ in prompts]

    def ask(i: int) -> str:
        body: dict[str, Any] = {"max_tokens": 160, "temperature": 0.9, "seed": i, "ignore_eos": True}
        body["stream"] = i % 3 > 0  # of three requests a whole one, a stream, and a chat's stream
        if i % 3 == 2:
            body["messages"] = [{"role": "user", "content": prompts[i]}]
            return _ask(cluster, "/v1/chat/completions", body, begun[i])[0]
        return _ask(cluster, "/v1/completions", {**body, "prompt": prompts[i]}, begun[i])[0]

    before = cluster.pids("ServeReplica:default:Replica")
    assert len(before) == 2
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = [pool.submit(ask, i) for i in range(len(prompts))]
        while not any(event.wait(0.01) for event in begun):
            assert cluster.process.poll() is None, cluster.log()
        os.kill(before[0], signal.SIGKILL)
        assert not all(answer.done() for answer in answers)
        assert [answer.result() for answer in answers] == alone
    deadline = time.monotonic() + SECONDS
    while len(now := cluster.pids("ServeReplica:default:Replica")) < 2:  # Ray puts another in its place
        assert time.monotonic() < deadline, cluster.log()
        time.sleep(0.5)
    assert before[0] not in now


def test_replica_rejections_are_passed_on(cluster: Cluster) -> None:
    for body, says in (
        (b"nonsense", "no JSON"),
        (b'{"prompt": ""}', "empty"),
        (b'{"prompt": "a", "stream": true, "n": 99}', "n"),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=SECONDS)
        connection.request("POST", "/v1/completions", body)
        response = connection.getresponse()
        assert response.status == 400
        assert says in json.loads(response.read())["error"]["message"]
        connection.close()
