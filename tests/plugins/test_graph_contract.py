"""The graph contract in code is the one that the architecture page describes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peagle.plugins import kernels
from peagle.plugins.graph_contract import (
    DRAFTER_INPUTS,
    DRAFTER_OUTPUTS,
    MAX_DRAFTS,
    TARGET_INPUTS,
    TARGET_OUTPUTS,
    TENSORS,
    cache_names,
    written,
)

KERNEL = Path(kernels.__file__).parent / "own_tokens.cuh"
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "architecture.md").read_text()
TYPES = {"i64": "int64", "i32": "int32", "f32": "float32", "*w*": "wide"}
DIMS = {"A*H": "F", "K": "E-1"}


def _tables(heading: str) -> list[list[tuple[list[str], str]]]:
    """(names, type and shape) of the rows of both tables under a heading: inputs, then outputs."""
    section = PAGE.split(f"### {heading}\n")[1].split("\n#")[0]
    blocks = [block.strip() for block in section.split("\n\n") if block.strip().startswith(("| input", "| output"))]
    rows = [[line.strip("| ").split(" | ") for line in block.splitlines()[2:]] for block in blocks]
    return [[(re.findall(r"`([^`]+)`", row[0]), row[1]) for row in block] for block in rows]


@pytest.mark.parametrize(
    ("heading", "names"),
    [("Target", (TARGET_INPUTS, TARGET_OUTPUTS)), ("Drafter", (DRAFTER_INPUTS, DRAFTER_OUTPUTS))],
)
def test_the_architecture_page_lists_the_tensors_in_order(
    heading: str, names: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    columns = [[name for row, _ in table for name in row if "_cache." not in name] for table in _tables(heading)]
    assert columns == [list(names[0]), list(names[1])]


def test_the_architecture_page_gives_their_types_and_shapes() -> None:
    described = 0
    for heading in ("Target", "Drafter"):
        for row, kind in (row for table in _tables(heading) for row in table):
            match = re.fullmatch(r"(\S+) \[([^\]]+)\]", kind)
            if match is None or "_cache." in row[0]:
                continue
            dims = tuple(DIMS.get(dim, dim) for dim in match[2].split(","))
            for name in row:
                assert (TENSORS[name].dtype, TENSORS[name].dims) == (TYPES[match[1]], dims)
                described += 1
    # Three of the drafter's are "as the target's"; those of EAGLE-3 (2), trees (6) and TensorRT (1) stand in the text.
    assert described == len(TENSORS) - 3 - 2 - 6 - 1
    assert "`positions` i64 [R]" in PAGE
    assert "`ancestors` bool [B,S,S]" in PAGE
    text = " ".join(PAGE.split())
    assert "input, `draft_hidden`, and one more output, `next_draft_hidden`, both *w* [B,Hd]" in text
    assert "`candidate_ids` i64 and `candidate_scores` f32, [B,K,C]" in text
    assert all(each in text for each in ("`skipped` i64 [B,S]", "`next_skipped` i64 [B,E]", "`path` i32 [B,E]"))
    assert all(TENSORS[f"next_{name}"] == TENSORS[name] for name in ("start", "window_len", "draft_len"))


def test_caches_are_named_keys_first() -> None:
    assert cache_names(2) == ("k_cache.0", "k_cache.1", "v_cache.0", "v_cache.1")
    assert written("k_cache.1") == "k_cache.1.out"


def test_the_kernel_has_a_column_for_every_draft_and_the_bonus_token() -> None:
    stated = re.search(r"kMaxColumns = (\d+);", KERNEL.read_text())
    assert stated is not None
    assert int(stated[1]) == MAX_DRAFTS + 1
