"""The largest tensors of a pass, of the targets that are known, by hand."""

from __future__ import annotations

from peagle.compiler.checkpoints.resolve_names import target_config
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.resources.pass_tensors import PassTensors, pass_tensors
from peagle.graphs.targets import family_for
from peagle.graphs.targets.skeleton import Skeleton

BF16 = RECIPES["fp8"].on("bf16")


def _tensors(model: str, rows: int = 1, k: int = 4) -> PassTensors:
    config = target_config(model)[0]
    family = family_for(config)
    census = Skeleton(config).weights
    return pass_tensors(family.describe(config), family.text(config), census, BF16, rows=rows, num_speculative_tokens=k)


def test_attention_with_heads_above_256_has_its_scores_in_memory() -> None:
    tensors, positions = _tensors("gemma-4-31b"), 131_136
    assert tensors.scores * positions == 32 * 512 * positions * (2 + 4)  # 4.3 GB in BF16 and 8.6 GB in FP32
    assert tensors.bytes(positions) == 12_891_193_344 + 5 * 262_144 * 2


def test_fused_attention_has_copies_of_keys_and_values() -> None:
    tensors = _tensors("qwen3-coder-30b", rows=8, k=8)
    assert tensors == PassTensors(scores=0, copies=2 * 8 * 4 * 128 * 2, logits=8 * 9 * 151_936 * 2)


def test_sinks_add_eight_dimensions_to_the_copies() -> None:
    assert _tensors("gpt-oss-120b") == PassTensors(scores=0, copies=2 * 8 * (64 + 8) * 2, logits=5 * 201_088 * 2)


def test_wide_rounds_need_more_than_a_prompt_chunk() -> None:
    few, many = _tensors("gemma-4-31b", rows=56, k=8), _tensors("gemma-4-31b", rows=64, k=8)
    assert few.scores == 32 * 512 * 6
    assert many.scores == 32 * 576 * 6
