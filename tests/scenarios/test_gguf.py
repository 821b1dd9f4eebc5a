"""From a GGUF file to an engine: its numbers, its text, and what is said of how the file stored them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from peagle.engines import Engine, SamplingParams
from peagle.graphs.drafters.torch_reference import load_target, target_pass
from peagle.graphs.targets import family_for
from tests import gguf_files
from tests.fixtures.commands import Run

ALONE = ("--num-speculative-tokens", 0, "--max-seq-len", 64)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_an_engine_s_logits_are_those_of_transformers(family: str, cli: Run, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", family, kinds=("Q8_0", "Q4_1", "F16"))
    done = cli("build", "--model", written.file, *ALONE, "--precision", "fp32", "--out", tmp_path / "engine")
    assert done.code == 0, done.err
    engine = Engine.load(tmp_path / "engine")
    ids = np.random.default_rng(0).integers(3, 250, 23).tolist()
    model = load_target(written.folder, written.config)
    logits, _ = target_pass(model, family_for(written.config).describe(written.config), ids)
    np.testing.assert_allclose(engine.target_logits(ids), logits.numpy(), atol=1e-4)
    (output,) = engine.generate(["hello w"], SamplingParams(max_tokens=8, ignore_eos=True))
    assert len(output.token_ids) == 8
    assert engine.tokenizer.encode("hello w<|user|>") == [261, 262, 1]
    _check_what_is_said(family, cli, done.out, tmp_path / "engine", written.file)


def _check_what_is_said(family: str, cli: Run, said: str, engine: Path, file: Path) -> None:
    manifest = json.loads((engine / "engine.json").read_text())
    stored = manifest["precision"]["stored"]
    assert stored.startswith("GGUF: ")
    assert all(kind in stored for kind in ("Q8_0", "Q4_1", "F16", "F32"))
    assert manifest["target"]["origin"]["source"] == str(file)
    assert stored in said
    assert stored in cli("inspect", engine).out
    assert (engine / "chat_template.jinja").read_text() == gguf_files.TEMPLATE
    assert manifest["eos_token_ids"] == [0]


def test_a_recipe_that_rounds_says_that_it_is_the_second_time(cli: Run, tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama", kinds=("Q4_1",))
    shutil.rmtree(written.folder)
    done = cli("build", "--model", written.file, *ALONE, "--precision", "int4", "--out", tmp_path / "engine")
    assert done.code == 0, done.err
    assert "tiny.gguf holds weights that were rounded already, to Q4_1: int4 rounds them a second time" in done.err
    assert "second time" in (tmp_path / "engine" / "build_report.json").read_text()
