"""Write a checkpoint with random weights and the key names and shapes of a supported model, at a chosen scale.

python tools/synthetic_checkpoint.py --model qwen3-coder-30b --layers 8 --out qwen3-8-layers --head flat

It allows testing reading, quantizing and streaming at real widths without a download. OUT/target becomes a sharded
checkpoint as published, OUT/head a P-EAGLE head for it. Its text is noise; its logits are finite.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from checkpoint_formats import FORMATS, hf_quant_config, quantization_config
from synthetic_head import LAYOUTS, MIN_TARGET_LAYERS, head_config, head_tensors
from synthetic_weights import (
    SINGLE,
    EncodedTensor,
    Encoder,
    Noise,
    RandomTensor,
    Source,
    total_bytes,
    write_file,
    write_shards,
)

from peagle.compiler.console.progress import show_progress
from peagle.compiler.console.sizes import argument
from peagle.plugins.errors import PeagleError, UsageError

MODELS = Path(__file__).resolve().parent.parent / "compiler" / "bundled" / "models"
NAMES = ("qwen3-coder-30b", "gpt-oss-20b", "gpt-oss-120b", "gemma-4-31b", "gemma-4-26b-a4b")
_ROOM_FOR_TEXTS = 64_000_000  # configs, tokenizer, headers, index

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_EXPERTS = ("num_experts", "num_local_experts")
_EXPERTS_PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "top_k_experts")
# Published beside the text decoder, and ignored.
_VISION_TOWER = {
    "model_type": "gemma4_vision", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "position_embedding_size": 64,
}  # fmt: skip
# GPT-OSS stores stacked experts as [in, out]; MXFP4 stores them as [out, in].
_EXPERT_STACK = re.compile(r"\.mlp\.experts\.(gate_up|down)_proj$")
_LINEAR = re.compile(r"^model\.(language_model\.)?layers\.\d+\..+\.([qkvo]|gate|up|down)_proj\.weight$")


@dataclass(frozen=True)
class Spec:
    """The checkpoint to write.

    ``None`` keeps the model's own size; ``sizes`` are further entries of its text config.
    """

    model: str
    out: Path
    layers: int | None = None
    experts: int | None = None
    hidden: int | None = None
    vocab: int | None = None
    sizes: tuple[tuple[str, int], ...] = ()
    format: str = "bf16"
    shard_size: int = 2_000_000_000
    seed: int = 0
    head: str | None = None
    head_layers: int = 4
    depth: int = 8


def write(spec: Spec) -> Path:
    """Write ``spec.out`` with ``target`` and, if requested, ``head``. Raises ``UsageError`` naming every problem."""
    _check(spec)
    config = scaled_config(spec)
    target = target_sources(config, Noise(spec.seed), spec.format)
    head = head_tensors(text_config(config), spec.head_layers, spec.head, Noise(spec.seed + 1)) if spec.head else []
    size = total_bytes(target) + total_bytes(head)
    spec.out.parent.mkdir(parents=True, exist_ok=True)
    _require_space(spec.out.parent, size + _ROOM_FOR_TEXTS)
    with (
        tempfile.TemporaryDirectory(dir=spec.out.parent, prefix=f".{spec.out.name}-") as name,
        show_progress() as progress,
    ):
        made = Path(name) / spec.out.name
        (made / "target").mkdir(parents=True)
        with progress.step(f"write {size / 1e9:.2f} GB", size) as advance:
            write_shards(made / "target", target, spec.shard_size, advance)
            if spec.head:
                (made / "head").mkdir()
                write_file(made / "head" / SINGLE, head, advance)
                _write_json(made / "head" / "config.json", head_config(config, spec.head_layers, spec.head, spec.depth))
        _write_json(made / "target" / "config.json", config | _quantization(spec, target))
        if spec.format == "modelopt-fp8":
            _write_json(made / "target" / "hf_quant_config.json", hf_quant_config(excluded=_left_wide(target)))
        _write_json(made / "target" / "generation_config.json", _token_ids(config))
        write_tokenizer(made / "target", config)
        made.rename(spec.out)
    return spec.out


def text_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the decoder's part of a config."""
    text: dict[str, Any] = config.get("text_config", config)
    return text


