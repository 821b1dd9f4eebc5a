"""One skeleton is shared: tracing and calibration change a copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from torch import nn

from peagle.graphs.targets import family_for
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.trace import trace_target
from tests.models import CONFIGS


def described(model: nn.Module) -> dict[str, object]:
    """Everything of a model that a trace or a calibration changes in its own."""
    modules = {f"{name}:": type(module).__name__ for name, module in model.named_modules()}
    tensors = {name: (tuple(t.shape), t.dtype, t.device.type) for name, t in model.state_dict().items()}
    hooks = {f"{name} hooks": len(module._forward_pre_hooks) for name, module in model.named_modules()}
    config = model.config
    return modules | tensors | hooks | {"attention": config._attn_implementation, "config": config.to_dict()}


def short(config: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """A config of the first layers alone, one of each kind: all that a trace changes is in each."""
    family = family_for(config)
    text = family.keeping(config, range(layers))
    return text if family.text(config) is config else dict(config) | {"text_config": text}


@pytest.mark.parametrize(
    ("family", "layers"),
    [("gpt-oss", 1), ("gemma-4", 2)],  # turned experts; a buffer that the family computes
)
def test_trace_does_not_modify_the_skeleton(family: str, layers: int) -> None:
    config = short(CONFIGS[family], layers)
    skeleton = Skeleton(config)
    before, shapes = described(skeleton.modules()), dict(skeleton.shapes)
    trace_target(skeleton, skeleton.family.describe(config).with_taps(tuple(range(layers))))
    assert described(skeleton.modules()) == before
    assert Skeleton(config).shapes == skeleton.shapes == shapes


def test_returned_skeleton_can_be_modified() -> None:
    skeleton = Skeleton(CONFIGS["gpt-oss"])
    handed = skeleton.modules()
    handed.config._attn_implementation = "another"
    handed.lm_head = nn.Identity()  # type: ignore[assignment]
    assert isinstance(skeleton.modules().lm_head, nn.Linear)
    assert skeleton.modules().config._attn_implementation != "another"
    assert "lm_head.weight" in skeleton.shapes


def test_experts_are_turned_for_a_trace_only() -> None:
    skeleton, name = Skeleton(CONFIGS["gpt-oss"]), "model.layers.0.mlp.experts.gate_up_proj"
    as_stored, traced = skeleton.modules().state_dict()[name], skeleton.modules_for_tracing().state_dict()[name]
    assert tuple(traced.shape) == tuple(as_stored.mT.shape) == skeleton.shapes[name]
