"""Downloads from a local Hub: fetched files, cached files, and the error for every failure."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants

from peagle.compiler.checkpoints import hub
from peagle.compiler.checkpoints.resolve_names import resolve, target_config
from peagle.compiler.console.progress import Advance
from peagle.plugins.errors import BuildError, EnvironmentProblem, PeagleError, UsageError
from tests.compiler.checkpoints.fake_hub import LARGE, FakeHub, Repo

OLD, NEW = "a" * 40, "b" * 40
SMALL = ("generation_config", "hf_quant_config", "special_tokens_map", "tokenizer", "tokenizer_config")
WANTED = {
    "config.json": b'{"architectures": ["Qwen3ForCausalLM"], "new": true}',
    **{f"{name}.json": f'{{"file": "{name}"}}'.encode() for name in SMALL},  # the cache stores equal files once
    "chat_template.jinja": b"{{ messages }}",
    "model-00001-of-00002.safetensors": b"w" * LARGE,
    "model-00002-of-00002.safetensors": b"v" * (2 * LARGE),
    "model.safetensors.index.json": b"{}",
}
UNWANTED = {
    "README.md": b"#",
    "pytorch_model.bin": b"pickle",
    "head.pt": b"pickle",
    "modeling.py": b"import os",
    "merges.txt": b"",
    "original/model.safetensors": b"o" * LARGE,
    "metal/model.bin": b"m",
    "original/config.json": b"{}",
}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A Hub with a few repositories, and an empty cache of this test's own."""
    files = {NEW: WANTED | UNWANTED, OLD: WANTED | {"config.json": b'{"new": false}'}}
    repos = {
        "owner/model": Repo(files, {"main": NEW, "v1": OLD}),
        "owner/gated": Repo({NEW: WANTED}, {"main": NEW}, gated=True),
        "owner/pickled": Repo({NEW: {"config.json": b"{}", "pytorch_model.bin": b"p"}}, {"main": NEW}),
    }
    with FakeHub(repos) as fake:
        monkeypatch.setattr(constants, "ENDPOINT", fake.endpoint)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", fake.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield fake


class Recorded:
    """Progress that records its calls."""

    def __init__(self) -> None:
        self.text, self.total, self.done = "", None, 0

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        self.text, self.total = text, total

        def advance(amount: int) -> None:
            self.done += amount

        yield advance


def refusal(kind: type[PeagleError], repo: str = "owner/model", revision: str | None = None) -> PeagleError:
    with pytest.raises(kind) as caught:
        hub.download(repo, revision)
    assert caught.value.why
    assert caught.value.fix
    return caught.value


def test_only_the_files_of_a_build_are_fetched_and_the_progress_counts_them(server: FakeHub) -> None:
    shown = Recorded()
    found = hub.download("owner/model", progress=shown)
    assert found.commit == NEW
    assert {path.name: path.read_bytes() for path in found.folder.iterdir()} == WANTED
    assert server.fetched() == sorted(WANTED)
    assert "owner/model" in shown.text
    assert shown.total == shown.done == sum(map(len, WANTED.values()))


