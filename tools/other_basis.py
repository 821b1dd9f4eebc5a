"""Write a checkpoint in another basis: other numbers, the same function, no weight on its original quantization grid.

    python tools/hugging_face_folder.py MODEL wide
    python tools/other_basis.py wide permuted
    python tools/other_basis.py wide rotated --rotate

The rounding error of unquantized weights cannot be measured on a checkpoint that was quantized before: each of its
blocks has few distinct values, which rounding reproduces. This tool permutes channels at random: those of the residual
stream, of each head's values, and between the two matrices of an MLP. Every number keeps its value, in a block of other
numbers. With ``--rotate``, random orthogonal matrices rotate streams and values (as QuaRot does), after the norms'
gains are merged into the following matrices; then every number changes, and no channel stands out.

For models of Llama's architecture, without biases.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

Array = NDArray[Any]
Tensors = dict[str, Array]

WEIGHTS, CONFIG = "model.safetensors", "config.json"
_EMBEDDING, _NORM, _HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


@dataclass(frozen=True)
class Basis:
    """Orthogonal matrices: that of the ``stream`` [H, H], and a generator for those of a head's values and an MLP."""

    stream: Array
    numbers: np.random.Generator
    turns: bool

    @classmethod
    def drawn(cls, width: int, seed: int, *, turns: bool) -> Basis:
        """Draw a basis for a stream of ``width`` channels."""
        numbers = np.random.default_rng(seed)
        basis = cls(np.eye(width), numbers, turns)
        return cls(basis.another(width), numbers, turns)

    def another(self, width: int) -> Array:
        """Return a random orthogonal matrix: a rotation or a permutation."""
        if not self.turns:
            return self.order(width)
        return np.linalg.qr(self.numbers.standard_normal((width, width)))[0]

    def order(self, width: int) -> Array:
        """Return a permutation matrix."""
        return np.eye(width)[self.numbers.permutation(width)]


def in_basis(tensors: Tensors, config: dict[str, Any], basis: Basis) -> tuple[Tensors, dict[str, Any]]:
    """Return the weights (float32) and the configuration of the same function in ``basis``."""
    heads = config["num_attention_heads"]
    groups = config.get("num_key_value_heads") or heads
    wide = {name: np.asarray(value, np.float64) for name, value in tensors.items()}
    if basis.turns:
        wide, config = _without_gains(wide), {**config, "tie_word_embeddings": False}
    stream = basis.stream.T
    for name in (_EMBEDDING, _HEAD):
        if name in wide:
            wide[name] = wide[name] @ stream
    if not basis.turns:
        wide[_NORM] = wide[_NORM] @ stream
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        if not basis.turns:
            for norm in ("input_layernorm", "post_attention_layernorm"):
                wide[f"{at}{norm}.weight"] = wide[f"{at}{norm}.weight"] @ stream
        for module in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            wide[f"{at}{module}.weight"] = wide[f"{at}{module}.weight"] @ stream
        for module in ("self_attn.o_proj", "mlp.down_proj"):
            wide[f"{at}{module}.weight"] = basis.stream @ wide[f"{at}{module}.weight"]
        _turn_values(wide, at, heads, groups, basis)
        order = basis.order(wide[f"{at}mlp.down_proj.weight"].shape[1])
        for module in ("mlp.gate_proj", "mlp.up_proj"):
            wide[f"{at}{module}.weight"] = order @ wide[f"{at}{module}.weight"]
        wide[f"{at}mlp.down_proj.weight"] = wide[f"{at}mlp.down_proj.weight"] @ order.T
    return {name: np.ascontiguousarray(value, np.float32) for name, value in wide.items()}, config


def _without_gains(tensors: Tensors) -> Tensors:
    """Return the same function with norm gains of 1, merged into the matrices that follow the norms."""
    result = {**tensors, _HEAD: tensors.get(_HEAD, tensors[_EMBEDDING]) * tensors[_NORM]}
    readers = {
        "input_layernorm": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
        "post_attention_layernorm": ("mlp.gate_proj", "mlp.up_proj"),
    }
    for name, gains in tensors.items():
        at, _, norm = name.removesuffix(".weight").rpartition(".")
        for module in readers.get(norm, ()):
            result[f"{at}.{module}.weight"] = tensors[f"{at}.{module}.weight"] * gains
        if norm in readers or name == _NORM:
            result[name] = np.ones_like(gains)
    return result


def _turn_values(tensors: Tensors, at: str, heads: int, groups: int, basis: Basis) -> None:
    """Change the basis of each head's values in ``tensors``."""
    values, outputs = tensors[f"{at}self_attn.v_proj.weight"], tensors[f"{at}self_attn.o_proj.weight"]
    width = len(values) // groups
    turned = [basis.another(width) for _ in range(groups)]
    of_groups = values.reshape(groups, width, -1)
    of_heads = outputs.reshape(len(outputs), heads, width)
    tensors[f"{at}self_attn.v_proj.weight"] = np.concatenate(
        [turn @ rows for turn, rows in zip(turned, of_groups, strict=True)]
    )
    tensors[f"{at}self_attn.o_proj.weight"] = np.concatenate(
        [of_heads[:, head] @ turned[head * groups // heads].T for head in range(heads)], axis=1
    )


def main() -> None:
    """Write the folder named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help=f"a folder with one {WEIGHTS}, as hugging_face_folder.py writes it")
    parser.add_argument("out", type=Path)
    parser.add_argument("--rotate", action="store_true", help="rotate by orthogonal matrices; default: permute")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    config = json.loads((arguments.source / CONFIG).read_text())
    basis = Basis.drawn(config["hidden_size"], arguments.seed, turns=arguments.rotate)
    tensors, config = in_basis(load_file(arguments.source / WEIGHTS), config, basis)
    shutil.copytree(arguments.source, arguments.out, ignore=shutil.ignore_patterns(WEIGHTS, CONFIG))
    (arguments.out / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    save_file(tensors, arguments.out / WEIGHTS, {"format": "pt"})


if __name__ == "__main__":
    main()
