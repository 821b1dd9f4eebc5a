"""The rotary table of Gemma-4 in a GGUF file: the share of rotated frequencies, and refusals."""

import pytest

from peagle.graphs.targets.gemma4_gguf import NAMING
from peagle.graphs.targets.gguf_naming import GgufFacts
from peagle.plugins.errors import BuildError

SAID = {"block_count": 2, "attention.sliding_window_pattern": [1, 0], "attention.head_count_kv": [2, 1]}
NAMES = frozenset({"blk.0.attn_v.weight", "blk.1.attn_v.weight"})


def test_divisors_give_the_share_of_frequencies_that_rotate() -> None:
    rope = NAMING.entries(GgufFacts(SAID, NAMES, (1.0, 1e30, 1e30, 1e30)))["rope_parameters"]
    assert rope["full_attention"]["partial_rotary_factor"] == 0.25


@pytest.mark.parametrize(
    ("divisors", "complaint"),
    [
        ((), "rope_freqs.weight is missing, or is not one row of F32 values"),
        ((1.0, 8.0, 1e30), "rope_freqs.weight has the value 8"),
        ((1.0, float("nan")), "rope_freqs.weight has the value nan"),
        ((1e30, 1e30), "rope_freqs.weight has no value that is 1"),
    ],
)
def test_other_divisors_are_refused_with_a_reason(divisors: tuple[float, ...], complaint: str) -> None:
    with pytest.raises(BuildError, match=complaint) as caught:
        NAMING.entries(GgufFacts(SAID, NAMES, divisors))
    assert caught.value.why
    assert "safetensors" in caught.value.fix


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("blk.3.ffn_gate_inp.scale", "model.layers.3.router.scale"),
        ("blk.3.ffn_down_exps.scale", "model.layers.3.router.per_expert_scale"),
        ("blk.3.ffn_gate_up_exps.weight", "model.layers.3.experts.gate_up_proj"),
        ("blk.3.ffn_gate_inp.weight", "model.layers.3.router.proj.weight"),
        ("blk.3.ffn_up.scale", None),
        ("ffn_gate_inp.scale", None),
        ("blk.3.ffn_gate_exps.weight", None),
    ],
)
def test_router_and_experts_have_the_model_s_names(name: str, canonical: str | None) -> None:
    assert NAMING.canonical(name) == canonical
    assert NAMING.stack(name) is NAMING.expert(name) is None
