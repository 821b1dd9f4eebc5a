"""GGUF files are measured beside peers: bytes by the experts that a window needs, ratios paired per turn."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import pytest
from gguf_files import Settings, peer, report, window_bytes

from tests.gguf_files import write


def test_window_reads_the_experts_that_its_tokens_are_expected_to_choose(tmp_path: Path) -> None:
    written = write(tmp_path / "experts.gguf", "qwen3-moe")
    tensors = {tensor.name: int(tensor.n_bytes) for tensor in gguf.GGUFReader(written.file).tensors}
    unused = 1 - written.config["num_experts_per_tok"] / written.config["num_local_experts"]
    stacked = sum(size for name, size in tensors.items() if "_exps" in name)
    looked_up = tensors["token_embd.weight"] if "output.weight" in tensors else 0
    dense = sum(tensors.values()) - stacked - looked_up
    bytes_of = window_bytes(written.file)
    assert stacked > 0
    for tokens in (1, 2, 8):
        assert bytes_of(tokens) == pytest.approx(dense + stacked * (1 - unused**tokens))
    assert bytes_of(10_000) == pytest.approx(dense + stacked)


def test_ratios_are_of_one_turn_and_a_missing_figure_is_marked(tmp_path: Path) -> None:
    names = ("pass over 1 column", "pass over 5 columns", "decode after 155")
    ours = [dict(zip(names, (2.0 * slow, 3.0 * slow, 2.0 * slow), strict=True)) for slow in (1, 2, 4)]
    theirs = [{name: 3 * value for name, value in turn.items() if "155" not in name} for turn in ours]
    lines = report(tmp_path / "a.gguf", lambda n: n * 1e6, [1e9, 5e8, 2.5e8], {"ours": ours, "theirs": theirs})
    _, _, one, five, decoding = lines
    assert one.split()[:4] == ["pass", "over", "1", "column"]
    assert "(3.00)  1.00 of one; bytes 1.00" in one
    assert "(3.00)  1.50 of one; bytes 5.00" in five
    assert decoding.endswith("-  0.50 of memory")


@pytest.mark.parametrize("has_depth", [True, False])
def test_peer_is_called_with_the_options_of_its_benchmark(tmp_path: Path, has_depth: bool) -> None:
    """llama.cpp measures at a depth; ik_llama.cpp has pairs of a prompt and decoded tokens instead."""
    bench = tmp_path / "llama-bench"
    entries = [
        {"n_prompt": 5, "n_gen": 0, "samples_ns": [4e6, 5e6, 9e6]},
        {"n_prompt": 512, "n_gen": 0, "samples_ns": [7e6]},
    ]
    decoded = {"n_prompt": 0, "n_gen": 32, "n_depth": 155} if has_depth else {"n_prompt": 155, "n_gen": 32}
    answers = {"-n 0 -r": entries, ("-d" if has_depth else "-gp"): [decoded | {"samples_ns": [64e6]}]}
    cases = "".join(f"*'{flags}'*) echo '{json.dumps(answer)}';;\n" for flags, answer in reversed(answers.items()))
    help_text = "--n-depth" if has_depth else "-gp <pp,tg>"
    bench.write_text(f"#!/bin/sh\ncase \"$*\" in\n--help) echo '{help_text}';;\n{cases}*) exit 3;;\nesac\n")
    bench.chmod(0o755)
    found = peer(bench, tmp_path / "a.gguf", Settings((5,), (155,), (512,), repeats=3, threads=2))
    assert found == {"pass over 5 columns": 5.0, "prompt of 512": 7.0, "decode after 155": 2.0}


def test_peer_that_fails_is_reported_with_its_output(tmp_path: Path) -> None:
    bench = tmp_path / "llama-bench"
    bench.write_text("#!/bin/sh\necho 'no such model' >&2; exit 1\n")
    bench.chmod(0o755)
    with pytest.raises(SystemExit, match="failed with 1:\nno such model"):
        peer(bench, tmp_path / "a.gguf", Settings((1,), (155,), (512,), repeats=1, threads=1))
