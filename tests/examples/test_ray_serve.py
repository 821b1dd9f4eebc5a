"""A Ray Serve deployment that is changed under load: every request gets the text that it has alone."""

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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from socket import create_server
from typing import Any, NamedTuple

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

    def __init__(self, python: Path, engine: Path, folder: Path, *flags: str) -> None:
        with create_server(("127.0.0.1", 0)) as free:
            self.port = int(free.getsockname()[1])
        self._mark = f"RAY_TMPDIR={folder}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHONPATH"))}
        environment |= {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        for limit in (
            "raylet_start_wait_time_s",
            "SERVE_PROXY_READY_CHECK_TIMEOUT_S",
            "SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S",
        ):
            environment[f"RAY_{limit}"] = str(SECONDS)
        self._environment = environment
        self._program = [str(python), str(ROOT / "examples" / "ray_serve.py")]
        self._log = (folder / "log").open("w+")
        self.process = subprocess.Popen(
            [*self._program, "serve", engine, "--port", str(self.port), *flags],
            env=environment, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Change the deployment, as its operator does in another terminal."""
        return subprocess.run(
            [*self._program, *words], env=self._environment, capture_output=True, text=True, check=False
        )

    def get(self, path: str) -> str:
        """A page of the front."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as response:
            return str(response.read().decode())

    def fleet(self) -> dict[str, Any]:
        """Return the status that the deployment reports."""
        fleet: dict[str, Any] = json.loads(self.get("/fleet"))
        return fleet

    def wait_for(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Wait until the deployment is so."""
        deadline = time.monotonic() + SECONDS
        while not condition(fleet := self.fleet()):
            assert time.monotonic() < deadline, (fleet, self.log())
            time.sleep(0.5)
        return fleet

    def log(self) -> str:
        """Return the end of its output."""
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


@contextmanager
def _running(python: Path, engine: Path, *flags: str) -> Iterator[Cluster]:
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # the names of its sockets must be short
    cluster = Cluster(python, engine, folder, *flags)
    try:
        cluster.wait()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def cluster(python: Path, talking_engine: Path) -> Iterator[Cluster]:
    """Two replicas."""
    with _running(python, talking_engine) as cluster:
        yield cluster


class Answer(NamedTuple):
    """The whole text of an answer, and the replica and the engine that began it."""

    text: str
    replica: str
    engine: str


def _ask(cluster: Cluster, path: str, body: dict[str, Any], begun: threading.Event | None = None) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=SECONDS)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        whence = response.getheader("x-replica", ""), response.getheader("x-engine", "")
        assert response.status == 200, response.read()
        if not body.get("stream"):
            (choice,) = json.loads(response.read())["choices"]
            return Answer(choice["text"] if "text" in choice else choice["message"]["content"], *whence)
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
        return Answer("".join(text or "" for text in texts), *whence)
    finally:
        connection.close()


def test_common_prefix_prompts_go_to_one_replica(cluster: Cluster) -> None:
    begins = "".join(f"def name_{i}(x): return {i}\n" for i in range(12))
    alike = {_ask(cluster, "/v1/completions", {"prompt": f"{begins}# {i}", "max_tokens": 1}).replica for i in range(6)}
    assert len(alike) == 1
    apart = {_ask(cluster, "/v1/completions", {"prompt": f"{i} {begins}", "max_tokens": 1}).replica for i in range(16)}
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
            return _ask(cluster, "/v1/chat/completions", body, begun[i]).text
        return _ask(cluster, "/v1/completions", {**body, "prompt": prompts[i]}, begun[i]).text

    before = cluster.pids("ServeReplica:engine:Replica")
    assert len(before) == 2
    with ThreadPoolExecutor(len(prompts)) as pool:
        answers = [pool.submit(ask, i) for i in range(len(prompts))]
        while not any(event.wait(0.01) for event in begun):
            assert cluster.process.poll() is None, cluster.log()
        os.kill(before[0], signal.SIGKILL)
        assert not all(answer.done() for answer in answers)
        assert [answer.result() for answer in answers] == alone
    deadline = time.monotonic() + SECONDS
    while len(now := cluster.pids("ServeReplica:engine:Replica")) < 2:  # Ray puts another in its place
        assert time.monotonic() < deadline, cluster.log()
        time.sleep(0.5)
    assert before[0] not in now


def test_replica_rejections_are_passed_on(cluster: Cluster) -> None:
    for body, says in (
        (b"nonsense", "not valid JSON"),
        (b'{"prompt": ""}', "empty"),
        (b'{"prompt": "a", "stream": true, "n": 99}', "n"),
    ):
        connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=SECONDS)
        connection.request("POST", "/v1/completions", body)
        response = connection.getresponse()
        assert response.status == 400
        assert says in json.loads(response.read())["error"]["message"]
        connection.close()


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/messages", {"messages": [{"role": "user", "content": "def f"}], "max_tokens": 4}, "message_stop"),
        ("/v1/responses", {"input": "def f", "max_output_tokens": 4}, "response.incomplete"),
    ],
)
def test_streams_of_other_apis_are_passed_on(cluster: Cluster, path: str, body: dict[str, Any], last: str) -> None:
    address = f"http://127.0.0.1:{cluster.port}{path}"
    asked = urllib.request.Request(
        address, json.dumps({**body, "stream": True}).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=SECONDS) as response:
        names = [line.decode().split()[1] for line in response if line.startswith(b"event: ")]
    assert names[-1] == last


def test_metrics_are_those_of_all_replicas(cluster: Cluster) -> None:
    replicas = {each["replica"] for each in cluster.wait_for(lambda fleet: len(fleet["replicas"]) == 2)["replicas"]}
    series = [line for line in cluster.get("/metrics").splitlines() if line.startswith("vllm:num_requests_running{")]
    assert {line.split('replica="')[1].split('"')[0] for line in series} == replicas


class Load:
    """Clients that send requests continuously, every second one a stream, until the end of the block.

    Prompts begin with ``name``. A prompt goes to the replica that had it before, so only new ones reach all replicas.
    """

    CLIENTS, PROMPTS, TOKENS = 3, 10, 64

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name, self._ends = cluster, name, threading.Event()
        self._pool = ThreadPoolExecutor(self.CLIENTS)
        self._clients = [self._pool.submit(self._client, i) for i in range(self.CLIENTS)]

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *error: object) -> None:
        self._ends.set()
        self._pool.shutdown()

    def _client(self, i: int) -> list[tuple[str, Answer]]:
        answers = []
        for turn in count():
            if self._ends.is_set():
                break
            prompt = f"def {self._name}_{i}_{turn % self.PROMPTS}(x):\n"
            body = {"prompt": prompt, "max_tokens": self.TOKENS, "temperature": 0.9, "seed": i, "ignore_eos": True}
            answers.append((prompt, _ask(self._cluster, "/v1/completions", body | {"stream": i % 2 == 0})))
        return answers

    @property
    def answers(self) -> list[tuple[str, Answer]]:
        """All answers, by prompt, once the clients have stopped. Raises what a client has met."""
        return [answer for client in self._clients for answer in client.result()]

    def alone(self, engine: Path) -> dict[str, str]:
        """The texts of the same prompts from an engine without Ray."""
        prompts = sorted({prompt for prompt, _ in self.answers})
        seeds = [int(prompt.removeprefix(f"def {self._name}_").partition("_")[0]) for prompt in prompts]
        params = [SamplingParams(max_tokens=self.TOKENS, temperature=0.9, seed=seed, ignore_eos=True) for seed in seeds]
        with Engine.load(engine, max_batch_size=4, threads=1) as loaded:
            outputs = loaded.generate(prompts, params)
        return {prompt: output.text for prompt, output in zip(prompts, outputs, strict=True)}


def test_an_engine_is_replaced_under_load_and_every_answer_is_of_one_engine(
    cluster: Cluster, talking_engine: Path, drafters_folder: Path
) -> None:
    first = cluster.fleet()["replicas"][0]["engine"]
    with Load(cluster, "replaced") as load:
        time.sleep(1)
        done = cluster.command("replace", str(drafters_folder))
        time.sleep(1)
    assert done.returncode == 0, done.stderr
    assert {answer.engine for _, answer in load.answers} > {first}
    old, new = load.alone(talking_engine), load.alone(drafters_folder)
    assert old != new  # rounded to other numbers, so a mixture would show
    for prompt, answer in load.answers:
        assert answer.text == (old if answer.engine == first else new)[prompt]
    (now,) = {each["engine"] for each in cluster.fleet()["replicas"]}
    assert now != first


def test_an_engine_that_cannot_be_loaded_leaves_the_old_one(
    cluster: Cluster, drafters_folder: Path, tmp_path: Path
) -> None:
    before = {each["engine"] for each in cluster.fleet()["replicas"]}
    damaged = Path(shutil.copytree(drafters_folder, tmp_path / "damaged"))
    (damaged / "target" / "model.onnx").write_bytes(b"")
    with Load(cluster, "kept") as load:
        done = cluster.command("replace", str(damaged))
    assert done.returncode == 1
    assert f"no replica could load {damaged}" in done.stderr
    assert "model.onnx" in done.stderr
    assert {answer.engine for _, answer in load.answers} == before
    cluster.wait_for(lambda fleet: len(fleet["replicas"]) == 2)


def test_a_canary_is_compared_promoted_and_rolled_back_and_no_text_changes(
    cluster: Cluster, drafters_folder: Path
) -> None:
    """The drafter ``noisy`` is accepted less often than the engine's own."""

    def used(*drafters: str) -> Callable[[dict[str, Any]], bool]:
        return lambda fleet: sorted(each["drafter"] for each in fleet["replicas"]) == sorted(drafters)

    assert cluster.command("replace", str(drafters_folder)).returncode == 0
    with Load(cluster, "tried") as load:
        assert cluster.command("canary", "noisy", "--share", "1/2").returncode == 0
        cluster.wait_for(used("built-in", "noisy"))
        built_in, noisy = cluster.wait_for(
            lambda fleet: len(fleet["drafters"]) == 2 and all(each["requests"] > 20 for each in fleet["drafters"])
        )["drafters"]
        assert cluster.command("rollback").returncode == 0
        cluster.wait_for(used("built-in", "built-in"))
        assert cluster.command("canary", "twin").returncode == 0
        assert cluster.command("promote").returncode == 0
        cluster.wait_for(used("twin", "twin"))
    assert (built_in["drafter"], noisy["drafter"]) == ("built-in", "noisy")
    assert built_in["acceptance_length"] > noisy["acceptance_length"] >= 1
    assert min(built_in["tokens_per_second"], noisy["tokens_per_second"]) > 0
    assert len(load.answers) > 40
    alone = load.alone(drafters_folder)
    assert [answer.text for _, answer in load.answers] == [alone[prompt] for prompt, _ in load.answers]


def test_commands_that_cannot_be_followed_say_why(cluster: Cluster) -> None:
    for words, why in (
        (["canary", "nonsense"], "the drafters of the engine are: built-in, "),
        (["canary", "noisy", "--share", "2"], "--share is 2"),
        (["promote"], "no canary runs"),
        (["replace", "/nothing"], "/nothing is not an engine folder"),
    ):
        done = cluster.command(*words)
        assert done.returncode == 1
        assert why in done.stderr


def test_slow_answers_and_a_queue_start_replicas_that_end_when_they_are_idle(
    python: Path, talking_engine: Path
) -> None:
    """The requests fit on one replica; no answer is as fast as required here, so each request gets a replica."""
    flags = "--min-replicas 1 --max-replicas 2 --upscale-delay 1 --downscale-delay 2 --tokens-per-second 1e6"
    with _running(python, talking_engine, *flags.split()) as cluster:
        assert len(cluster.fleet()["replicas"]) == 1
        with Load(cluster, "scaled") as load:
            cluster.wait_for(lambda fleet: len(fleet["replicas"]) == 2)
        cluster.wait_for(lambda fleet: len(fleet["replicas"]) == 1)
    alone = load.alone(talking_engine)
    assert [answer.text for _, answer in load.answers] == [alone[prompt] for prompt, _ in load.answers]