def scaled_config(spec: Spec) -> dict[str, Any]:
    """Return the model's ``config.json`` at the requested sizes, without quantization."""
    config = _published_config(spec.model)
    config.pop("quantization_config", None)
    config.pop("torch_dtype", None)
    config["dtype"] = "bfloat16"
    text = text_config(config)
    if spec.layers is not None:
        text["num_hidden_layers"] = spec.layers
    if text.get("layer_types"):
        text["layer_types"] = text["layer_types"][: text["num_hidden_layers"]]
        if text["model_type"].startswith("gemma4"):
            text["layer_types"][-1] = "full_attention"  # required by the architecture
    wanted = {"hidden_size": spec.hidden, "vocab_size": spec.vocab, _entry(text, _EXPERTS): spec.experts}
    text.update({key: value for key, value in wanted.items() if value is not None})
    text.update(spec.sizes)
    if experts := text.get(_entry(text, _EXPERTS)):
        text.update({key: min(text[key], experts) for key in _EXPERTS_PER_TOKEN if key in text})
    for part in (config, text):
        part.update({key: _within(part[key], text["vocab_size"]) for key in _TOKEN_IDS if part.get(key) is not None})
    if "text_config" in config:
        config["vision_config"] = _VISION_TOWER
    return config


def target_sources(config: dict[str, Any], noise: Noise, format: str) -> list[Source]:
    """Return every tensor of the checkpoint, named and shaped as ``transformers`` saves the model."""
    sources: list[Source] = []
    encoder = Encoder(format)
    for number, (name, shape) in enumerate(saved_shapes(config).items()):
        stack = bool(_EXPERT_STACK.search(name))
        mean, std = _distribution(name, shape[-2:] if not stack else shape[:-3:-1], text_config(config))
        tensor = RandomTensor(name, shape, number, mean, std, noise)
        narrow = format != "bf16" and (stack if format == "mxfp4" else bool(_LINEAR.match(name)))
        sources.append(EncodedTensor(tensor, encoder, transposed=stack) if narrow else tensor)
    return sources


def saved_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return key names and shapes on disk: a model without weights, conversion mapping reversed, ties omitted."""
    import transformers
    from transformers.core_model_loading import dot_natural_key, revert_weight_conversion

    cls = getattr(transformers, config["architectures"][0])
    with torch.device("meta"):
        model = cls(cls.config_class.from_dict(config))
    saved = revert_weight_conversion(model, model.state_dict())
    names = sorted(saved.keys() - model.all_tied_weights_keys.keys(), key=dot_natural_key)
    return {name: tuple(saved[name].shape) for name in names}


def write_tokenizer(folder: Path, config: dict[str, Any]) -> None:
    """Write a byte-level tokenizer with every id of the vocabulary, so that all generated ids can be decoded."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocab = text_config(config)["vocab_size"]
    special: dict[int, str] = {vocab - 1: "<mask>"}
    for key, value in _token_ids(config).items():
        for number, token_id in enumerate(value if isinstance(value, list) else [value]):
            special.setdefault(token_id, f"<{key.removesuffix('_token_id')}{number or ''}>")
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = ("".join(word) for length in (1, 2, 3) for word in product(letters, repeat=length))
    tokens = [special.get(i) or next(plain) for i in range(vocab)]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([special[i] for i in sorted(special)])
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)


def _distribution(name: str, matrix: Sequence[int], text: dict[str, Any]) -> tuple[float, float]:
    """Return the mean and deviation that keep the residual stream near 1 and every token's embedding visible in it."""
    if (
        name.endswith(("layer_scalar", "router.scale", "per_expert_scale"))
        or "norm" in name.rpartition(".")[0].rpartition(".")[2]
    ):
        unscaled_attention = text["model_type"].startswith("gemma4") and name.endswith("k_norm.weight")
        mean = matrix[-1] ** -0.5 if unscaled_attention else 1.0
        return mean, 0.1 * mean
    if name.endswith("bias"):
        return 0.0, 0.02
    if name.endswith("sinks") or (name.endswith("embed_tokens.weight") and not text.get("tie_word_embeddings")):
        return 0.0, 1.0
    return 0.0, matrix[-1] ** -0.5


def _quantization(spec: Spec, target: Sequence[Source]) -> dict[str, Any]:
    """Return the storage entry of config.json: GPT-OSS's own, or one that lists the unquantized modules."""
    if spec.format == "bf16":
        return {}
    if spec.format == "mxfp4":
        return {"quantization_config": _published_config(spec.model)["quantization_config"]}
    return {"quantization_config": quantization_config(spec.format, excluded=_left_wide(target))}


def _left_wide(target: Sequence[Source]) -> list[str]:
    """Return modules with an unquantized matrix, including an lm_head tied to the embedding."""
    names = [
        source.name.removesuffix(".weight")
        for source in target
        if isinstance(source, RandomTensor) and len(source.shape) == 2 and source.name.endswith(".weight")
    ]
    return sorted({*(name for name in names if not name.endswith("embed_tokens")), "lm_head"})


