"""An engine that was changed after its build fails verification, even with a matching manifest."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.engines import Engine
from peagle.engines.folder.manifest import FILE_NAME, Manifest
from peagle.engines.folder.records import FileEntry
from tests.fixtures.commands import Run
from tests.models import Pair

VERIFY = ("--prompts", 2, "--max-tokens", 6, "--num-speculative-tokens", 2, "--batch-size", 1)


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """An FP32 engine of a tiny pair, to be altered."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "engine"))


def make_right(folder: Path, change: Callable[[dict[str, Any]], None] = lambda _: None) -> None:
    """Let the manifest list the files as they are now, with their hashes and its own."""
    path = folder / FILE_NAME
    content = json.loads(path.read_text())
    names = [each for each in folder.rglob("*") if each.is_file() and each != path]
    for file in names:
        entry = FileEntry.of(file)
        content["files"][file.relative_to(folder).as_posix()] = {"size": entry.size, "sha256": entry.sha256}
    change(content)
    content.pop("digest")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["digest"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(content))
    Engine.load(folder, threads=1)


def scale_weights(folder: Path) -> None:
    """Multiply 5 % of the target's weights by 1.5."""
    path = folder / "target" / "model.onnx.data"
    values = np.frombuffer(path.read_bytes(), np.float32).copy()
    values[: values.size // 20] *= 1.5
    path.write_bytes(values.tobytes())


def change_json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def swap_tokens(folder: Path) -> None:
    def swap(content: dict[str, Any]) -> None:
        vocabulary = content["model"]["vocab"]
        first, second = [*vocabulary][10:12]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    change_json(folder / "tokenizer.json", swap)


def cut_prompts(folder: Path) -> None:
    """What a tokenizer does with long texts is a part of its file."""
    limit = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    change_json(folder / "tokenizer.json", lambda content: content.update(truncation=limit))


def end_elsewhere(folder: Path) -> None:
    change_json(folder / "generation_config.json", lambda content: content.update(eos_token_id=7))


def add_template(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")


def add_named_template(folder: Path) -> None:
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tools.jinja").write_text("{{ messages }}")


def add_special_tokens(folder: Path) -> None:
    (folder / "special_tokens_map.json").write_text(json.dumps({"bos_token": "<eos>"}))


def verified(cli: Run, folder: Path, *more: object) -> tuple[int, dict[str, Any], str]:
    done = cli("verify", folder, *VERIFY, *more, "--json")
    return done.code, json.loads(done.out), done.err


def test_unmodified_engine_passes(folder: Path, cli: Run) -> None:
    make_right(folder)
    code, found, err = verified(cli, folder)
    assert code == 0, err
    assert (found["passed"], found["status"], found["not_checked"]) == (True, "passed", {})
    assert found["parts"] == {
        "losslessness": "passed", "text": "passed", "parity": "passed", "precision": "not needed",
    }  # fmt: skip
    names = ["tokenizer", "token ids", "chat template", "end-of-text tokens"]
    assert [(check["name"], check["status"]) for check in found["text"]] == [(name, "passed") for name in names]


@pytest.mark.parametrize("field", ["revision", "source"])
@pytest.mark.parametrize("half", ["target", "drafter"])
def test_missing_checkpoint_does_not_pass(folder: Path, cli: Run, field: str, half: str) -> None:
    scale_weights(folder)
    make_right(folder, lambda content: content[half]["origin"].update({field: "0" * 64}))
    code, found, err = verified(cli, folder)
    assert code == (3 if half == "target" else 4), err
    assert found["passed"] is False
    if half == "drafter":
        assert found["parts"]["parity"] == "failed", "the target was compared all the same"
        return
    assert (found["status"], found["parts"]["parity"]) == ("not checked", "not checked")
    why = "was changed after the build" if field == "revision" else "the checkpoint cannot be opened"
    assert why in found["not_checked"]["parity"]
    assert why in found["not_checked"]["text"]
    assert why in err
    assert "--only losslessness" in err
    assert json.loads((folder / "verify.json").read_text()) == found


def test_scaled_weights_fail_with_the_checkpoint_present(folder: Path, cli: Run) -> None:
    scale_weights(folder)
    make_right(folder)
    code, found, err = verified(cli, folder)
    assert (code, found["status"], found["parts"]["parity"]) == (4, "failed", "failed")
    assert "verification failed" in err
    assert "target logits differ by" in err


@pytest.mark.parametrize(
    ("alter", "change", "name", "says"),
    [
        (swap_tokens, None, "tokenizer", "tokenizer.json differs from the checkpoint"),
        (swap_tokens, None, "token ids", " differ: "),
        (cut_prompts, None, "tokenizer", "tokenizer.json differs from the checkpoint"),
        (add_special_tokens, None, "tokenizer", "special_tokens_map.json is in the engine but not in the checkpoint"),
        (add_template, None, "chat template", "template 'default' is in the engine but not in the checkpoint"),
        (add_named_template, None, "chat template", "template 'tools' is in the engine but not in the checkpoint"),
        (end_elsewhere, None, "end-of-text tokens", "generation_config.json differs from the checkpoint"),
        (None, {"eos_token_ids": [7]}, "end-of-text tokens", "the manifest has [7], but the checkpoint has [0]"),
        (None, {"eos_token_ids": []}, "end-of-text tokens", "the manifest has [], but the checkpoint has [0]"),
    ],
)
def test_text_processing_files_are_compared(
    folder: Path,
    cli: Run,
    alter: Callable[[Path], None] | None,
    change: dict[str, Any] | None,
    name: str,
    says: str,
) -> None:
    if alter:
        alter(folder)
    make_right(folder, lambda content: content.update(change or {}))
    code, found, err = verified(cli, folder, "--only", "text")
    assert (code, found["status"], found["parts"]["text"]) == (4, "failed", "failed")
    assert {check["name"]: check["status"] for check in found["text"]}[name] == "failed"
    assert says in {check["name"]: check["detail"] for check in found["text"]}[name]
    assert says in err


def test_a_template_that_the_manifest_does_not_list_is_compared_too(folder: Path, cli: Run) -> None:
    """The runtime reads it, so it counts."""
    add_template(folder)
    code, found, _ = verified(cli, folder, "--only", "text")
    assert (code, found["parts"]["text"]) == (4, "failed")


def test_whitespace_only_difference_is_equal(folder: Path, cli: Run) -> None:
    for name in ("tokenizer.json", "generation_config.json"):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content, indent=7))
    make_right(folder)
    assert verified(cli, folder, "--only", "text")[0] == 0


