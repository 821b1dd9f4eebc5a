"""The values of a target's configuration: invalid ones are refused at once, by name."""

from __future__ import annotations

import copy
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs.targets import family_for
from peagle.graphs.targets.skeleton import Skeleton
from peagle.plugins.errors import BuildError
from tests.models import CONFIGS


def changed(family: str, change: dict[str, Any]) -> dict[str, Any]:
    """The tiny configuration of a family with other entries in its decoder's part."""
    config = copy.deepcopy(CONFIGS[family])
    config.get("text_config", config).update(change)
    return config


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(BuildError) as caught:
        family_for(config).describe(config, "somewhere/config.json")
    return str(caught.value)


@pytest.mark.parametrize("family", list(CONFIGS))
@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; the limit is 1000"),
        ({"hidden_size": 2**40}, "hidden_size is 1099511627776; the limit is 262144"),
        ({"vocab_size": 10**30}, "vocab_size is 1000000000000000000000000000000; "),
        ({"hidden_size": None, "vocab_size": None}, "lacks hidden_size, vocab_size"),
        ({"max_position_embeddings": "48"}, "max_position_embeddings must be a positive integer, not '48'"),
        ({"max_position_embeddings": []}, "max_position_embeddings must be a positive integer, not []"),
        ({"max_position_embeddings": {}}, "max_position_embeddings must be a positive integer, not {}"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a number"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps must be a number"),
        ({"head_dim": 15}, "head_dim is 15, but"),
        ({"num_key_value_heads": 3}, "4 query heads cannot share 3 key heads"),
        ({"layer_types": 3}, "layer_types must be a list of names, not 3"),
        ({"layer_types": ["full_attention", 7]}, "layer_types must be a list of names"),
        ({"layer_types": ["full_attention"]}, "layer_types lists 1 layer, but num_hidden_layers is 7"),
        ({"layer_types": ["chunked_attention"] * 7}, "layer_types has chunked_attention"),
        ({"rope_parameters": []}, "rope_parameters must be an object, not []"),
        (
            {"rope_parameters": {"rope_type": "banana"}},
            "RoPE type 'banana' of rope_parameters is not supported; the supported types are default",
        ),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, "is not supported; the supported types are default"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "x"}}, "rope_theta must be a positive number"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta must be a positive number, not 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "must be a positive number, not -1"),
        ({"rope_theta": 10**400}, "config entry rope_theta must be a positive number"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' needs a positive factor, not None"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 0}}, "'linear' needs a positive factor, not 0"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "depend on the sequence length"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5"),
        ({"is_causal": False}, "support only causal attention"),
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention 'all'"),
        ({"use_bidirectional_attention": True}, "support only causal attention"),
        ({"per_layer_config": {"9": {"head_dim": 32}}}, "must be layers from 0 to 6"),
        ({"per_layer_config": {"1": {"sliding_window": 4}}}, "sets sliding_window"),
        ({"per_layer_config": 5}, "must map layers to objects"),
        ({"per_layer_config": ""}, "must map layers to objects"),
    ],
)
def test_a_value_that_cannot_be_is_named(family: str, change: dict[str, Any], says: str) -> None:
    message = refusal(changed(family, change))
    assert says in message
    assert message.startswith("somewhere/config.json")


