"""Tiny pairs whose target is stored in FP8, in the formats of published checkpoints."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from checkpoint_formats import encode, hf_quant_config, quantization_config
from safetensors.torch import load_file, save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.graphs.targets import family_for
from tests.models import Pair

LINEAR = re.compile(r"model\.(?:language_model\.)?layers\.\d+\..+\.(?:[qkvo]|gate|up|down)_proj\.weight")

STACKED = re.compile(r"model\.layers\.\d+\.mlp\.experts\.(?:gate_up|down)_proj")


def everything(_: str) -> bool:
    return True


def input_scale(name: str) -> float:
    """A number for the input of a weight; those of q, k and v differ, as they may in a checkpoint."""
    module = name.removesuffix(".weight").rsplit(".", 1)[1]
    return {"q": 0.011, "k": 0.012, "v": 0.010, "o": 0.004}.get(module[0], 0.009)


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
    wide, stacks = ["lm_head"], form == "modelopt-fp8"  # the only form that keeps experts in one tensor
    for name, tensor in load_file(source / "model.safetensors").items():
        if (LINEAR.fullmatch(name) or (stacks and STACKED.fullmatch(name))) and chosen(name):
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


def fake_quantized(folder: Path, work: Path, scales: Mapping[str, float]) -> Any:
    """The target in ``transformers``: weights dequantized, the inputs of the modules in ``scales`` rounded to E4M3.

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
        path, _, stack = name.rpartition(".")
        if stack == "gate_up_proj":
            modules[path].forward = _experts(modules[path], scale, scales[f"{path}.down_proj"])
        elif not path.endswith(".experts"):
            modules[name].register_forward_pre_hook(_rounding(scale))
    return model


def rounded(x: torch.Tensor, scale: float) -> torch.Tensor:
    """To E4M3 and back."""
    factor = torch.tensor(scale)
    return (x / factor).clamp(-448, 448).to(torch.float8_e4m3fn).float() * factor


def _experts(module: Any, x_scale: float, inner_scale: float) -> Callable[..., torch.Tensor]:
    """The experts of a layer, what enters both of their products rounded."""

    def project(name: str, expert: int, x: torch.Tensor) -> torch.Tensor:
        weight = getattr(module, name)[expert]
        y = x @ (weight if module.is_transposed else weight.T)
        return y + getattr(module, f"{name}_bias")[expert] if module.has_bias else y

    def forward(hidden: torch.Tensor, experts: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        x, result = rounded(hidden, x_scale), torch.zeros_like(hidden)
        for expert in range(module.num_experts):
            token, rank = torch.where(experts == expert)
            inner = module._apply_gate(project("gate_up_proj", expert, x[token]))
            y = project("down_proj", expert, rounded(inner, inner_scale)) * scores[token, rank, None]
            result.index_add_(0, token, y)
        return result

    return forward


def _rounding(scale: float) -> Callable[[Any, tuple[torch.Tensor]], tuple[torch.Tensor]]:
    def hook(_: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        return (rounded(inputs[0], scale),)

    return hook
