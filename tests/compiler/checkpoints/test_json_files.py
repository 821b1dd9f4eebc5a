"""Reading a JSON file of a checkpoint terminates for any kind of file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle.compiler.checkpoints.json_files import read_json
from peagle.compiler.checkpoints.safetensors import read_header
from peagle.plugins.errors import BuildError


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "config.json"


def refusal(path: Path) -> str:
    with pytest.raises(BuildError) as caught:
        read_json(path, "it is needed")
    return str(caught.value)


def test_an_object_is_read(config: Path) -> None:
    config.write_text('{"a": [1, 2]}')
    assert read_json(config, "") == {"a": [1, 2]}


def test_missing_file_error_explains_its_purpose(config: Path) -> None:
    assert "it is needed" in refusal(config)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_not_read(config: Path, device: str) -> None:
    config.symlink_to(device)
    assert "not a regular file" in refusal(config)


def test_a_pipe_is_not_waited_for(config: Path) -> None:
    os.mkfifo(config)
    assert "not a regular file" in refusal(config)
    with pytest.raises(BuildError, match="cannot read"):
        read_header(config)


def test_a_folder_and_a_circle_of_links_are_refused(config: Path, tmp_path: Path) -> None:
    config.symlink_to(config)
    assert "cannot read" in refusal(config)
    assert "cannot read" in refusal(tmp_path)


def test_deep_nesting_is_refused(config: Path) -> None:
    config.write_text("[" * 100_000)
    assert "is not valid JSON" in refusal(config)
