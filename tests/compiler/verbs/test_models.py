"""``models``: facts about a pair and its size, without a download and without torch."""

from __future__ import annotations

import json

import pytest

from peagle.compiler.checkpoints.known_pairs import PAIRS
from tests.fixtures.commands import Run


def test_the_list_has_sizes_and_disk(cli: Run) -> None:
    lines = cli("models").out.splitlines()
    (qwen,) = [line for line in lines if line.startswith("qwen3-coder-30b ")]
    assert "30.5 B" in qwen
    assert "61.1 GB" in qwen
    assert "disk to build" in lines[0]
    assert [each["name"] for each in json.loads(cli("models", "--json").out)] == list(PAIRS)


@pytest.mark.parametrize("name", PAIRS)
def test_one_is_shown_with_its_command(cli: Run, name: str) -> None:
    done = cli("models", name)
    assert done.code == 0
    assert f"peagle-compile build --model {name}" in done.out
    assert "not pinned" in done.out or name == "demo"
    assert "licenses" in done.out
    assert ("--draft ngram" in done.out) == (PAIRS[name].drafter is None)


def test_gpu_is_listed_when_weights_fit_and_type_is_supported(cli: Run) -> None:
    shown = json.loads(cli("models", "qwen3-coder-30b", "--json").out)
    rooms = {each["precision"]: each["gpus"] for each in shown["sizes"]}
    assert "rtx-4090" in rooms["int4"]
    assert "rtx-4090" not in rooms["bf16"]
    assert "a100-80gb" not in rooms["fp8"]
    assert rooms["fp32"] == []


def test_target_id_shows_its_pair_and_unknown_id_is_rejected(cli: Run) -> None:
    assert "qwen3-coder-30b" in cli("models", "Qwen/Qwen3-Coder-30B-A3B-Instruct").out
    unknown = cli("models", "owner/other")
    assert unknown.code == 2
    assert "not a known model" in unknown.err
    assert cli("models", "qwen3-codr-30b").code == 2
