"""A tiny random pair, built once per session the way a user would."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler.pipeline.build import build
from peagle.compiler.request.options import BuildOptions
from peagle.engines import Engine
from tests.models import Pair, make_pair


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return make_pair(tmp_path_factory.mktemp("tiny"), "qwen3")


@pytest.fixture(scope="session")
def tiny_folder(tiny_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tiny-engine") / "engine"
    return build(
        BuildOptions(
            model=str(tiny_pair.target), draft=str(tiny_pair.head), out=out, num_speculative_tokens=4, max_seq_len=96
        )
    ).path


@pytest.fixture(scope="session")
def tiny_engine(tiny_folder: Path) -> Engine:
    return Engine.load(tiny_folder, max_batch_size=3, threads=1)
