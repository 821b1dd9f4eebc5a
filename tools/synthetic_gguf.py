"""Write a GGUF file with the shapes of a published model and random blocks, to measure speed and memory.

python tools/synthetic_gguf.py --model qwen3-coder-30b --type q4_k_m --layers 8 --out qwen3-8-layers.gguf

Block types are those of the published files. The text is noise; logits are finite. Blocks repeat after 64 MiB, so that
a file is written at the speed of the disk.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFWriter

Array = np.ndarray[Any, Any]
_POOL = 64 << 20  # bytes of random blocks
_SPECIAL = ("<|endoftext|>", "<|return|>", "<|call|>", "<|im_start|>", "<|im_end|>")


_MERGES = (("h", "e"), ("l", "l"))


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file, with its type; F32 ones are random numbers, or ones for a norm."""

    name: str
    shape: tuple[int, ...]
    kind: Kind = Kind.F32


@dataclass(frozen=True)
class Shapes:
    """The sizes of a model, in the names of its configuration."""

    arch: str
    layers: int
    hidden: int
    heads: int
    key_heads: int
    head_dim: int
    inner: int
    vocab: int
    rope_base: float
    context: int
    experts: int = 0
    used: int = 0
    pre_tokenizer: str = "qwen2"

    def tensors(self, kinds: Callable[[str, int], Kind]) -> Iterator[Tensor]:
        """Yield the tensors in file order; ``kinds`` gives the type of a matrix by its name and layer."""
        yield Tensor("token_embd.weight", (self.vocab, self.hidden), kinds("token_embd", -1))
        for layer in range(self.layers):
            for name, shape in self.of_layer().items():
                is_matrix = len(shape) > 1 and name != "ffn_gate_inp.weight" and not name.endswith(".bias")
                kind = kinds(name.removesuffix(".weight"), layer) if is_matrix else Kind.F32
                yield Tensor(f"blk.{layer}.{name}", shape, kind)
        yield Tensor("output_norm.weight", (self.hidden,))
        yield Tensor("output.weight", (self.vocab, self.hidden), kinds("output", -1))

    def of_layer(self) -> dict[str, tuple[int, ...]]:
        """Return the tensors of a layer."""
        queries, keys = self.heads * self.head_dim, self.key_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"attn_norm.weight": (self.hidden,)}
        for name, rows in (("attn_q", queries), ("attn_k", keys), ("attn_v", keys)):
            found[f"{name}.weight"] = (rows, self.hidden)
        found["attn_output.weight"] = (self.hidden, queries)
        up, down = (self.inner, self.hidden), (self.hidden, self.inner)
        if not self.experts:
            found |= {"ffn_gate.weight": up, "ffn_up.weight": up, "ffn_down.weight": down}
        else:
            found["ffn_gate_inp.weight"] = (self.experts, self.hidden)
            stacks = {"ffn_gate_exps": up, "ffn_up_exps": up, "ffn_down_exps": down}
            found |= {f"{name}.weight": (self.experts, *shape) for name, shape in stacks.items()}
        if self.arch != "gpt-oss":
            per_head = (self.head_dim,)
            return found | {
                "ffn_norm.weight": (self.hidden,),
                "attn_q_norm.weight": per_head,
                "attn_k_norm.weight": per_head,
            }
        biases = {name.replace("weight", "bias"): shape[:-1] for name, shape in found.items() if len(shape) > 1}
        return found | biases | {"attn_sinks.weight": (self.heads,), "post_attention_norm.weight": (self.hidden,)}


MODELS: Mapping[str, Shapes] = {
    "qwen3-coder-30b": Shapes("qwen3moe", 48, 2048, 32, 4, 128, 768, 151936, 1e7, 262144, 128, 8),
    "qwen3-1.7b": Shapes("qwen3", 28, 2048, 16, 8, 128, 6144, 151936, 1e6, 40960),
    "gpt-oss-20b": Shapes("gpt-oss", 24, 2880, 64, 8, 64, 2880, 201088, 150000.0, 131072, 32, 4, "gpt-4o"),
}


def q4_k_m(shapes: Shapes) -> Callable[[str, int], Kind]:
    """Return the types of llama.cpp's Q4_K_M: Q6_K for the head, and for values and down in some of the layers."""
    eighth = shapes.layers // 8

    def kind(name: str, layer: int) -> Kind:
        more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2
        if name == "output" or (name in ("attn_v", "ffn_down", "ffn_down_exps") and more):
            return Kind.Q6_K
        return Kind.Q4_K

    return kind


def q4_0(_: Shapes) -> Callable[[str, int], Kind]:
    """Return Q4_0 throughout, with Q8_0 for the head."""
    return lambda name, _: Kind.Q8_0 if name == "output" else Kind.Q4_0


def mxfp4(_: Shapes) -> Callable[[str, int], Kind]:
    """Return the types of GPT-OSS as published for llama.cpp: MXFP4 experts, Q8_0 for the rest."""
    return lambda name, _: Kind.MXFP4 if name.endswith("_exps") else Kind.Q8_0


TYPES = {"q4_0": q4_0, "q4_k_m": q4_k_m, "mxfp4": mxfp4}


