"""Links in a checkpoint: none copies an outside file into an engine, and the usual ones keep working."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.side_files import NAMED_TEMPLATES
from peagle.compiler.store.publish import Assembly
from peagle.engines.text import template_files
from peagle.plugins.errors import BuildError
from tests.fixtures.commands import Run
from tests.models import Pair

SECRET = "-----BEGIN PRIVATE KEY-----"
NAMES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json",
    "chat_template.jinja", "chat_template.json", "additional_chat_templates/tools.jinja", "LICENSE",
)  # fmt: skip


def test_template_folder_is_the_one_that_is_read() -> None:
    assert NAMED_TEMPLATES == template_files.NAMED


def swap_for_link(path: Path, to: Path) -> None:
    """Make a file be a link to its own content elsewhere."""
    to.parent.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(exist_ok=True)
    if path.exists():
        path.rename(to)
    else:
        to.write_text("{}")
    path.symlink_to(to)


@pytest.mark.parametrize("name", NAMES)
def test_side_file_outside_the_folder_is_rejected_by_name(pair: Pair, tmp_path: Path, name: str) -> None:
    swap_for_link(pair.target / name, tmp_path / "elsewhere" / "file")
    with pytest.raises(BuildError) as caught:
        Checkpoint.open(pair.target)
    assert name in caught.value.what
    assert str(tmp_path / "elsewhere" / "file") in caught.value.what
    assert "copies this file" in caught.value.why
    assert "replace the link with a copy of it" in caught.value.fix


def test_several_bad_side_files_are_reported_together(pair: Pair, tmp_path: Path) -> None:
    for name in NAMES[:3]:
        swap_for_link(pair.target / name, tmp_path / "elsewhere" / name)
    with pytest.raises(BuildError) as caught:
        Checkpoint.open(pair.target)
    assert "3 problems" in caught.value.what
    assert all(name in caught.value.what for name in NAMES[:3])


@pytest.mark.parametrize("name", ["chat_template.jinja", "special_tokens_map.json"])
@pytest.mark.parametrize("verb", ["build", "quantize"])
def test_user_files_never_leak_into_output(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Run, name: str, verb: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text(SECRET if name.endswith("jinja") else json.dumps({"key": SECRET}))
    (pair.target / name).symlink_to(secret)
    out = tmp_path / "out"
    head = ["--draft", pair.head, "--num-speculative-tokens", 2] if verb == "build" else []
    done = cli(verb, "--model", pair.target, *head, "--out", out)
    assert done.code == 5
    assert name in done.err
    assert SECRET not in done.err
    assert not out.exists()


def test_a_head_is_looked_at_too(pair: Pair, tmp_path: Path, cli: Run) -> None:
    swap_for_link(pair.head / "config.json", tmp_path / "elsewhere" / "config.json")
    done = cli("build", "--model", pair.target, "--draft", pair.head, "--out", tmp_path / "out")
    assert done.code == 5
    assert "config.json" in done.err


def test_link_inside_the_folder_is_followed(pair: Pair) -> None:
    (pair.target / "files").mkdir()
    swap_for_link(pair.target / "config.json", pair.target / "files" / "config.json")
    (pair.target / "generation_config.json").unlink(missing_ok=True)
    (pair.target / "generation_config.json").symlink_to("files/config.json")
    assert Checkpoint.open(pair.target).config["hidden_size"] == 48


def test_a_linked_folder_is_the_folder(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pair.target)
    assert Checkpoint.open(tmp_path / "link").source == pair.target.resolve()


def test_linked_weights_are_weights(pair: Pair, tmp_path: Path) -> None:
    """They are read as numbers under the names and shapes of the model, and never copied as they are."""
    before = Checkpoint.open(pair.target).fingerprint
    swap_for_link(pair.target / "model.safetensors", tmp_path / "store" / "weights")
    assert Checkpoint.open(pair.target).fingerprint == before


def snapshot(pair: Pair, repo: Path) -> Path:
    """Lay a target out as the Hub's cache does."""
    folder, blobs = repo / "snapshots" / "0123abcd", repo / "blobs"
    blobs.mkdir(parents=True)
    folder.mkdir(parents=True)
    for number, path in enumerate(sorted(pair.target.iterdir())):
        shutil.copy(path, blobs / f"{number:040x}")
        (folder / path.name).symlink_to(f"../../blobs/{number:040x}")
    (folder / "additional_chat_templates").mkdir()
    (blobs / "template").write_text("{{ messages }}")
    (folder / "additional_chat_templates" / "tools.jinja").symlink_to("../../../blobs/template")
    return folder


def test_the_cache_of_the_hub_consists_of_links(pair: Pair, tmp_path: Path) -> None:
    folder = snapshot(pair, tmp_path / "hub" / "models--a--b")
    assert Checkpoint.open(folder).fingerprint == Checkpoint.open(pair.target).fingerprint


@pytest.mark.parametrize("where", ["../../../models--c--d/blobs/x", "../../refs/x", "/etc/hostname", "../other/x"])
def test_hub_links_only_lead_to_their_own_blobs(pair: Pair, tmp_path: Path, where: str) -> None:
    folder = snapshot(pair, tmp_path / "hub" / "models--a--b")
    (folder / "chat_template.jinja").symlink_to(where)
    with pytest.raises(BuildError, match=r"chat_template\.jinja"):
        Checkpoint.open(folder)


def test_linked_blobs_folder_is_refused(pair: Pair, tmp_path: Path) -> None:
    folder = snapshot(pair, tmp_path / "models--a--b")
    (tmp_path / "models--a--b" / "blobs").rename(tmp_path / "elsewhere")
    (tmp_path / "models--a--b" / "blobs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BuildError, match=r"tokenizer\.json"):
        Checkpoint.open(folder)


def test_a_link_to_nowhere_is_refused_and_not_followed(pair: Pair) -> None:
    (pair.target / "chat_template.jinja").symlink_to("chat_template.jinja")
    Checkpoint.open(pair.target)
    os.remove(pair.target / "chat_template.jinja")
    (pair.target / "chat_template.jinja").symlink_to("/nowhere/at/all")
    with pytest.raises(BuildError, match="/nowhere/at/all"):
        Checkpoint.open(pair.target)


def test_engine_gets_files_instead_of_links(pair: Pair, tmp_path: Path) -> None:
    swap_for_link(pair.target / "tokenizer.json", pair.target / "files" / "tokenizer.json")
    (pair.target / "files" / "template").write_text("{{ messages }}")
    (pair.target / "chat_template.jinja").symlink_to("files/template")
    Checkpoint.open(pair.target)
    assembly = Assembly(tmp_path / "engine")
    assembly.folder.mkdir()
    assembly.place_tokenizer(pair.target)
    assert {"tokenizer.json", "chat_template.jinja"} <= assembly.files.keys()
    assert not [name for name in assembly.files if (assembly.folder / name).is_symlink()]