def _check(spec: Spec) -> None:
    problems = [
        f"{name} must be one of {', '.join(known)}, not {value}"
        for name, value, known in (("--model", spec.model, NAMES), ("--format", spec.format, FORMATS))
        if value not in known
    ]
    if spec.head is not None and spec.head not in LAYOUTS:
        problems.append(f"--head must be one of {', '.join(LAYOUTS)}, not {spec.head}")
    named = {"--layers": spec.layers, "--experts": spec.experts, "--hidden": spec.hidden, "--vocab": spec.vocab}
    named |= {"--shard-size": spec.shard_size, "--head-layers": spec.head_layers, "--depth": spec.depth}
    named |= {f"--set {key}": value for key, value in spec.sizes}
    problems += [
        f"{name} must be at least 1, not {value}" for name, value in named.items() if value is not None and value < 1
    ]
    if spec.out.exists():
        problems.append(f"{spec.out} exists; choose another folder for --out, or remove it")
    if spec.model in NAMES:
        problems += _misfits(spec, text_config(_published_config(spec.model)))
    if problems:
        raise UsageError("; ".join(problems))


def _misfits(spec: Spec, text: dict[str, Any]) -> list[str]:
    problems = []
    own = text["num_hidden_layers"]
    layers = own if spec.layers is None else spec.layers
    if layers > own:
        problems.append(f"--layers {layers}: {spec.model} has {own}")
    if spec.head and layers < MIN_TARGET_LAYERS:
        problems.append(f"--head needs --layers of at least {MIN_TARGET_LAYERS}: three different layers are tapped")
    if spec.experts is not None and not _entry(text, _EXPERTS):
        problems.append(f"--experts: {spec.model} has no experts")
    problems += [f"--set {key}: not a size in the config of {spec.model}" for key, _ in spec.sizes if key not in text]
    stacked = text["model_type"] == "gpt_oss"
    if (spec.format == "mxfp4" and not stacked) or (spec.format not in ("mxfp4", "bf16") and stacked):
        problems.append(f"--format {spec.format}: {spec.model} is not published in this format")
    sizes = text | {"hidden_size": spec.hidden or text["hidden_size"]} | dict(spec.sizes)
    if spec.format == "mxfp4" and (sizes["hidden_size"] % 32 or sizes["intermediate_size"] % 32):
        problems.append("--format mxfp4 stores blocks of 32: hidden_size and intermediate_size must be multiples of it")
    return problems


def _require_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise UsageError(f"--out needs {needed / 1e9:.2f} GB, the disk of {folder} has {free / 1e9:.2f} GB free")


def _published_config(model: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((MODELS / model / "config.json").read_text())
    return config


def _entry(text: dict[str, Any], keys: Sequence[str]) -> str:
    """Return the key that this config uses, or an empty string."""
    return next((key for key in keys if text.get(key)), "")


def _within(token_id: int | list[int], vocab: int) -> int | list[int]:
    """Replace ids beyond a smaller vocabulary by 0."""
    if isinstance(token_id, list):
        return sorted({i if i < vocab else 0 for i in token_id})
    return token_id if token_id < vocab else 0


def _token_ids(config: dict[str, Any]) -> dict[str, Any]:
    both = text_config(config) | config
    return {key: both[key] for key in _TOKEN_IDS if both.get(key) is not None}


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def _size_entry(text: str) -> tuple[str, int]:
    key, _, value = text.partition("=")
    if not value.lstrip("-").isdigit():
        raise argparse.ArgumentTypeError(f"KEY=NUMBER, not {text!r}")
    return key, int(value)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, choices=NAMES)
    parser.add_argument("--out", required=True, type=Path, help="folder to create")
    for name in ("layers", "experts", "hidden", "vocab"):
        parser.add_argument(f"--{name}", type=int, help="default: the model's own")
    parser.add_argument(
        "--set", dest="sizes", action="append", default=[], type=_size_entry, metavar="KEY=NUMBER",
        help="another size of the text config, such as intermediate_size=64; may be repeated",
    )  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, default=Spec.format)
    parser.add_argument("--shard-size", type=argument("--shard-size"), default=Spec.shard_size, help="default: 2GB")
    parser.add_argument("--seed", type=int, default=Spec.seed)
    parser.add_argument("--head", choices=LAYOUTS, help="also write a P-EAGLE head, in this layout")
    parser.add_argument("--head-layers", type=int, default=Spec.head_layers, help="default: %(default)s")
    parser.add_argument("--depth", type=int, default=Spec.depth, help="the K the head declares; default: %(default)s")
    return parser


def main() -> None:
    """Run the command line."""
    parser = _parser()
    spec = Spec(**vars(parser.parse_args()))
    started = time.monotonic()
    try:
        out = write(replace(spec, sizes=tuple(spec.sizes)))
    except PeagleError as error:
        parser.error(str(error))
    seconds = time.monotonic() - started
    files = sorted(out.glob("*/*.safetensors"))
    size = sum(file.stat().st_size for file in files)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    print(f"{out}: {size:,} bytes in {len(files)} files, {seconds:.1f} s, peak memory {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
