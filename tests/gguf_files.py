"""Tiny random GGUF files, written with the ``gguf`` package as the converter of llama.cpp writes them."""

from __future__ import annotations

import json
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
_ARCHES = {"llama": gguf.MODEL_ARCH.LLAMA, "qwen3": gguf.MODEL_ARCH.QWEN3}
_IN_TURN = ("llama",)


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
    config = CONFIGS[family] | SIZES | {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}} | sizes
    folder = save_target(path.parent / f"{path.stem}-folder", config)
    from safetensors.numpy import load_file, save_file

    stored = load_file(folder / "model.safetensors")
    writer = _Writer(path, _ARCHES[family].name.lower(), without)
    _metadata(writer, config)
    edit(writer)
    for index, (name, values) in enumerate(stored.items()):
        kind = GGMLQuantizationType[kinds[index % len(kinds)] if values.ndim > 1 else "F32"]
        written = _as_converted(name, values, family, config)
        data = gguf.quants.quantize(written, kind)
        stands_for = gguf.quants.dequantize(data, kind).reshape(written.shape)
        stored[name] = _as_published(name, stands_for, family, config)
        writer.add_tensor(_name(name, family, config), data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    return Written(path, folder, json.loads((folder / "config.json").read_text()))


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
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    texts, types = tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(texts)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in MERGES])
    writer.add_eos_token_id(0)
    writer.add_chat_template(TEMPLATE)


def _name(name: str, family: str, config: Mapping[str, Any]) -> str:
    """What the ``gguf`` package calls a tensor of the model."""
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
