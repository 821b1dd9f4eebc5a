"""The largest tensors of a pass for known targets, computed by hand."""

from __future__ import annotations

import functools
from dataclasses import replace

from peagle.compiler.checkpoints.resolve_names import target_config
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.resources.pass_tensors import PassTensors, pass_tensors
from peagle.compiler.resources.speed.drafter_work import assumed_head
from peagle.compiler.resources.workload import Workload
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets import CacheSpec, family_for
from peagle.graphs.targets.skeleton import Skeleton

BF16 = RECIPES["fp8"].on("bf16")
CODER = "qwen3-coder-30b"
weights_of = functools.cache(lambda model: Skeleton(target_config(model)[0]).weights)


def _tensors(
    model: str, rows: int = 1, k: int = 4, *, lowering: str = "tensorrt-sm100", drafts: str = "", caches: int = 0
) -> PassTensors:
    """The tensors with a head that makes its ``drafts`` in one pass or one by one, with so many key heads."""
    config = target_config(model)[0]
    family = family_for(config)
    spec, text, head = family.describe(config), family.text(config), None
    if drafts:
        head = assumed_head(spec, text, None, parallel=drafts == "in one pass")[0]
        head = replace(head, cache=CacheSpec(caches, head.cache.head_dim)) if caches else head
    workload = Workload(weights_of(model), BF16, LOWERINGS[lowering], head)
    return pass_tensors(spec, text, workload, rows=rows, num_speculative_tokens=k)


def test_attention_with_heads_above_256_has_its_scores_in_memory() -> None:
    tensors, positions = _tensors("gemma-4-31b"), 131_136
    assert tensors.scores * positions == 32 * 512 * positions * (2 + 4)  # 4.3 GB in BF16 and 8.6 GB in FP32
    masks = 512 * positions * 2  # of the layers without an attention window
    assert tensors.bytes(positions) == 12_891_193_344 + masks + 5 * 262_144 * 2 + tensors.fresh


def test_fused_attention_has_copies_of_keys_and_values() -> None:
    tensors = _tensors(CODER, rows=8, k=8)
    copies, logits, fresh = 2 * 8 * 4 * 128 * 2, 8 * 9 * 151_936 * 2, 48 * 2 * 512 * 4 * 128 * 2
    assert tensors == PassTensors(
        masks=512 * 2, scores=0, copies=copies, experts=0, logits=logits, at_end=0, fresh=fresh
    )


def test_new_keys_and_values_of_all_layers_wait_for_the_end_of_the_pass() -> None:
    tensors = _tensors("gemma-4-31b", rows=8)
    assert tensors.fresh == 2 * 512 * 2 * (50 * 16 * 256 + 10 * 4 * 512) == 461_373_440
    assert tensors.bytes(32_832) - replace(tensors, fresh=0).bytes(32_832) == tensors.fresh
    assert _tensors("gemma-4-31b", rows=64, k=8).fresh == 64 * 9 * tensors.fresh // 512


def test_sinks_add_eight_dimensions_to_the_copies() -> None:
    assert _tensors("gpt-oss-120b").copies == 2 * 8 * (64 + 8) * 2


def test_layers_with_an_attention_window_need_little_more_than_it() -> None:
    tensors = _tensors("gemma-4-31b", rows=8)
    size = 512 * 2 + 2 * 8 * 16 * 256 * 2
    assert tensors.windowed == {1024 + 512: size}
    assert tensors.scratch_bytes(131_136) == 131_136 * (tensors.masks + tensors.scores) + tensors.fresh
    alone = replace(tensors, masks=0, scores=0, copies=0, at_end=0, fresh=0)
    assert alone.scratch_bytes(131_136) == alone.scratch_bytes(1536) == 1536 * size
    assert alone.scratch_bytes(1000) == 1000 * size


def test_wide_rounds_need_more_than_a_prompt_chunk() -> None:
    few, many = _tensors("gemma-4-31b", rows=56, k=8), _tensors("gemma-4-31b", rows=64, k=8)
    assert (few.scores, few.masks) == (32 * 512 * 6, 512 * 2)
    assert (many.scores, many.masks) == (32 * 576 * 6, 576 * 2)


def test_probabilities_of_drafts_are_in_fp32_over_the_whole_vocabulary() -> None:
    tensors, alone = _tensors(CODER, rows=64, k=7, drafts="in one pass"), _tensors(CODER, rows=64, k=7)
    assert tensors.at_end == 64 * 7 * 151_936 * 4 == 272_269_312
    assert tensors.logits == alone.logits + 64 * 7 * 151_936 * 2
    # They use the memory of the layers, which short caches do not need.
    assert tensors.bytes(128) == tensors.logits + tensors.at_end + tensors.fresh
    assert tensors.bytes(32_832) == tensors.logits + (tensors.masks + tensors.copies) * 32_832 + tensors.fresh


def test_a_chain_of_passes_has_no_probabilities() -> None:
    assert _tensors(CODER, rows=64, k=7, drafts="one by one").at_end == 0


def test_a_head_may_have_more_placeholders_and_key_heads_than_the_target_has() -> None:
    tensors = _tensors(CODER, rows=64, k=8, drafts="in one pass", caches=8)
    assert tensors.masks == 64 * 2 * 8 * 2
    assert tensors.copies == 2 * 64 * 8 * 128 * 2


def test_without_drafts_a_head_needs_nothing() -> None:
    assert _tensors(CODER, k=0, drafts="in one pass") == _tensors(CODER, k=0)


def test_logits_with_a_soft_cap_are_there_twice() -> None:
    assert _tensors("gemma-4-31b", rows=8).at_end == _tensors("gemma-4-31b", rows=8).logits == 8 * 5 * 262_144 * 2


def test_dense_experts_have_the_outputs_of_every_expert() -> None:
    tensors = _tensors(CODER, lowering="tensorrt")
    assert tensors.experts == 128 * 512 * (768 + 2048) * 2  # 369 MB
    assert tensors.bytes(2112) == tensors.logits + tensors.experts + 512 * 2 * 2112 + tensors.fresh
    assert _tensors("gemma-4-31b", lowering="tensorrt").experts == 0  # has none
