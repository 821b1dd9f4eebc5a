"""Layer ids in a head's config, which name readers in some tools and writers in others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peagle.graphs.drafters import TAPS, doubts_of_taps, read_drafter
from peagle.graphs.targets import family_for
from tests.models import CONFIGS, VOCAB, head_tensors

SIZES: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "ptd_token_id": 1}
LAYERS = 36


def taps(entries: dict[str, Any]) -> tuple[int, ...]:
    config = CONFIGS["qwen3"] | {"num_hidden_layers": LAYERS}
    config["layer_types"] = ["full_attention"] * LAYERS
    tensors = head_tensors(torch.Generator().manual_seed(0), VOCAB)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return read_drafter(SIZES | entries, shapes, family_for(config).describe(config)).taps


@pytest.mark.parametrize(
    ("inner", "read", "advice"),
    [
        ([1, 17, 32], (2, 18, 33), "pass --taps 1,17,32"),  # SpecForge and Model-Optimizer
        ([1, 9, 17], (2, 10, 18), "pass --taps 1,9,17"),
        ([2, 18, 33], (2, 18, 33), ""),  # the usual taps
        ([3, 18, 33], (3, 18, 33), "pass --taps 4,19,34"),
        ([24, 30, 35], (24, 30, 35), ""),  # the output of layer 35 is the input of no layer
    ],
)
def test_ids_in_eagle_config_that_start_with_1_are_captured_layers(
    inner: list[int], read: tuple[int, ...], advice: str
) -> None:
    config = {"eagle_config": {"use_aux_hidden_state": True, TAPS: inner}}
    assert taps(config) == read
    doubts = doubts_of_taps(config, LAYERS)
    assert len(doubts) == bool(advice)
    assert all(doubt.endswith(advice) and str(inner) in doubt for doubt in doubts)


def test_top_level_ids_are_the_layers_that_read() -> None:
    for ids, doubtful in (([1, 2, 4], False), ([2, 18, 33], False), ([1, 17, 32], True)):
        assert taps({TAPS: ids}) == tuple(ids)
        assert len(doubts_of_taps({TAPS: ids}, LAYERS)) == doubtful


def test_both_entries_may_name_the_same_layers() -> None:
    for inner in ([1, 17, 32], [2, 18, 33]):
        assert taps({TAPS: [2, 18, 33], "eagle_config": {TAPS: inner}}) == (2, 18, 33)
    assert taps({TAPS: [1, 17, 32], "eagle_config": {TAPS: [1, 17, 32]}}) == (1, 17, 32), "as in vLLM"


def test_a_head_without_ids_has_no_doubts() -> None:
    assert doubts_of_taps({}, LAYERS) == doubts_of_taps({"eagle_config": None, TAPS: None}, 3) == []


def test_an_empty_list_counts_as_absent() -> None:
    assert taps({TAPS: [], "eagle_config": {TAPS: []}}) == (2, 18, 33)
