"""Names in a graph: composed and parsed."""

from __future__ import annotations

import pytest

from peagle.graphs.names import layer_of, layer_prefix, module_of, weight_name


@pytest.mark.parametrize("index", [0, 7, 59])
def test_layer_number_is_parsed_from_names(index: int) -> None:
    name = weight_name(f"{layer_prefix(index)}self_attn.q_proj")
    assert layer_of(name) == index
    assert module_of(name) == f"{layer_prefix(index)}self_attn.q_proj"


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight", "model.layers"])
def test_a_name_outside_of_all_layers_has_no_layer(name: str) -> None:
    assert layer_of(name) is None