def test_duplicate_key_is_a_difference(folder: Path, cli: Run) -> None:
    """Readers may take either of the two."""
    path = folder / "generation_config.json"
    content = path.read_text().strip()
    path.write_text('{"eos_token_id": 7, ' + content.removeprefix("{"))
    make_right(folder)
    code, found, _ = verified(cli, folder, "--only", "text")
    assert (code, found["text"][3]["status"]) == (4, "failed")


def test_only_skips_uncheckable_parts(folder: Path, cli: Run) -> None:
    make_right(folder, lambda content: content["target"]["origin"].update(revision="0" * 64))
    code, found, _ = verified(cli, folder, "--only", "losslessness")
    assert (code, found["passed"], found["not_checked"]) == (0, True, {})
    for part in ("text", "parity"):
        done = cli("verify", folder, "--only", part)
        assert done.code == 3
        assert f"--only {part} needs the checkpoint of the target" in done.err


def test_text_report_shows_the_same(folder: Path, cli: Run) -> None:
    make_right(folder, lambda content: content["target"]["origin"].update(revision="0" * 64))
    done = cli("verify", folder, *VERIFY)
    assert done.code == 3
    said = " ".join(done.out.split())
    assert "target logits not checked:" in said
    assert "result NOT CHECKED: text, parity" in said
    assert "passed" not in said
    assert str(Manifest.read(folder).target.origin.source) in said


def test_text_needs_neither_a_run_nor_torch(
    folder: Path, cli: Run, monkeypatch: pytest.MonkeyPatch, tiny_pair: Pair
) -> None:
    """As on the host of a GPU that has the checkpoint, or on one without that GPU."""
    monkeypatch.setattr(Engine, "load", lambda *_, **__: pytest.fail("it was loaded"))
    manifest = Manifest.read(folder)
    replace(manifest, backend=replace(manifest.backend, gpus=())).write(folder)
    code, found, err = verified(cli, folder, "--only", "text")
    assert code == 0, err
    assert found["checkpoints"]["target"] == str(tiny_pair.target)
