"""A head is read from its config and shapes, and every misfit is named at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from peagle.graphs.families import TargetSpec, family_for
from peagle.graphs.heads import HeadSpec
from peagle.plugins.errors import BuildError
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
    head = HeadSpec.read(CONFIG, shapes, target)
    assert (head.num_layers, head.mask_token_id, head.taps, head.trained_depth) == (2, 1, (2, 3, 4), None)
    assert not head.has_draft_vocabulary


def test_layer_names_of_both_layouts_are_understood(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    renamed = {"model." + n.replace("midlayer.", "layers.0."): s for n, s in shapes.items()}
    flat, other = HeadSpec.read(CONFIG, shapes, target), HeadSpec.read(CONFIG, renamed, target)
    assert flat.expected_shapes() == other.expected_shapes()
    assert set(flat.keys) == set(other.keys)


def test_every_misfit_is_named_at_once(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    del shapes["norm.weight"]
    shapes["lm_head.weight"] = (VOCAB, 50)
    shapes["surprise.weight"] = (3,)
    with pytest.raises(BuildError) as caught:
        HeadSpec.read(CONFIG | {"target_hidden_size": 64, "vocab_size": VOCAB + 1}, shapes, target)
    message = str(caught.value)
    for part in ("hidden size 64", f"{VOCAB + 1}", "norm.weight is missing", "lm_head.weight is", "surprise.weight"):
        assert part in message


def test_a_head_without_mask_hidden_is_named_for_what_it_is(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]]
) -> None:
    del shapes["mask_hidden"]
    with pytest.raises(BuildError, match="autoregressive EAGLE-3 head"):
        HeadSpec.read(CONFIG, shapes, target)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"ptd_token_id": None}, "no mask token id"),
        ({"ptd_token_id": VOCAB}, "outside the vocabulary"),
        ({"hidden_size": 0}, "hidden_size must be a positive integer"),
        ({"hidden_size": "48"}, "hidden_size must be a positive integer"),
        ({"draft_vocab_size": 10}, "without a d2t tensor"),
        ({"fc_norm": True}, "fc_norm"),
        ({"eagle_config": {"norm_before_fc": True}}, "norm_before_fc"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 2, 4]}, "ascending"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3, 7]}, "do not fit a target of 7 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 3]}, "fc.weight"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    target: TargetSpec, shapes: dict[str, tuple[int, ...]], change: dict[str, Any], says: str
) -> None:
    with pytest.raises(BuildError, match=says):
        HeadSpec.read(CONFIG | change, shapes, target)


def test_a_mask_id_written_as_text_is_a_number(target: TargetSpec, shapes: dict[str, tuple[int, ...]]) -> None:
    assert HeadSpec.read(CONFIG | {"ptd_token_id": "1"}, shapes, target).mask_token_id == 1


def test_a_target_too_shallow_for_the_default_taps_is_refused() -> None:
    config = CONFIGS["qwen3"] | {"num_hidden_layers": 6}
    with pytest.raises(BuildError, match="taps"):
        family_for(config).describe(config)


def test_an_unsupported_architecture_names_those_that_are() -> None:
    with pytest.raises(BuildError, match=r"MambaForCausalLM[\s\S]*Qwen3ForCausalLM"):
        family_for({"architectures": ["MambaForCausalLM"]})
    with pytest.raises(BuildError, match="none named"):
        family_for({})


def test_a_rope_that_changes_with_length_is_refused() -> None:
    from peagle.graphs.trace import trace_target

    config = CONFIGS["llama"] | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}}
    with pytest.raises(BuildError, match="dynamic"):
        trace_target(config, family_for(config).describe(config))
