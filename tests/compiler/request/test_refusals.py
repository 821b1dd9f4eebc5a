"""Checks of a request before any checkpoint is opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.request.refusals import check_build
from peagle.compiler.request.request import CompileRequest, ModelRef
from peagle.engines.folder.manifest import FILE_NAME
from peagle.plugins.errors import UsageError


def test_an_engine_named_as_its_short_name_can_be_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short name takes precedence over the folder, which therefore is no input."""
    monkeypatch.chdir(tmp_path)
    for name in ("demo", "mine"):
        Path(name).mkdir()
        Path(name, FILE_NAME).touch()
    check_build(CompileRequest(ModelRef("demo", "demo"), Path("demo")))
    for pair in (ModelRef("mine", "demo"), ModelRef("demo", "mine")):
        with pytest.raises(UsageError, match="--out mine is an input folder"):
            check_build(CompileRequest(pair, Path("mine")))
