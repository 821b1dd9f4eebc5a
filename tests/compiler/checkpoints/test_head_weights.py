"""Fused projections of a head are split; if the fused rows are ambiguous, the head stays unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from peagle.compiler.checkpoints.head_weights import open_head
from peagle.graphs.drafters import read_drafter
from peagle.graphs.drafters.tensor_layout import rows_of_fused
from tests.heads import FORMS

FUSED = {"self_attn.qkv_proj": "qkv", "mlp.gate_up_proj": ("gate", "up")}


def fused(tensors: dict[str, Any]) -> dict[str, Any]:
    """The tensors as vLLM holds them: queries, keys and values in one, gate and up in one."""
    result = dict(tensors)
    for key in tensors:
        for name, parts in FUSED.items():
            block = name.partition(".")[0]
            first = f".{block}.{parts[0]}_proj."
            if first in key:
                keys = [key.replace(first, f".{block}.{part}_proj.") for part in parts]
                result[key.replace(first, f".{name}.")] = torch.cat([result.pop(each) for each in keys])
    return result


@pytest.mark.parametrize("prefix", ["", "model."])
@pytest.mark.parametrize("form", FORMS)
def test_a_head_with_fused_projections_has_the_weights_of_the_head(tmp_path: Path, form: str, prefix: str) -> None:
    head = FORMS[form].make()
    stored = {prefix + name: tensor.contiguous() for name, tensor in fused(head.tensors).items()}
    assert sum("qkv_proj.weight" in name or "gate_up_proj.weight" in name for name in stored) == 2 * FORMS[form].layers
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(head.config))
    checkpoint = open_head(tmp_path)
    spec = read_drafter(checkpoint.config, checkpoint.shapes, head.target)
    assert (spec.parts, spec.unread) == (head.spec.parts, ())
    for name, tensor in head.weights().items():
        key = spec.keys[name]
        np.testing.assert_array_equal(checkpoint.read(key), tensor.numpy(), name)
        np.testing.assert_array_equal(np.concatenate(list(checkpoint.pieces(key, 1))), tensor.numpy(), name)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 5), st.sampled_from(["weight", "bias"]))
def test_the_rows_of_a_fused_tensor_are_cut_without_gap_or_overlap(q: int, kv: int, odd: int, kind: str) -> None:
    rows = q + 2 * kv + odd
    key = f"midlayer.self_attn.qkv_proj.{kind}"
    found = rows_of_fused({key: (rows, 7), "midlayer.self_attn.o_proj.weight": (7, q)})
    assert bool(found) == (odd % 2 == 0)
    spans = [found[f"midlayer.self_attn.{part}_proj.{kind}"] for part in "qkv"] if found else []
    assert [span[0] for span in spans] == [key] * len(spans)
    edges = [edge for span in spans for edge in span[1:]]
    assert edges == ([0, q, q, (q + rows) // 2, (q + rows) // 2, rows] if found else [])


@pytest.mark.parametrize(
    "shapes",
    [
        {"a.mlp.gate_up_proj.weight": (5, 4)},
        {"a.mlp.gate_up_proj.weight": ()},
        {"a.mlp.gate_up_proj.weight": (0, 4)},
        {"a.mlp.gate_up_proj.weight": (8, 4), "a.mlp.up_proj.weight": (4, 4)},
        {"a.self_attn.qkv_proj.weight": (8, 4)},
        {"a.self_attn.qkv_proj.weight": (8, 4), "a.self_attn.o_proj.weight": (4,)},
        {"a.self_attn.qkv_proj.weight": (8, 4), "a.self_attn.o_proj.weight": (4, 8)},
        {"a.self_attn.qkv_proj.weight": (8, 4), "a.self_attn.o_proj.weight": (4, 0)},
    ],
)
def test_unsliceable_tensor_is_returned_whole(shapes: dict[str, tuple[int, ...]]) -> None:
    assert rows_of_fused(shapes) == {}
