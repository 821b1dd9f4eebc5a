"""An engine's text processing is compared with its checkpoint, for any tokenizer."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.verify.engine_text import compare_text
from peagle.engines.folder.manifest import Manifest
from tests.models import Pair
from tests.tokenizer_files import PANICS

PANIC = {"type": "Replace", "pattern": {"Regex": PANICS}, "content": "x"}


@pytest.mark.parametrize("entry", [{"normalizer": PANIC}, {"model": {"type": "none"}}], ids=["panic", "damaged"])
def test_a_tokenizer_of_the_checkpoint_that_fails_leaves_the_ids_unchecked(
    tiny_folder: Path, tiny_pair: Pair, tmp_path: Path, entry: dict[str, Any]
) -> None:
    source = shutil.copytree(tiny_pair.target, tmp_path / "target")
    tokenizer = json.loads((source / "tokenizer.json").read_text()) | entry
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    manifest = Manifest.read(tiny_folder)
    target = replace(manifest.target, origin=replace(manifest.target.origin, source=str(source)))
    checks = {check.name: check for check in compare_text(tiny_folder, replace(manifest, target=target), ())}
    assert checks["token ids"].status == "not checked"
    assert "cannot be used as a tokenizer" in checks["token ids"].detail
