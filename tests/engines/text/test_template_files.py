"""The locations of chat templates and special tokens in a checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from peagle.engines.text.template_files import read_special_tokens, read_template, read_templates
from peagle.plugins.errors import EnvironmentProblem
from tests.attacks.world import guarded


def write(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        path = folder / (f"{name}.json" if not isinstance(content, str) else f"{name}.jinja")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_template_file_overrides_the_configuration(tmp_path: Path) -> None:
    assert read_templates(tmp_path) == {}
    write(tmp_path, chat_template={"chat_template": "processor"})
    assert read_templates(tmp_path) == {"default": "processor"}
    write(tmp_path, tokenizer_config={"chat_template": "config"})
    assert read_templates(tmp_path) == {"default": "config"}
    write(tmp_path, chat_template="file é")
    assert read_templates(tmp_path) == {"default": "file é"}


def test_named_templates_are_supported(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    write(tmp_path, tokenizer_config={"chat_template": several})
    assert read_templates(tmp_path) == {"default": "a", "tool_use": "b"}
    write(tmp_path, **{"additional_chat_templates/rag": "c", "additional_chat_templates/tool_use": "d"})
    assert read_templates(tmp_path) == {"default": "a", "tool_use": "d", "rag": "c"}


@pytest.mark.parametrize(
    ("stated", "why"),
    [
        (7, "neither a string nor a list"),
        (["a"], "neither a string nor a list"),
        ([{"name": "a"}], "neither a string nor a list"),
        ([{"name": "../../a", "template": "x"}], "not a valid file name"),
        ([{"name": "", "template": "x"}], "not a valid file name"),
        ("x" * 2**18, "more than 131,072 characters"),
    ],
)
def test_invalid_template_is_rejected(tmp_path: Path, stated: Any, why: str) -> None:
    write(tmp_path, tokenizer_config={"chat_template": stated})
    with pytest.raises(EnvironmentProblem) as caught:
        read_templates(tmp_path)
    assert why in caught.value.why


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 99999])
def test_a_damaged_configuration_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    for read in (read_templates, read_special_tokens):
        with pytest.raises(EnvironmentProblem, match=r"tokenizer_config\.json cannot be read"):
            read(tmp_path)


def test_oversized_file_is_not_read_completely(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("x" * 2**18)
    with pytest.raises(EnvironmentProblem) as caught:
        read_templates(tmp_path)
    assert "more than 131,072 bytes" in caught.value.why


def test_special_tokens_are_texts_or_objects(tmp_path: Path) -> None:
    write(
        tmp_path,
        special_tokens_map={"bos_token": "<old>", "pad_token": {"content": "<pad>"}},
        tokenizer_config={
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "unk_token": None,
            "add_bos_token": True,
        }
        | {"additional_special_tokens": ["<a>", {"content": "<b>"}], "backend": "tokenizers"},
    )
    assert read_special_tokens(tmp_path) == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "additional_special_tokens": ["<a>", "<b>"],
    }


@pytest.mark.parametrize("name", ["additional_chat_templates/tools.jinja", "chat_template.jinja"])
def test_pipe_does_not_block(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with guarded(30):
        if name == "chat_template.jinja":
            assert read_templates(tmp_path) == {}
            return
        with pytest.raises(EnvironmentProblem, match="cannot be read") as caught:
            read_templates(tmp_path)
    assert caught.value.why == "the path is not a regular file"


def test_template_file_is_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("file é")
    assert read_template(path) == "file é"
    path.write_bytes(b"\xff")
    with pytest.raises(EnvironmentProblem, match="not valid UTF-8") as refused:
        read_template(path)
    assert "checkpoint" not in refused.value.fix
