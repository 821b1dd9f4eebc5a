"""A tiny GPT-OSS whose widths are multiples of 32, with experts in MXFP4 blocks or the same unquantized layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from checkpoint_formats import encode, quantization_config
from safetensors.torch import save_file

from peagle.graphs.targets.skeleton import Skeleton
from tests.models import CONFIGS

STACKS = ("gate_up_proj", "down_proj")


def write_gpt_oss(folder: Path, *, packed: bool) -> Path:
    """Write the checkpoint; ``packed`` stores the experts in MXFP4."""
    config: dict[str, Any] = CONFIGS["gpt-oss"] | {"hidden_size": 64, "intermediate_size": 64}
    draw, stored = torch.Generator().manual_seed(0), {}
    for name, shape in Skeleton(config).shapes.items():
        values = 0.1 * torch.randn(shape, generator=draw)
        if not name.endswith(STACKS):
            stored[name] = values
        else:
            stored |= encode(name, values, "mxfp4") if packed else {name: values.mT.contiguous()}
    save_file(stored, folder / "model.safetensors")
    described = {"quantization_config": quantization_config("mxfp4")} if packed else {}
    (folder / "config.json").write_text(json.dumps(config | described))
    return folder