@pytest.mark.parametrize(
    ("family", "change", "says"),
    [
        ("qwen3-moe", {"decoder_sparse_step": 0}, "decoder_sparse_step must be a positive integer, not 0"),
        ("qwen3-moe", {"num_experts_per_tok": 7}, "7 experts per token, but only 6 experts"),
        ("qwen3-moe", {"mlp_only_layers": ["3"]}, "mlp_only_layers must be a list of layer ids"),
        ("qwen3-moe", {"num_experts": 4096, "num_hidden_layers": 999}, "999 layers of 4096 experts"),
        ("gpt-oss", {"num_experts_per_tok": 7}, "7 experts per token, but only 6 experts"),
        ("gpt-oss", {"swiglu_limit": 0}, "swiglu_limit must be a positive number, not 0"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 7, "sliding_window": 8}, "has sliding_attention"),
        ("llama", {"layer_types": ["sliding_attention"] * 7}, "has sliding_attention"),
        ("gemma-4", {"final_logit_softcapping": 0}, "final_logit_softcapping must be a positive number"),
        ("gemma-4", {"per_layer_config": {"1": {"head_dim": "x"}}}, "per_layer_config.1.head_dim must be a positive"),
        ("gemma-4", {"per_layer_config": {"1": {}, "01": {}}}, "must be layers from 0 to 6"),
        ("gemma-4", {"hidden_size_per_layer_input": 8}, "it has per-layer embeddings"),
        ("gemma-4", {"enable_moe_block": True}, "lacks num_experts, top_k_experts, moe_intermediate_size"),
        ("gemma-4-moe", {"top_k_experts": 7}, "7 experts per token, but only 6 experts"),
        ("gemma-4-moe", {"moe_intermediate_size": 0}, "moe_intermediate_size must be a positive integer"),
    ],
)
def test_a_value_that_a_family_cannot_have_is_named(family: str, change: dict[str, Any], says: str) -> None:
    assert says in refusal(changed(family, change))


def test_all_problems_are_reported_together() -> None:
    message = refusal(changed("llama", {"hidden_size": "48", "vocab_size": -1, "attention_bias": "no"}))
    for says in ("hidden_size", "vocab_size", "attention_bias must be true or false", "(3 problems)"):
        assert says in message


@pytest.mark.parametrize("architectures", [5, {}, "LlamaForCausalLM", [["LlamaForCausalLM"]], [None]])
def test_invalid_architectures_list_is_rejected(architectures: Any) -> None:
    with pytest.raises(BuildError, match="unsupported target architecture"):
        family_for({"architectures": architectures})


def test_non_object_decoder_is_rejected() -> None:
    assert "text_config must be an object, not [1]" in refusal_of_text([1])


def refusal_of_text(text: Any) -> str:
    config = CONFIGS["gemma-4"] | {"text_config": text}
    with pytest.raises(BuildError) as caught:
        family_for(config).describe(config)
    return str(caught.value)


ODD = st.sampled_from([
    None, True, 0, 1, -1, 2, 7, 2**31, 2**70, 10**400, 0.5, float("nan"), float("inf"), "", "48", "default", [], [1],
    {}, {"rope_type": "yarn"}, {"rope_type": "llama3", "factor": 4}, ["full_attention"] * 7, ["sliding_attention"] * 7,
])  # fmt: skip
ENTRIES = sorted({name for config in CONFIGS.values() for name in (*config, *config.get("text_config", ()))} | {
    "rope_theta", "rope_scaling", "mlp_bias", "pad_token_id", "hidden_act", "per_layer_config", "dtype", "is_causal",
    "use_sliding_window", "initializer_range", "attention_dropout", "partial_rotary_factor", "return_dict",
} - {"architectures"})  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(family=st.sampled_from(sorted(CONFIGS)), change=st.dictionaries(st.sampled_from(ENTRIES), ODD, max_size=3))
def test_any_configuration_is_described_or_rejected(family: str, change: dict[str, Any]) -> None:
    config = changed(family, change)
    with suppress(BuildError):
        family_for(config).describe(config)


@settings(max_examples=60, deadline=None)
@given(family=st.sampled_from(sorted(CONFIGS)), name=st.sampled_from(ENTRIES), value=ODD)
def test_described_configuration_builds_or_is_rejected(family: str, name: str, value: Any) -> None:
    """Also for what only transformers or torch look at, with errors of their own."""
    config = changed(family, {"num_hidden_layers": 1, "layer_types": None, name: value})
    with suppress(BuildError):
        family_for(config).describe(config)
        assert Skeleton(config).shapes


@pytest.mark.parametrize(
    ("change", "longest"),
    [
        ({}, 256),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200}}, 800),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}}, 256),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}, 256),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, 256),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.5, "original_max_position_embeddings": 201}}, 502),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 256),
    ],
)
def test_yarn_extends_the_longest_sequence(change: dict[str, Any], longest: int) -> None:
    config = CONFIGS["qwen3"] | change
    assert family_for(config).describe(config).max_position_embeddings == longest
