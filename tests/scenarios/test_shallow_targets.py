"""Targets of fewer layers than the usual taps need, with heads that name their own: from the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from tests.fixtures.commands import Run
from tests.models import CONFIGS, Pair, save_target

TAPS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture(scope="module")
def shallow(tiny_pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """A target of three layers, and a head whose configuration a test completes."""
    folder = tmp_path_factory.mktemp("shallow")
    target = save_target(folder / "target", CONFIGS["qwen3"] | {"num_hidden_layers": 3})
    return Pair(target, Path(shutil.copytree(tiny_pair.head, folder / "head")))


def tapping(pair: Pair, folder: Path, taps: list[int] | None) -> Path:
    """A copy of the head that names these layers."""
    head = Path(shutil.copytree(pair.head, folder / "head"))
    (head / "config.json").write_text(json.dumps(pair.head_config | {TAPS: taps}))
    return head


def test_a_head_that_names_its_taps_is_built(cli: Run, shallow: Pair, tmp_path: Path) -> None:
    head, out = tapping(shallow, tmp_path, [0, 1, 2]), tmp_path / "engine"
    done = cli("build", shallow.target, "--draft", head, "--num-speculative-tokens", 2, "--max-seq-len", 64,
               "--out", out)  # fmt: skip
    assert done.code == 0, done.err
    engine = Engine.load(out)
    assert engine.manifest.shapes.taps == (0, 1, 2)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    texts = {engine.generate([[5, 9, 30]], params, num_speculative_tokens=k)[0].token_ids for k in (0, 1, 2)}
    assert len(texts) == 1


@pytest.mark.parametrize(
    ("taps", "says"),
    [
        ([0, 1, 3], "taps [0, 1, 3] do not fit a target of 3 layers"),
        ([0, 1, 47], "taps [0, 1, 47] do not fit a target of 3 layers"),
        ([2, 1, 0], "taps [2, 1, 0] do not fit"),
        (None, f"a target of 3 layers has no usual taps, and config names none ({TAPS})"),
    ],
)
def test_taps_that_cannot_be_are_refused_by_name(
    cli: Run, shallow: Pair, tmp_path: Path, taps: list[int] | None, says: str
) -> None:
    head, out = tapping(shallow, tmp_path, taps), tmp_path / "engine"
    for more in ((), ("--dry-run",)):
        done = cli("build", shallow.target, "--draft", head, "--out", out, *more)
        assert (done.code, says in done.err) == (5, True), done.err
    assert not out.exists()
