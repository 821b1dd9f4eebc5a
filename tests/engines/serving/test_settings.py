"""The name of a model in answers: never the path of a folder on the server's machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peagle.engines.folder.manifest import Manifest
from peagle.engines.serving.settings import model_name


@pytest.mark.parametrize(
    ("asked_for", "name"),
    [
        ("smollm2-135m", "smollm2-135m"),
        ("org/model", "org/model"),
        ("/home/someone/models/mine", "mine"),
        ("/home/someone/models/mine/", "mine"),
        ("./mine", "mine"),
        ("../models/mine.gguf", "mine"),
        ("models/mine-Q4_K_M.GGUF", "mine-Q4_K_M"),
        ("mine.v2.gguf", "mine.v2"),
        (".gguf", "engine-folder"),
        ("~/mine", "mine"),
        (r"C:\Users\someone\mine", "mine"),
        ("/", "engine-folder"),
        ("..", "engine-folder"),
    ],
)
def test_a_model_is_called_as_its_checkpoint_without_a_path(demo_engine: Path, asked_for: str, name: str) -> None:
    manifest = Manifest.read(demo_engine)
    target = replace(manifest.target, origin=replace(manifest.target.origin, id=asked_for))
    assert model_name(replace(manifest, target=target), Path("engine-folder")) == name
