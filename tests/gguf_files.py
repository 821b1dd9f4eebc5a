"""Tiny random GGUF files, written with the ``gguf`` package like llama.cpp's converter."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from tests.models import CONFIGS, save_target

Array = np.ndarray[Any, Any]
LETTERS = 256
SPECIAL = ("<|end|>", "<|user|>")
MERGES = (("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"))
TEMPLATE = "{% for m in messages %}<|user|>{{ m['content'] }}<|end|>{% endfor %}"
# Whole heads of 64, and rows that every type of 32 numbers fits.
SIZES = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64, "vocab_size": LETTERS + len(SPECIAL) + len(MERGES),
}  # fmt: skip
_ARCHES = {
    "llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3, "qwen3-moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma-4": gguf.MODEL_ARCH.GEMMA4, "gemma-4-moe": gguf.MODEL_ARCH.GEMMA4, "gpt-oss": gguf.MODEL_ARCH.GPT_OSS,
}  # fmt: skip
FAMILIES = tuple(_ARCHES)
_IN_TURN = ("llama",)
_EXPERT = re.compile(r"(.*\.mlp\.experts)\.(\d+)\.(\w+\.weight)")
_WITHOUT_SUFFIX = ("layer_scalar", "sinks", "experts.gate_up_proj", "experts.down_proj")
# As ``Gemma4Model`` of the converter names them: the ``gguf`` package has no names for them.
_SCALES = {"router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale"}
_GATE_UP = "gate_up_proj"
_ROPE = {"rope_type": "default", "rope_theta": 5000.0}
_ROTATED = 0.25
_GEMMA: dict[str, Any] = {
    "architectures": ["Gemma4ForCausalLM"], "global_head_dim": 128, "tie_word_embeddings": True,
    "layer_types": ["sliding_attention", "full_attention"],
    "rope_parameters": {
        "sliding_attention": _ROPE,
        "full_attention": {"rope_type": "proportional", "rope_theta": 70000.0, "partial_rotary_factor": _ROTATED},
    },
}  # fmt: skip
_OF_FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": _ROPE}, "qwen3": {"rope_parameters": _ROPE},
    "qwen3-moe": {"rope_parameters": _ROPE, "moe_intermediate_size": 32, "mlp_only_layers": []},
    "gpt-oss": {"swiglu_limit": 7.0},
    "gemma-4": _GEMMA, "gemma-4-moe": _GEMMA | {"moe_intermediate_size": 32},
}  # fmt: skip


@dataclass(frozen=True)
class Written:
    """A GGUF file, and the same model as transformers saves it: its numbers are those that the file stands for."""

    file: Path
    folder: Path
    config: Mapping[str, Any]


def tokens() -> tuple[list[str], list[int]]:
    """The text and the kind of each token."""
    from tokenizers import pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [*letters, *("".join(pair) for pair in MERGES)]
    return [*SPECIAL, *plain], [3] * len(SPECIAL) + [1] * len(plain)


def write(
    path: Path,
    family: str,
    *,
    kinds: Sequence[str] = ("F32",),
    edit: Callable[[GGUFWriter], None] = lambda _: None,
    without: Sequence[str] = (),
    **sizes: Any,
) -> Written:
    """Write a random model of a family as ``path``; its matrices are stored as ``kinds``, one after the other in turn.

    ``edit`` may add metadata, ``without`` are keys that are left out.
    """
    config = CONFIGS[family].get("text_config", CONFIGS[family]) | SIZES | _OF_FAMILIES[family] | sizes
    folder = save_target(path.parent / f"{path.stem}-folder", config)
    from safetensors.numpy import load_file, save_file

    published = load_file(folder / "model.safetensors")
    stored = _apart(_with_stacks(published))
    rng = np.random.default_rng(0)
    writer = _Writer(path, gguf.MODEL_ARCH_NAMES[_ARCHES[family]], without)
    _metadata(writer, config)
    _OWN.get(family, _nothing)(writer, config)
    edit(writer)
    for index, (name, values) in enumerate(stored.items()):
        kind = GGMLQuantizationType[kinds[index % len(kinds)] if values.ndim > 1 else "F32"]
        written = _as_converted(name, values, family, config)
        data = quantized(written, kind, rng)
        stands_for = gguf.quants.dequantize(data, kind).reshape(written.shape)
        stored[name] = _as_published(name, stands_for, family, config)
        writer.add_tensor(_name(name, family, config), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(_without_stacks(_together(stored), published), folder / "model.safetensors", {"format": "pt"})
    return Written(path, folder, json.loads((folder / "config.json").read_text()))


def quantized(values: Array, kind: GGMLQuantizationType, rng: np.random.Generator) -> Array:
    """The blocks of some numbers; random ones where the ``gguf`` package cannot make any, about as large."""
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:
        return random_blocks(kind.name, values.size // values.shape[-1], values.shape[-1], rng).reshape(
            *values.shape[:-1], -1
        )


# Where a block has numbers of 16 bits, and their size for values of about 0.02.
_HALVES = {"Q4_K": {0: 5e-5, 2: 5e-4}, "Q5_K": {0: 3e-5, 2: 5e-4}, "Q6_K": {208: 2e-5}, "IQ4_NL": {0: 3e-4}}


def random_blocks(kind: str, rows: int, columns: int, rng: np.random.Generator) -> Array:
    """Blocks of random codes, uint8 [rows, bytes]."""
    numbers, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (rows * columns // numbers, size), np.uint8)
    for at, largest in _HALVES[kind].items():
        halves = (largest * rng.uniform(0.5, 1, len(blocks))).astype(np.float16)
        blocks[:, at : at + 2] = halves[:, None].view(np.uint8)
    return blocks.reshape(rows, -1)


class _Writer(GGUFWriter):
    """A writer that leaves some keys out."""

    def __init__(self, path: Path, arch: str, without: Sequence[str]) -> None:
        self._without = without
        super().__init__(path, arch)

    def add_key_value(self, key: str, val: Any, vtype: Any, sub_type: Any = None) -> None:
        """Add a key once; the last one counts."""
        if key in self._without:
            return
        self.kv_data[0].pop(key, None)
        super().add_key_value(key, val, vtype, sub_type)


def _metadata(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "rope_theta" in config["rope_parameters"]:
        writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    texts, types = tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _nothing(_: GGUFWriter, __: Mapping[str, Any]) -> None:
    """A family without special keys."""


def _of_experts(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _of_gpt_oss(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """The keys that the converter's ``GptOssModel`` writes."""
    rope = config["rope_parameters"]
    writer.add_sliding_window(config["sliding_window"])
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_expert_count(config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _of_gemma(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    """The keys that the converter's ``Gemma4Model`` writes, and its divisors of the rotary table."""
    sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    of_full, of_sliding = config["global_head_dim"], config["head_dim"]
    heads = (config["num_global_key_value_heads"], config["num_key_value_heads"])
    rope = config["rope_parameters"]
    writer.add_shared_kv_layers(0)
    writer.add_embedding_length_per_layer_input(0)
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(sliding)
    writer.add_key_length(of_full)
    writer.add_key_length_swa(of_sliding)
    writer.add_head_count_kv([heads[is_sliding] for is_sliding in sliding])
    writer.add_rope_dimension_count(of_full)
    writer.add_rope_dimension_count_swa(of_sliding)
    writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    rotated = int(of_full * _ROTATED / 2)
    divisors = np.array([1.0] * rotated + [1e30] * (of_full // 2 - rotated), np.float32)
    writer.add_tensor("rope_freqs.weight", divisors)


def _of_gemma_experts(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    _of_gemma(writer, config)
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["top_k_experts"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


_OWN: dict[str, Callable[[GGUFWriter, Mapping[str, Any]], None]] = {
    "qwen3-moe": _of_experts, "gemma-4": _of_gemma, "gemma-4-moe": _of_gemma_experts, "gpt-oss": _of_gpt_oss,
}  # fmt: skip


def _apart(stored: Mapping[str, Array]) -> dict[str, Array]:
    """The stacks of GPT-OSS as rows of gate and of up: its own are transposed, and gate and up are in turn."""
    tensors: dict[str, Array] = {}
    for name, values in stored.items():
        if ".mlp.experts." not in name or name.endswith("_proj.weight"):
            tensors[name] = values
            continue
        form = "bias" if name.endswith("_bias") else "weight"
        module, rows = name.removesuffix("_bias"), values if form == "bias" else values.swapaxes(1, 2)
        if module.endswith(_GATE_UP):
            for first, part in enumerate(("gate_proj", "up_proj")):
                tensors[f"{module.replace(_GATE_UP, part)}.{form}"] = np.ascontiguousarray(rows[:, first::2])
        else:
            tensors[f"{module}.{form}"] = np.ascontiguousarray(rows)
    return tensors


def _together(stored: Mapping[str, Array]) -> dict[str, Array]:
    """The other way round."""
    tensors = dict(stored)
    for name in [*stored]:
        module, _, form = name.rpartition(".")
        if ".mlp.experts." not in name or _GATE_UP in name:
            continue
        suffix = "_bias" if form == "bias" else ""
        if module.endswith("gate_proj"):
            gate, up = stored[name], stored[name.replace("gate_proj", "up_proj")]
            rows = np.stack((gate, up), axis=2).reshape(len(gate), -1, *gate.shape[2:])
            tensors[module.replace("gate_proj", _GATE_UP) + suffix] = rows if suffix else rows.swapaxes(1, 2)
        elif module.endswith("down_proj"):
            tensors[module + suffix] = stored[name] if suffix else stored[name].swapaxes(1, 2)
    return tensors


def _with_stacks(stored: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors with those of experts put together."""
    stacks: dict[str, dict[int, Array]] = {}
    for name, values in stored.items():
        if match := _EXPERT.fullmatch(name):
            stacks.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = values
    plain = {name: values for name, values in stored.items() if not _EXPERT.fullmatch(name)}
    return plain | {name: np.stack([parts[e] for e in sorted(parts)]) for name, parts in stacks.items()}


def _without_stacks(stored: Mapping[str, Array], published: Mapping[str, Array]) -> dict[str, Array]:
    """The other way round, under the names of ``published``."""
    tensors = {}
    for name in published:
        match = _EXPERT.fullmatch(name)
        part = stored[f"{match[1]}.{match[3]}"][int(match[2])] if match else stored[name]
        tensors[name] = np.ascontiguousarray(part)
    return tensors


def _name(name: str, family: str, config: Mapping[str, Any]) -> str:
    """Return the ``gguf`` package's name for a tensor of the model."""
    for inside, scale in _SCALES.items():
        if name.endswith(f".{inside}"):
            return f"blk.{name.split('.')[2]}.{scale}"
    name += ".weight" if name.endswith(_WITHOUT_SUFFIX) else ""
    found = gguf.get_tensor_name_map(_ARCHES[family], config["num_hidden_layers"]).get_name(name, (".weight", ".bias"))
    assert found, name
    return found


def _heads(name: str, family: str, config: Mapping[str, Any]) -> int:
    if family not in _IN_TURN or not any(f"{each}_proj" in name for each in "qk"):
        return 0
    return config["num_attention_heads"] if "q_proj" in name else config["num_key_value_heads"]


def _as_converted(name: str, values: Array, family: str, config: Mapping[str, Any]) -> Array:
    """The rows as the converter of llama.cpp puts them: ``LlamaModel.permute``."""
    if not (heads := _heads(name, family, config)):
        return values
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _as_published(name: str, values: Array, family: str, config: Mapping[str, Any]) -> Array:
    """The other way round, row by row: row j of a head was put to 2 j, or to 2 (j - d / 2) + 1 from its middle on."""
    if not (heads := _heads(name, family, config)):
        return values
    size = values.shape[0] // heads
    rows = [
        head * size + (2 * j if j < size // 2 else 2 * (j - size // 2) + 1)
        for head in range(heads)
        for j in range(size)
    ]
    return np.ascontiguousarray(values[rows])
