"""Checkpoints and engines that several test files of the compiler start from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.models import Pair, make_pair

Run = Callable[..., "Outcome"]


class Outcome:
    """What one call of the command line left: exit code, standard output, standard error."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Run:
    """Run ``peagle-compile`` in this process; no argument may make it raise."""
    from peagle.compiler.cli import run_cli

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = run_cli([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert "Traceback" not in err
        return Outcome(code, out, err)

    return run


@pytest.fixture(scope="session")
def _pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("pair"), "qwen3")


@pytest.fixture
def pair(_pair: Pair, tmp_path: Path) -> Pair:
    """A tiny random target and head, to be changed as a test likes."""
    shutil.copytree(_pair.target, tmp_path / "target")
    shutil.copytree(_pair.head, tmp_path / "head")
    return Pair(tmp_path / "target", tmp_path / "head")


@pytest.fixture
def engine(demo_engine: Path, tmp_path: Path) -> Path:
    """A copy of the demo engine, to be changed as a test likes."""
    return Path(shutil.copytree(demo_engine, tmp_path / "engine"))
