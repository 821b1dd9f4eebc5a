"""Tiny pairs whose target is stored in FP8, in the formats of published checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoint import Checkpoint
from peagle.graphs.families import family_for
from tests.models import Pair
from tools.checkpoint_formats import encode, hf_quant_config, quantization_config

LINEAR = re.compile(r"model\.(?:language_model\.)?layers\.\d+\..+\.(?:[qkvo]|gate|up|down)_proj\.weight")


def everything(_: str) -> bool:
    return True


def input_scale(name: str) -> float:
    """A number for the input of a weight; those of q, k and v differ, as they may in a checkpoint."""
    return {"q": 0.011, "k": 0.012, "v": 0.010, "o": 0.004}.get(name.rsplit(".", 2)[1][0], 0.009)


def fp8_target(
    source: Path,
    folder: Path,
    form: str = "modelopt-fp8",
    *,
    chosen: Callable[[str], bool] = everything,
    static: bool = True,
    **options: Any,
) -> Path:
    """A copy of a target with its ``chosen`` linears in FP8; ``options`` are those of ``encode``."""
    shutil.copytree(source, folder)
    stored: dict[str, torch.Tensor] = {}
    wide = ["lm_head"]
    for name, tensor in load_file(source / "model.safetensors").items():
        if LINEAR.fullmatch(name) and chosen(name):
            scale = {"input_scale": input_scale(name)} if static else {}
            stored |= encode(name, tensor, form, **scale, **options)
        else:
            stored[name] = tensor
            wide += [name.removesuffix(".weight")] if LINEAR.fullmatch(name) else []
    save_file({name: tensor.clone() for name, tensor in stored.items()}, folder / "model.safetensors")
    settings = {"block": options["block"]} if "block" in options else {}
    settings |= {"per_channel": True} if options.get("per_channel") else {}
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantization_config(form, static=static, excluded=wide, **settings)
    (folder / "config.json").write_text(json.dumps(config))
    if form == "modelopt-fp8":
        (folder / "hf_quant_config.json").write_text(json.dumps(hf_quant_config(excluded=wide)))
    return folder


def fp8_pair(pair: Pair, folder: Path, form: str = "modelopt-fp8", **options: Any) -> Pair:
    """``pair`` with its target in FP8."""
    return Pair(fp8_target(pair.target, folder / "target", form, **options), pair.head)


def fake_quantised(folder: Path, work: Path, scales: Mapping[str, float]) -> Any:
    """The target in ``transformers``: weights dequantised, the inputs of the modules in ``scales`` rounded to E4M3.

    Modules go by the names that the graph has for their weights.
    """
    checkpoint = Checkpoint.open(folder)
    work.mkdir(parents=True)
    config = {key: value for key, value in checkpoint.config.items() if key != "quantization_config"}
    (work / "config.json").write_text(json.dumps(config))
    save_file({name: torch.tensor(checkpoint.read(name)) for name in checkpoint.tensors}, work / "model.safetensors")
    model = family_for(config).load(work, config)
    modules = {name.replace("model.language_model.", "model."): module for name, module in model.named_modules()}
    for name, scale in scales.items():
        modules[name].register_forward_pre_hook(_rounding(scale))
    return model


def _rounding(scale: float) -> Callable[[Any, tuple[torch.Tensor]], tuple[torch.Tensor]]:
    factor = torch.tensor(scale)

    def hook(_: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        (x,) = inputs
        return ((x / factor).clamp(-448, 448).to(torch.float8_e4m3fn).float() * factor,)

    return hook
