"""The README's steps from an engine to an answer; and detection of a model that died."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from triton_process import PATIENT, free_ports

from peagle.engines import Engine, SamplingParams
from tests.scenarios.test_docs import ROOT, blocks_of, prepare, shell_script
from tests.serving.triton.server_process import TritonProcess

pytestmark = pytest.mark.triton

CANARY = {"input_ids": [0], "max_tokens": 1}

# What the block types, with ports that are free here; `make` has been run by the fixture.
_AROUND = """
make() { test "$1" = triton-server; }
curl() { command curl "${@/localhost:8000/127.0.0.1:%d}"; }
"""


def test_readme_commands_produce_an_answer(triton_launcher: Path, talking_engine: Path, tmp_path: Path) -> None:
    (block,) = (
        each for each in blocks_of("README.md", (ROOT / "README.md").read_text()) if "tritonserver" in each.text
    )
    folder, (http, grpc, metrics) = prepare(tmp_path / "clone"), free_ports(3)
    shutil.copytree(talking_engine, folder / "demo-engine")
    (folder / "build" / "triton").mkdir(parents=True)
    server = folder / "build" / "triton" / "tritonserver"
    prefix = f"peagle_readme_{os.getpid()}_"
    more = ["--http-port", http, "--grpc-port", grpc, "--metrics-port", metrics, *PATIENT[:2]]
    more += ["--backend-config", f"python,shm-region-prefix-name={prefix}"]
    server.write_text(f'#!/bin/sh\nexec {triton_launcher} "$@" {" ".join(map(str, more))} >server.log 2>&1\n')
    server.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", _AROUND % http + shell_script(block) + "\nwait\n"],
        cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    log = (folder / "server.log").read_text()
    assert done.returncode in (0, 128 + signal.SIGTERM), f"{done.stdout}\n{done.stderr}\n{log[-2000:]}"
    events = [json.loads(line) for line in re.findall(r"^data: ?(.+)$", done.stdout, re.MULTILINE)]
    with Engine.load(folder / "demo-engine", threads=1) as engine:
        (wanted,) = engine.generate(["def gcd("], SamplingParams(max_tokens=32))
    assert "".join(event["text_output"] for event in events) == wanted.text
    assert len(events) > 1, "it came in one piece"
    assert events[-1]["finish_reason"] == wanted.finish_reason
    assert list(Path("/dev/shm").glob(f"{prefix}*")) == []


def test_a_request_notices_a_model_that_died_and_loading_mends_it(
    triton_launcher: Path, triton_repository: Path, tmp_path: Path
) -> None:
    (probe,) = (each for each in blocks_of("", (ROOT / "docs" / "triton.md").read_text()) if "--fail" in each.text)
    server = TritonProcess(triton_launcher, triton_repository, tmp_path / "log", "demo")
    command = probe.text.replace("localhost:8000/v2/models/demo-engine", f"127.0.0.1:{server.http}/v2/models/demo")

    def lives() -> bool:
        return subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0

    def kill_model() -> bool:
        """Kill the model's process; False if it held a lock of shared memory, which ends the server as well."""
        server.start()
        server.wait_until(lambda: server.get("/v2/health/ready").status == 200)
        assert lives()
        (stub,) = children(server.process.pid)
        os.kill(stub, signal.SIGKILL)
        assert not lives()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(2)
        return "interprocess::lock_exception" not in server.log()

    try:
        while not kill_model():
            server.kill()
        server.wait_until(lambda: "not healthy" in str(server.generate("demo", **CANARY).events))
        assert server.get("/v2/models/demo/ready").status == 200, "Triton notices by itself: the page says it does not"
        assert server.unload("demo").status == 200
        assert server.load("demo").status == 200
        assert lives()
    finally:
        server.kill()  # after such a death it does not end well by itself


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