def scaled(kind: Kind, blocks: Array, std: float) -> None:
    """Set the scales of random blocks, uint8 [n, bytes], in place, for numbers of about ``std``."""

    def put(at: int, value: float) -> None:
        blocks[:, at : at + 2] = np.frombuffer(np.float16(value).tobytes(), np.uint8)

    if kind is Kind.Q4_0:
        put(0, std / 4.6)
    elif kind is Kind.Q8_0:
        put(0, std / 74)
    elif kind is Kind.Q4_K:  # d and dmin, then 6-bit scales and minima around 32, codes of 0 to 15
        put(0, std / 150)
        put(2, std / 20)
    elif kind is Kind.Q6_K:
        put(208, std / 1400)
    elif kind is Kind.MXFP4:
        blocks[:, 0] = 127 + round(math.log2(std / 3))
    else:
        raise ValueError(f"no scales are known for {kind.name}")


def random_blocks(kind: Kind, count: int, rng: np.random.Generator, std: float) -> Iterator[Array]:
    """Yield ``count`` blocks, uint8 [n, bytes]."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    pool = rng.integers(0, 256, (min(count, _POOL // size), size), dtype=np.uint8)
    scaled(kind, pool, std)
    for at in range(0, count, len(pool)):
        yield pool[: count - at]


def write(path: Path, shapes: Shapes, kinds: Callable[[str, int], Kind], seed: int = 0) -> None:
    """Write the file; memory stays below 1 GB."""
    writer, rng = GGUFWriter(path, shapes.arch), np.random.default_rng(seed)
    describe(writer, shapes)
    tensors = [*shapes.tensors(kinds)]
    for tensor in tensors:
        per_block, size = gguf.GGML_QUANT_SIZES[tensor.kind]
        row = tensor.shape[-1] // per_block * size
        total = math.prod(tensor.shape[:-1]) * row
        shape, dtype = (tensor.shape, np.float32) if tensor.kind is Kind.F32 else ((*tensor.shape[:-1], row), np.uint8)
        writer.add_tensor_info(tensor.name, shape, np.dtype(dtype), total, raw_dtype=tensor.kind)
    for write_part in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_ti_data_to_file):
        write_part()
    for number, tensor in enumerate(tensors):
        writer.write_tensor_data(values(tensor, rng))
        if sys.stderr.isatty():
            end = "\n" if number + 1 == len(tensors) else ""
            print(f"\r{number + 1} of {len(tensors)} tensors", end=end, file=sys.stderr, flush=True)
    writer.close()


def values(tensor: Tensor, rng: np.random.Generator) -> Array:
    """Return the values of a tensor as stored; blocks as bytes."""
    if tensor.kind is Kind.F32:
        is_norm = tensor.name.endswith("norm.weight")
        noise = rng.standard_normal(tensor.shape, np.float32) * np.float32(0.02)
        return np.ones(tensor.shape, np.float32) if is_norm else noise
    per_block, _ = gguf.GGML_QUANT_SIZES[tensor.kind]
    count = math.prod(tensor.shape) // per_block
    return np.concatenate([*random_blocks(tensor.kind, count, rng, 0.02)]).reshape(*tensor.shape[:-1], -1)


def describe(writer: GGUFWriter, shapes: Shapes) -> None:
    """Add the metadata: sizes, rotary embedding, and a byte-level vocabulary filled up with unused tokens."""
    writer.add_name(f"synthetic {shapes.arch}")
    writer.add_context_length(shapes.context)
    writer.add_block_count(shapes.layers)
    writer.add_embedding_length(shapes.hidden)
    writer.add_feed_forward_length(shapes.inner)
    writer.add_head_count(shapes.heads)
    writer.add_head_count_kv(shapes.key_heads)
    writer.add_key_length(shapes.head_dim)
    writer.add_value_length(shapes.head_dim)
    writer.add_layer_norm_rms_eps(1e-5 if shapes.arch == "gpt-oss" else 1e-6)
    writer.add_rope_freq_base(shapes.rope_base)
    if shapes.experts:
        writer.add_expert_count(shapes.experts)
        writer.add_expert_used_count(shapes.used)
        writer.add_expert_feed_forward_length(shapes.inner)
    if shapes.arch == "gpt-oss":
        writer.add_sliding_window(128)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(32.0)
        writer.add_rope_scaling_orig_ctx_len(4096)
    letters = [*sorted(_byte_letters()), *("".join(pair) for pair in _MERGES)]
    filler = [f"<|unused_{n}|>" for n in range(shapes.vocab - len(letters) - len(_SPECIAL))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(shapes.pre_tokenizer)
    writer.add_token_list([*_SPECIAL, *letters, *filler])
    writer.add_token_types([3] * len(_SPECIAL) + [1] * len(letters) + [5] * len(filler))
    writer.add_token_merges([" ".join(pair) for pair in _MERGES])
    writer.add_eos_token_id(0)


def _byte_letters() -> list[str]:
    from tokenizers import pre_tokenizers

    return list(pre_tokenizers.ByteLevel.alphabet())


def main() -> None:
    """Read the options and write the file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--model", choices=[*MODELS], required=True, help="the published model")
    parser.add_argument("--type", choices=[*TYPES], required=True, help="the types of its blocks")
    parser.add_argument("--layers", type=int, help="fewer layers than published")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shapes = MODELS[options.model]
    if options.layers is not None and not 1 <= options.layers <= shapes.layers:
        parser.error(f"--layers must be from 1 to {shapes.layers}")
    if options.layers:
        from dataclasses import replace

        shapes = replace(shapes, layers=options.layers)
    if shapes.hidden % 256 and options.type == "q4_k_m":
        parser.error(f"{options.model} has rows of {shapes.hidden} columns; K-quants need a multiple of 256")
    write(options.out, shapes, TYPES[options.type](shapes), options.seed)


if __name__ == "__main__":
    main()