def test_downloaded_files_are_found_offline(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = hub.download("owner/model")
    server.log.clear()
    assert hub.download("owner/model") == first
    assert server.fetched() == []
    server.log.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.download("owner/model") == first
    assert hub.download("owner/model", NEW) == first
    assert server.log == []


@pytest.mark.parametrize("revision", ["v1", OLD])
def test_a_revision_is_passed_on(server: FakeHub, revision: str) -> None:
    found = hub.download("owner/model", revision)
    assert found.commit == OLD
    assert json.loads((found.folder / "config.json").read_text()) == {"new": False}
    assert not any(NEW in line for line in server.log)


def test_broken_connection_resumes_download(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", LARGE // 10)
    server.breaks = ["drop"]
    found = hub.download("owner/model")
    assert {path.name: path.read_bytes() for path in found.folder.iterdir()} == WANTED
    (resumed,) = (line for line in server.log if line.startswith("RANGE"))
    assert resumed != "RANGE 0"


def test_failed_download_resumes_with_missing_files(server: FakeHub) -> None:
    server.breaks = ["refuse", "refuse"]
    assert "500" in refusal(EnvironmentProblem).why
    server.log.clear()
    shown = Recorded()
    hub.download("owner/model", progress=shown)
    weights = {name: content for name, content in WANTED.items() if len(content) >= LARGE}
    assert set(weights) <= set(server.fetched())
    assert len(server.fetched()) < len(WANTED)
    assert shown.total == shown.done >= sum(map(len, weights.values()))


def test_ids_and_revisions_that_do_not_exist_are_named(server: FakeHub) -> None:
    missing = refusal(UsageError, "owner/absent")
    assert "owner/absent" in missing.what
    assert "HF_TOKEN" in missing.fix
    assert "no revision v9" in refusal(UsageError, revision="v9").what
    assert "no revision " + "c" * 40 in refusal(UsageError, revision="c" * 40).what


def test_gated_model_error_explains_how_to_get_access(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = refusal(EnvironmentProblem, "owner/gated")
    assert "accept the license" in problem.fix
    assert f"{server.endpoint}/owner/gated" in problem.fix
    assert "HF_TOKEN" in problem.fix
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert hub.download("owner/gated").commit == NEW


def test_a_hub_that_cannot_be_reached_is_named(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    problem = refusal(EnvironmentProblem)
    assert endpoint in problem.what
    assert "ConnectError" in problem.why
    assert "HF_ENDPOINT" in problem.fix


def test_offline_error_names_missing_files(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    target_config("owner/model")  # the commit and its configuration are known, the weights are not here
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for repo in ("owner/model", "owner/gated"):
        problem = refusal(EnvironmentProblem, repo)
        assert f"{repo} is only partly in the cache" in problem.what
        assert "HF_HUB_OFFLINE" in problem.fix


def test_insufficient_disk_is_reported_before_download(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "free_bytes", lambda where: 10)
    problem = refusal(BuildError)
    assert "10 B are free" in problem.why
    assert "HF_HOME" in problem.fix
    assert server.fetched() == []


def test_full_disk_is_reported(server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("huggingface_hub.snapshot_download", full)
    assert "no space for owner/model" in refusal(BuildError).what


def test_pickled_weights_are_never_fetched(server: FakeHub) -> None:
    assert "no weights in safetensors" in refusal(BuildError, "owner/pickled").what
    assert server.fetched() == []


@pytest.mark.parametrize(
    "name",
    ["../model", "/owner/model", "owner/model/main", "own er/model", "owner/", "model", "o--o/m", "a/..", "é/m", ""],
)
def test_invalid_id_never_reaches_the_network(server: FakeHub, name: str) -> None:
    assert not hub.is_id(name)
    for call in (lambda: hub.download(name), lambda: resolve(name, "demo"), lambda: target_config(name)):
        with pytest.raises(UsageError):
            call()
    with pytest.raises(UsageError, match="not a branch"):
        hub.download("owner/model", f"{name} ../x")
    assert server.log == []


def test_a_pair_of_ids_becomes_two_folders(server: FakeHub) -> None:
    found = resolve("owner/model", "owner/model", "main", "v1")
    assert (found.target_commit, found.drafter_commit, found.pair) == (NEW, OLD, None)
    assert found.target.name == NEW
    assert found.drafter.name == OLD
    again = found.repeatable()
    assert again == {"model": "owner/model", "draft": "owner/model", "revision": NEW, "draft_revision": OLD}
    assert resolve(**again).repeatable() == again


def test_both_names_are_understood_before_anything_is_downloaded(server: FakeHub) -> None:
    with pytest.raises(UsageError, match="unknown"):
        resolve("owner/model", "no such thing")
    with pytest.raises(UsageError, match="needs a drafter"):
        resolve("owner/model")
    assert server.log == []


def test_the_configuration_is_read_without_weights(server: FakeHub) -> None:
    config, origin = target_config("owner/model", "v1")
    assert config == {"new": False}
    assert f"owner/model at commit {OLD}" in origin
    assert server.fetched() == ["config.json"]


def test_the_command_line_obeys_the_environment_and_shows_no_traceback(server: FakeHub, tmp_path: Path) -> None:
    """In a process of its own, as a user sets it up: HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE."""
    own = {"HF_ENDPOINT": server.endpoint, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": ""}
    build = [sys.executable, "-c", "from peagle.compiler.cli import main; main()", "build", "--json", "--quiet"]
    build += ["--model", "demo", "--draft", "owner/model", "--out", str(tmp_path / "out")]

    def run(**changes: str) -> dict[str, object]:
        environment = {**os.environ, **own, **changes}
        done = subprocess.run(build, env=environment, capture_output=True, text=True, check=False)
        error: dict[str, object] = json.loads(done.stderr)["error"]
        assert (done.stdout, done.returncode) == ("", error["exit_code"])
        return error

    offline = run(HF_HUB_OFFLINE="1")
    assert offline["type"] == "EnvironmentProblem"
    assert server.log == []
    assert "weight_map" in str(run()["what"])  # the program got as far as reading the download
    assert server.fetched() == sorted(WANTED)
