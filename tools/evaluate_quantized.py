"""Held-out perplexity of the demo target in FP8: as it ships, with FP8 weights, and with FP8 weights and activations.

peagle-compile quantize --model demo --out demo-fp8
python tools/evaluate_quantized.py demo-fp8
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from code_tokenizer import encode_stream, load_tokenizer
from corpus import load_corpus
from target_model import held_out_loss, load_target, perplexity
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM

from peagle.compiler.checkpoint import Checkpoint
from peagle.compiler.safetensors_file import read_rows

LARGEST = 448.0


def take_weights(model: Qwen3ForCausalLM, quantized: Checkpoint) -> None:
    """Give the model the dequantised weights of the checkpoint."""
    parameters = dict(model.named_parameters())
    for name in quantized.tensors:
        parameters[name].copy_(torch.from_numpy(quantized.read(name)))


def round_inputs(model: Qwen3ForCausalLM, quantized: Checkpoint) -> int:
    """From now on what enters a linear that has an input scale is rounded to E4M3; returns how many there are."""
    count = 0
    for name, module in model.named_modules():
        entry = quantized.companions.get(f"{name}.input_scale")
        if entry is not None and isinstance(module, nn.Linear):
            module.register_forward_pre_hook(_rounding(float(read_rows(name, entry, 0, 1))))
            count += 1
    return count


def _rounding(scale: float) -> Any:
    def hook(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        narrow = (args[0] / scale).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
        return (narrow.float() * scale, *args[1:])

    return hook


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quantized", type=Path)
    parser.add_argument("--target", type=Path, default=Path("compiler/demo/target"))
    parser.add_argument("--windows", type=int, help="of 512 tokens, spread evenly. (default: all)")
    arguments = parser.parse_args()
    stream = encode_stream(load_tokenizer(arguments.target), [file.text for file in load_corpus().held_out])
    model, quantized = load_target(arguments.target), Checkpoint.open(arguments.quantized)
    wide = perplexity(held_out_loss(model, stream, arguments.windows))
    print(f"as it ships, in FP32      {wide:.4f}", flush=True)
    with torch.no_grad():
        take_weights(model, quantized)
    weights = perplexity(held_out_loss(model, stream, arguments.windows))
    print(f"FP8 weights               {weights:.4f}  ({weights / wide - 1:+.2%})", flush=True)
    count = round_inputs(model, quantized)
    both = perplexity(held_out_loss(model, stream, arguments.windows))
    print(f"FP8 weights, {count} FP8 inputs {both:.4f}  ({both / wide - 1:+.2%})")


if __name__ == "__main__":
    main()
