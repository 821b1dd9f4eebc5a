"""The work of a target: the bytes of its weights, each counted as often as a pass reads it."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.compiler.precision.decide_recipe import table_of
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.resources.speed.pass_work import AttentionWork, GraphWork
from peagle.compiler.resources.speed.target_work import GraphCounts, position_bytes, target_work
from peagle.compiler.resources.weight_bytes import WeightLine, weight_lines
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets import CacheSpec, family_for
from peagle.graphs.targets.skeleton import Skeleton
from tests.models import CONFIGS


def _work(
    config: dict[str, Any], precision: str, lowering: str = "tensorrt"
) -> tuple[GraphWork, tuple[WeightLine, ...]]:
    form = LOWERINGS[lowering]
    recipe = table_of(PrecisionOptions(precision), form, None)
    census, family = Skeleton(config).weights, family_for(config)
    lines = weight_lines(census, recipe, form)
    return target_work(census, lines, recipe, family.describe(config), family.text(config), GraphCounts()), lines


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize(("precision", "lowering"), [("bf16", "tensorrt"), ("fp8", "tensorrt"), ("int8", "ort")])
def test_all_weights_are_read_but_the_embedding(family: str, precision: str, lowering: str) -> None:
    work, lines = _work(CONFIGS[family], precision, lowering)
    has_head = any(line.role == "lm_head" for line in lines)
    looked_up = sum(line.bytes for line in lines if line.role == "embedding" and has_head)
    assert work.weight_bytes == pytest.approx(sum(line.bytes for line in lines) - looked_up, abs=len(lines))
    assert work.weights["lm_head"] > 0


def test_a_token_of_qwen3_moe_by_hand() -> None:
    work, _ = _work(CONFIGS["qwen3-moe"], "bf16")
    hidden, vocab, layers, sparse, experts, inner = 48, 96, 7, 6, 6, 24
    queries, keys = 4 * 16, 2 * 16
    attention = layers * 2 * (queries + keys) * hidden
    every = sparse * experts * 3 * inner * hidden
    assert work.experts is not None
    assert (work.experts.count, work.experts.chosen, work.experts.dense) == (experts, 2, False)
    assert work.experts.values == every
    assert work.products == {"bf16": attention + 3 * 80 * hidden + sparse * experts * hidden}
    assert work.head_products == {"bf16": vocab * hidden}
    assert work.attention == (AttentionWork(layers * 2 * keys * 2, 4 * layers * queries),)
    assert (work.logit_bytes, work.row_bytes) == (2 * vocab, 2 * hidden)
    one = work.over(1, 0)
    assert one.bytes["experts"] == pytest.approx(2 * every * 2 / experts)


def test_layers_with_an_attention_window_are_apart() -> None:
    work, _ = _work(CONFIGS["gemma-4"], "bf16")
    limited, full = 3 * 2 * 16, 4 * 1 * 32
    assert work.attention == (
        AttentionWork(2 * full * 2, 4 * 4 * 4 * 32), AttentionWork(2 * limited * 2, 4 * 4 * 3 * 16, window=8)
    )  # fmt: skip


def test_quantized_weights_are_counted_in_their_format() -> None:
    work, _ = _work(CONFIGS["qwen3-moe"], "fp8", "tensorrt-sm100")
    assert set(work.products) == {"fp8", "bf16"}, "the router stays bf16"
    assert work.experts is not None
    assert work.experts.kind == "fp8"
    wide, _ = _work(CONFIGS["qwen3-moe"], "bf16")
    assert wide.experts is not None
    assert wide.experts.bytes == pytest.approx(2 * work.experts.bytes, rel=0.02)


def test_positions_of_caches() -> None:
    caches = (CacheSpec(4, 128), CacheSpec(2, 64))
    assert position_bytes(caches, "bf16") == 2 * (4 * 128 + 2 * 64) * 2
    assert position_bytes(caches, "fp8") == 2 * (4 * 128 + 2 * 64)
