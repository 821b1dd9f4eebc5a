"""``serve`` in a SageMaker container: the unpacked archive answers, and unsupported settings are refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from peagle.compiler.deploy.sagemaker_container import (
    CONTRACT,
    base_folder,
    check_additional_data,
    find_engine,
    options_of,
    unread,
)
from peagle.engines.folder.manifest import Manifest
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.fixtures.commands import Run

HEAD = Path(__file__).parents[3] / "compiler" / "bundled" / "demo" / "drafter"
FLAGS = ["--max-batch-size", "--port", "--api-key", "--log-prompts", "--speculative-config"]


@contextmanager
def _container(base: Path, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process as SageMaker starts it, with a folder for /opt/ml and a free port; and where it answers."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SM_", "SAGEMAKER_"))}
    environment |= {"SAGEMAKER_BASE_DIR": str(base), "SAGEMAKER_BIND_TO_PORT": "0", "SM_PEAGLE_THREADS": "1"}
    process = subprocess.Popen(
        [str(Path(sys.executable).with_name("peagle-compile")), "serve"],
        env=environment | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert " serves " in said, process.communicate()
        yield process, said.split()[0]
    finally:
        process.kill()
        process.communicate()


def _ask(url: str, path: str, body: object = None) -> tuple[int, str, bytes]:
    content = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}{path}", content), timeout=60) as response:
        return response.status, response.headers.get("content-type", ""), response.read()


def test_the_archive_is_served_as_sagemaker_does(cli: Run, talking_engine: Path, tmp_path: Path) -> None:
    engine = Path(shutil.copytree(talking_engine, tmp_path / "engine"))
    archive, base = tmp_path / "model.tar.gz", tmp_path / "ml"
    assert cli("sagemaker", engine, "--out", archive, "--quiet").code == 0
    with tarfile.open(archive) as tar:
        tar.extractall(base / "model")  # its filters came with Python 3.11.4
    additional = base / "additional-model-data-sources"
    shutil.copytree(HEAD, additional / "eagle")
    for path in (base / "model").rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    config = {"method": "eagle3", "model": str(additional / "eagle"), "num_speculative_tokens": 2}
    body = {"prompt": "def f(x):\n    return x\n\n\n" * 20, "max_tokens": 12, "temperature": 0}
    variables = {
        "SM_VLLM_SPECULATIVE_CONFIG": json.dumps(config),
        "SM_PEAGLE_SERVED_MODEL_NAME": "there",
        "SM_PEAGLE_PREFIX_CACHE_BYTES": str(64 << 20),
    }
    with _container(base, **variables) as (process, url):
        assert url.startswith("http://0.0.0.0:")
        assert _ask(url, "/ping")[::2] == (200, b"")
        status, _, content = _ask(url, "/invocations", body)
        answer = json.loads(content)
        assert status == 200
        assert answer["model"] == "there"
        speculation = answer["usage"]["speculation"]
        assert speculation["rounds"] < speculation["drafted_tokens"] <= 2 * speculation["rounds"]
        again = json.loads(_ask(url, "/invocations", body)[2])
        assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        assert again["choices"] == answer["choices"]
        status, kind, stream = _ask(url, "/invocations", {**body, "stream": True})
        assert status == 200
        assert kind.startswith("text/event-stream")
        events = [line.removeprefix("data: ") for line in stream.decode().splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        texts = [choice["text"] for event in events for choice in json.loads(event)["choices"]]
        assert len(texts) > 1
        assert "".join(texts) == answer["choices"][0]["text"]
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=30)
        assert process.returncode == 0, log
        assert "SM_VLLM_SPECULATIVE_CONFIG: ignored: model (the drafter is built into the engine)" in log


def test_the_engine_is_the_model_s_folder_or_the_only_one_in_it(demo_engine: Path, tmp_path: Path) -> None:
    assert base_folder({}) == Path("/opt/ml")
    with pytest.raises(UsageError, match="no ENGINE was given"):
        find_engine(tmp_path)
    model = tmp_path / "model"
    model.mkdir()
    (model / "weights.bin").touch()
    with pytest.raises(EnvironmentProblem, match=r"contains no engine(.|\n)*weights.bin"):
        find_engine(tmp_path)
    for name in ("first", "second"):
        (model / name).mkdir()
        shutil.copy(demo_engine / "engine.json", model / name)
        if name == "first":
            assert find_engine(tmp_path) == model / "first"
    with pytest.raises(EnvironmentProblem, match=r"several engines(.|\n)*first, second"):
        find_engine(tmp_path)
    shutil.copy(demo_engine / "engine.json", model)
    assert find_engine(tmp_path) == model


def test_variables_are_options() -> None:
    assert options_of({"SM_VLLM_PORT": "1", "HOME": "/", "SM_PEAGLE_PORT": ""}, FLAGS) == {}
    given = {"SM_PEAGLE_MAX_BATCH_SIZE": "8", "SM_PEAGLE_API_KEY": '["a", "b"]', "SM_PEAGLE_LOG_PROMPTS": "true"}
    assert {flag: value for flag, (_, value) in options_of(given, FLAGS).items()} == {
        "--max-batch-size": "8", "--api-key": ["a", "b"], "--log-prompts": "true",
    }  # fmt: skip
    config = '{"num_speculative_tokens": 3}'
    assert options_of({"SM_PEAGLE_SPECULATIVE_CONFIG": config}, FLAGS)["--speculative-config"][1] == config
    with pytest.raises(UsageError, match=r"SM_PEAGLE_BATCH sets --batch(.|\n)*--max-batch-size"):
        options_of({"SM_PEAGLE_BATCH": "3"}, FLAGS)
    assert unread({"SM_VLLM_MAX_MODEL_LEN": "1", "SM_VLLM_SPECULATIVE_CONFIG": "{}"}) == ["SM_VLLM_MAX_MODEL_LEN"]


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SM_PEAGLE_PORT", "x"),
        ("SM_PEAGLE_MAX_BATCH_SIZE", "0"),
        ("SM_PEAGLE_LOG_PROMPTS", "maybe"),
        ("SAGEMAKER_BIND_TO_PORT", "99999"),
        ("SM_PEAGLE_NO_SUCH", "1"),
    ],
)
def test_invalid_variable_is_named(
    cli: Run, demo_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    (tmp_path / "model").symlink_to(demo_engine)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.setenv(variable, value)
    done = cli("serve")
    assert done.code == 2
    assert f"error: {variable}" in done.err


def test_an_empty_key_does_not_leave_the_server_open(
    cli: Run, demo_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").symlink_to(demo_engine)
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.setenv("SM_PEAGLE_API_KEY", "")
    done = cli("serve")
    assert (done.code, "--api-key is empty" in done.err) == (2, True)


def test_the_contract_s_address_is_the_default() -> None:
    assert (CONTRACT["host"], CONTRACT["port"]) == ("0.0.0.0", "8080")
    assert float(CONTRACT["drain_timeout"]) < 30


def test_drafter_variable_that_differs_from_the_engine_is_rejected(demo_engine: Path, tmp_path: Path) -> None:
    manifest = Manifest.read(demo_engine)
    check_additional_data(tmp_path, manifest)
    channel = tmp_path / "additional-model-data-sources" / "eagle"
    channel.mkdir(parents=True)
    with pytest.raises(EnvironmentProblem, match=r"cannot be read(.|\n)*config.json"):
        check_additional_data(tmp_path, manifest)
    shutil.copytree(HEAD, channel, dirs_exist_ok=True)
    check_additional_data(tmp_path, manifest)
    weights = channel / "model.safetensors"
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(
        EnvironmentProblem, match=r"is not the drafter that the engine was built with(.|\n)*eagle|leave"
    ):
        check_additional_data(tmp_path, manifest)
    channel.rename(channel.with_name("adapter"))
    with pytest.raises(EnvironmentProblem, match="channel 'adapter'"):
        check_additional_data(tmp_path, manifest)


def test_a_drafter_for_an_engine_without_one_is_refused(demo_engine: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    (tmp_path / "additional-model-data-sources" / "eagle").mkdir(parents=True)
    with pytest.raises(EnvironmentProblem, match="built without a drafter"):
        check_additional_data(tmp_path, replace(Manifest.read(demo_engine), drafter=None))
