"""A head is read from its config and shapes, and all mismatches are reported at once."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.graphs.drafters import read_drafter, unknown_architectures
from peagle.graphs.targets import TargetSpec, family_for
from peagle.graphs.targets.skeleton import Skeleton
from peagle.plugins.errors import BuildError
from peagle.plugins.graph_contract import MAX_DRAFTS
from tests.models import CONFIGS, VOCAB, head_tensors

CONFIG: dict[str, Any] = {
    "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB, "ptd_token_id": 1,
}  # fmt: skip


@pytest.fixture
def target() -> TargetSpec:
    return family_for(CONFIGS["qwen3"]).describe(CONFIGS["qwen3"])


@pytest.fixture
def shapes() -> dict[str, tuple[int, ...]]:
    tensors = head_tensors(torch.Generator().manual_seed(0), VOCAB)
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def test_a_fitting_head_is_read(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    head = read_drafter(CONFIG, shapes, target)
    assert (head.num_layers, head.mask_token_id, head.taps, head.trained_depth) == (2, 1, (2, 3, 4), None)
    assert not head.has_draft_vocabulary


def test_layer_names_of_both_layouts_are_understood(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    renamed = {"model." + n.replace("midlayer.", "layers.0."): s for n, s in shapes.items()}
    flat, other = read_drafter(CONFIG, shapes, target), read_drafter(CONFIG, renamed, target)
    assert flat.expected_shapes() == other.expected_shapes()
    assert set(flat.keys) == set(other.keys)


def refusal(config: dict[str, Any], shapes: dict[str, tuple[int, ...]], target: TargetSpec) -> str:
    with pytest.raises(BuildError) as caught:
        read_drafter(config, shapes, target)
    return str(caught.value)


def test_every_misfit_is_named_at_once(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    del shapes["norm.weight"]
    shapes["lm_head.weight"] = (VOCAB, 50)
    shapes["surprise.weight"] = (3,)
    message = refusal(CONFIG | {"target_hidden_size": 64, "vocab_size": VOCAB + 1}, shapes, target)
    for part in ("hidden size 64", f"{VOCAB + 1}", "norm.weight is missing", "lm_head.weight has", "surprise.weight"):
        assert part in message


def test_rows_that_do_not_divide_into_heads_are_refused(shapes: dict[str, tuple[int, ...]], target: TargetSpec) -> None:
    config = {name: value for name, value in CONFIG.items() if not name.startswith("num_attention")}
    rows = shapes["midlayer.self_attn.q_proj.weight"][0]
    message = refusal(config | {"head_dim": rows - 2}, shapes, target)
    assert f"q_proj has {rows} rows, which is not a multiple of head_dim {rows - 2}" in message


# Contradictions that do not hide one another: config entries, tensors (None: taken away), and what the refusal says.
CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, tuple[int, ...] | None], str]] = [
    ({"architectures": ["MambaForCausalLM"]}, {"mask_hidden": None}, "architecture MambaForCausalLM"),
    ({"hidden_size": 64}, {}, "hidden_size 64, but the tensors have 48"),
    ({"intermediate_size": 0}, {}, "intermediate_size must be a positive integer"),
    ({"num_hidden_layers": 3}, {}, "num_hidden_layers 3, but the tensors have 2"),
    ({"num_key_value_heads": 4}, {}, "4 heads of head_dim 16, but k_proj has 32 rows"),
    ({"vocab_size": VOCAB + 1}, {}, f"vocab_size {VOCAB + 1}, but the tensors have {VOCAB}"),
    ({"target_hidden_size": 72}, {}, "hidden size 72, but this target has 48"),
    ({"ptd_token_id": VOCAB}, {}, "outside the vocabulary"),
    ({"eagle_aux_hidden_state_layer_ids": [4, 2]}, {}, "ascending"),
    ({"attention_bias": True}, {}, "attention_bias true, but there is no bias"),
    ({"mlp_bias": False}, {f"{at}.mlp.up_proj.bias": (80,) for at in ("midlayer", "layers.1")}, "there is a bias"),
    ({"norm_before_fc": True}, {}, "norm_before_fc true, but there is no tensor input_norm.weight"),
    ({"eagle_config": {"fc_norm": False}}, {f"fc_norm.{i}.weight": (48,) for i in range(3)}, "fc_norm false, but"),
    ({"model_type": "qwen3"}, {}, "q_norm and k_norm"),
    ({"norm_before_residual": "no"}, {}, "norm_before_residual must be true or false"),
    ({"use_sliding_window": True}, {}, "has no layer_types"),
    ({"rope_scaling": {"rope_type": "longrope"}}, {}, "'longrope' is not supported"),
    ({"hidden_act": "gelu"}, {}, "hidden_act 'gelu'"),
    ({"rms_norm_eps": -1.0}, {}, "rms_norm_eps"),
    ({"num_speculative_tokens": 1_000_000}, {}, f"the kernels support at most {MAX_DRAFTS}"),
    ({}, {"norm.weight": None}, "norm.weight is missing"),
    ({}, {"layers.1.self_attn.k_proj.weight": (32, 40)}, "k_proj.weight has shape [32, 40], but [32, 48] is required"),
    ({}, {"t2d": (7,)}, "t2d has shape [7], but [96] is required"),
]  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=st.sets(st.integers(0, len(CONTRADICTIONS) - 1), min_size=1))
def test_any_set_of_contradictions_is_named_whole(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]], chosen: set[int]
) -> None:
    config, tensors = dict(CONFIG), dict(shapes)
    for i in chosen:
        config |= CONTRADICTIONS[i][0]
        tensors = {n: s for n, s in (tensors | CONTRADICTIONS[i][1]).items() if s is not None}
    message = refusal(config, tensors, target)
    assert [says for _, _, says in (CONTRADICTIONS[i] for i in chosen) if says not in message] == []


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats() | st.sampled_from(["yarn", "llama3", "1", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rope_type", "factor", "rope_theta", "fc_norm", "hidden_size"]), inner)
    ),
    max_leaves=5,
)
ENTRIES = sorted({
    *CONFIG, *(name for change, _, _ in CONTRADICTIONS for name in change), "layer_types", "sliding_window",
    "rope_theta", "rope_parameters", "transformer_layer_config", "speculators_config", "num_speculative_tokens",
    "draft_vocab_size", "parallel_draft_step", "partial_rotary_factor", "speculators_model_type",
})  # fmt: skip


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=st.dictionaries(st.sampled_from(ENTRIES), JSON, max_size=4))
def test_any_config_is_read_or_rejected(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]], change: dict[str, Any]
) -> None:
    with suppress(BuildError):
        read_drafter(CONFIG | change, shapes, target)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_tensor_shapes_are_read_or_rejected(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]], data: st.DataObject
) -> None:
    names = st.sampled_from([*sorted(shapes), "d2t", "t2d", "fc_norm.0.weight", "layers.999999999.mlp.up_proj.bias"])
    any_shape = st.lists(st.integers(0, 200), max_size=3).map(tuple)
    change = data.draw(st.dictionaries(names, any_shape, min_size=1, max_size=5))
    with suppress(BuildError):
        read_drafter(data.draw(st.sampled_from([{}, CONFIG])), shapes | change, target)


def test_head_with_mask_token_but_no_mask_hidden_is_identified(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]]
) -> None:
    del shapes["mask_hidden"]
    assert "mean of the target's features" in refusal(CONFIG, shapes, target)
    for config in ({"parallel_drafting": True}, {"speculators_model_type": "peagle"}):
        assert "mean of the target's features" in refusal(CONFIG | {"ptd_token_id": None} | config, shapes, target)
    assert read_drafter(CONFIG | {"ptd_token_id": None}, shapes, target).strategy == "autoregressive"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ptd_token_id": None}, "no mask token id"),
        ({"ptd_token_id": "<mask>"}, "must be a number"),
        ({"mask_token_id": 2}, "several mask token ids: mask_token_id 2, ptd_token_id 1"),
        ({"hidden_size": "48"}, "hidden_size must be a positive integer"),
        ({"hidden_size": True}, "hidden_size must be a positive integer"),
        ({"draft_vocab_size": 10}, "draft_vocab_size 10, but the tensors have 96"),
        ({"head_dim": 10}, "head_dim 10, but q_proj has 64 rows"),
        ({"head_dim": None, "num_attention_heads": 5}, "head_dim is unknown"),
        ({"head_dim": None, "num_attention_heads": 64}, "head_dim is 1, but"),
        ({"num_attention_heads": 2, "head_dim": 32, "num_key_value_heads": 1}, None),
        ({"eagle_aux_hidden_state_layer_ids": [2, 2, 4]}, "ascending"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 7]}, "are invalid for a target of 7 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3]}, r"2 taps \[2, 3\], but fc.weight reads 3"),
        ({"eagle_aux_hidden_state_layer_ids": "2,3,4"}, "list of layer ids"),
        ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}, None),
        (
            {"eagle_aux_hidden_state_layer_ids": [2, 3, 4], "eagle_config": {"eagle_aux_hidden_state_layer_ids": [3]}},
            r"\[2, 3, 4\], but \[3\] in eagle_config",
        ),
        ({"target_hidden_size": 36}, "hidden size 36"),
        ({"target_hidden_size": 50}, "not a multiple of the hidden size 50"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "the target's last hidden state"),
        ({"eagle_config": {"parallel_draft_step": 4}}, "Model-Optimizer"),
        ({"eagle_config": 3}, "eagle_config must be an object"),
        ({"architectures": "LlamaForCausalLM"}, "list of names"),
        ({"speculators_model_type": "dflash"}, "speculators_model_type 'dflash'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic' is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "needs a positive factor"),
        ({"rope_scaling": {"type": "default", "mrope_section": [2, 3, 3]}}, "M-RoPE"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "per layer type"),
        ({"rope_theta": 5.0, "rope_parameters": {"rope_theta": 6.0}}, "rope_theta 5.0, but 6.0"),
        ({"rope_theta": "big"}, "rope_theta must be a positive number"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2.0}, "rope_parameters": {"rope_type": "default"}},
            "contradict",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"layer_types": ["full_attention"]}, "types of 2 layers"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "chunked_attention are not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "no sliding_window"),
        (
            {"layer_types": ["sliding_attention"] * 2, "sliding_window": 4, "use_sliding_window": False},
            "use_sliding_window false",
        ),
        ({"sliding_window": 4096, "use_sliding_window": False}, None),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]], change: dict[str, Any], says: str | None
) -> None:
    if says is None:
        read_drafter(CONFIG | change, shapes, target)
        return
    with pytest.raises(BuildError, match=says):
        read_drafter(CONFIG | change, shapes, target)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"fc.weight": (48, 240)}, "reads 5 taps, but the config does not list their layers"),
        ({"fc.weight": (48, 145)}, "not a multiple of the hidden size 48"),
        ({"mask_hidden": (96,)}, r"mask_hidden has shape \[1, 1, 96\], but \[1, 1, 144\] is required"),
        ({"lm_head.weight": (10, 48)}, "10 of 96 tokens needs a d2t tensor"),
        ({"lm_head.weight": None, "d2t": (VOCAB,)}, r"lm_head.weight is missing: .* without d2t"),
        ({"input_norm.weight": (144,), "fc_norm.0.weight": (48,)}, "cannot both be present"),
        ({"fc_norm.0.weight": (48,), "fc_norm.1.weight": (48,)}, "2 fc_norm tensors, one per tap"),
        ({"layers.1.self_attn.q_norm.weight": (16,)}, "layers.0.self_attn.q_norm.weight is missing"),
        ({"midlayer.self_attn.q_proj.bias": (64,)}, "layers.1.self_attn.q_proj.bias is missing"),
        ({"layers.3.input_layernorm.weight": (48,)}, "layers.3.input_layernorm.weight does not belong to any known"),
        ({"layers.0.hidden_norm.weight": (48,)}, "and midlayer.hidden_norm.weight are both names of"),
        ({"parallel_draft_heads.0.medusa_layers.0.linear.weight": (48, 48)}, "Model-Optimizer"),
        ({"fc.bias": (48,), "fc.weight": None}, "fc.bias does not belong to any known kind of head"),
    ],
)  # fmt: skip
def test_tensors_that_do_not_fit_are_refused(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]], change: dict[str, tuple[int, ...] | None], says: str
) -> None:
    changed = {name: shape for name, shape in (shapes | change).items() if shape is not None}
    with pytest.raises(BuildError, match=says):
        read_drafter(CONFIG, changed, target)


def test_fused_projections_are_named_and_not_reported_missing(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]]
) -> None:
    for name in ("q", "k", "v"):
        del shapes[f"midlayer.self_attn.{name}_proj.weight"]
    shapes["midlayer.self_attn.qkv_proj.weight"] = (128, 96)
    message = refusal(CONFIG, shapes, target)
    assert "(1 problem)" in message
    assert "is fused: store q_proj, k_proj, v_proj as separate tensors" in message


def test_unknown_tensors_are_ignored_if_the_rest_is_complete(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]]
) -> None:
    whole = read_drafter(CONFIG, shapes, target)
    strange = {"model.surprise.weight": (3,), "fc.bias": (48,), "layers.1.self_attn.qkv_proj.weight": (128, 48)}
    head = read_drafter(CONFIG, shapes | strange, target)
    assert head.unread == ("fc.bias", "layers.1.self_attn.qkv_proj.weight", "model.surprise.weight")
    assert (whole.unread, head.expected_shapes()) == ((), whole.expected_shapes())
    del shapes["norm.weight"]
    message = refusal(CONFIG, shapes | strange, target)
    assert all(name.removeprefix("model.") in message for name in ("norm.weight", *strange))


@pytest.mark.parametrize("names", [["OwnHeadForCausalLM"], ["A", "B"], [""]])
def test_unknown_architecture_is_inferred_from_tensors(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]], names: list[str]
) -> None:
    known = read_drafter(CONFIG, shapes, target)
    assert read_drafter(CONFIG | {"architectures": names}, shapes, target) == known
    assert unknown_architectures(names) == ", ".join(names)
    assert not unknown_architectures(["LlamaForCausalLMEagle3", *names])


@pytest.mark.parametrize(
    "stated",
    [
        {"dflash_config": {"mask_token_id": 5}}, {"dspark_noise_token_id": 5}, {"mask_token_id": 5},
        {"pard_token": "5"}, {"ptd_token_id": 5, "dflash_config": {"mask_token_id": 5, "block_size": 8}},
    ],
)  # fmt: skip
def test_the_mask_id_is_read_under_every_name_that_tools_gave_it(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]], stated: dict[str, Any]
) -> None:
    assert read_drafter(CONFIG | {"ptd_token_id": None} | stated, shapes, target).mask_token_id == 5
    with pytest.raises(BuildError, match="several mask token ids"):
        read_drafter(CONFIG | {"ptd_token_id": None, "mask_token_id": 6, "dspark_noise_token_id": 5}, shapes, target)


def test_mask_hidden_accepts_any_shape(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    for shape in ((144,), (1, 144), (3, 48)):
        assert read_drafter(CONFIG, shapes | {"mask_hidden": shape}, target).parts.mask_hidden


def test_a_mask_id_written_as_text_is_a_number(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    assert read_drafter(CONFIG | {"ptd_token_id": "1"}, shapes, target).mask_token_id == 1


def test_a_target_too_shallow_for_the_default_taps_is_refused_unless_the_head_names_others(
    shapes: dict[str, tuple[int, ...]],
) -> None:
    config = CONFIGS["qwen3"] | {"num_hidden_layers": 6}
    shallow = family_for(config).describe(config)
    with pytest.raises(BuildError, match="taps"):
        shallow.with_taps()
    with pytest.raises(BuildError, match="taps"):
        read_drafter(CONFIG, shapes, shallow)
    assert read_drafter(CONFIG | {"eagle_aux_hidden_state_layer_ids": [1, 3, 5]}, shapes, shallow).taps == (1, 3, 5)


def test_a_head_that_reads_the_last_layers_output_is_refused_as_such(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]]
) -> None:
    last = target.num_layers
    for entries in (
        {"eagle_aux_hidden_state_layer_ids": [2, 3, last]},
        {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, last - 1]}},
    ):
        with pytest.raises(BuildError, match=f"{last} means the output of the last layer") as caught:
            read_drafter(CONFIG | entries, shapes, target)
        assert "does not read the output of the target's last layer" in caught.value.fix


def test_unsupported_architecture_lists_supported_ones() -> None:
    with pytest.raises(BuildError, match=r"MambaForCausalLM[\s\S]*Qwen3ForCausalLM"):
        family_for({"architectures": ["MambaForCausalLM"]})
    with pytest.raises(BuildError, match="none named"):
        family_for({})


def test_a_rope_that_changes_with_length_is_refused() -> None:
    from peagle.graphs.trace import trace_target

    config = CONFIGS["llama"] | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}
    with pytest.raises(BuildError, match="dynamic"):
        trace_target(Skeleton(config), family_for(config).describe(config).with_taps())


def test_tables_that_a_head_leaves_out_are_its_targets(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    del shapes["embed_tokens.weight"]
    assert read_drafter(CONFIG, shapes, target).shared == ("embed_tokens.weight",)
    del shapes["lm_head.weight"]
    assert read_drafter(CONFIG, shapes, target).shared == ("embed_tokens.weight", "lm_head.weight")
    message = refusal(CONFIG | {"tie_word_embeddings": True}, shapes, target)
    assert "lm_head.weight is missing: the config ties this tensor to the head's embedding" in message
    wider = replace(target, hidden_size=64)
    message = refusal(CONFIG | {"target_hidden_size": 64}, shapes | {"fc.weight": (48, 192)}, wider)
    assert (
        "embed_tokens.weight is missing: a head may omit this tensor only for a target of the same hidden size"
        in message
    )
