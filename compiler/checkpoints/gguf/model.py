"""Convert a GGUF header to a supported model: its configuration, and its tensors under the model's own names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from ....graphs.targets import FAMILIES, Family
from ....graphs.targets.gguf_naming import GgufFacts, GgufNaming
from ....plugins.errors import BuildError
from ....plugins.problems import Problems, counted, listed, shown
from ..formats.base import StoredTensor
from ..safetensors import TensorEntry
from .header import GgufHeader
from .rope import FREQUENCIES, rope_entries
from .weights import FLOATS, ROUNDED, GgufStack, GgufTensor

_MAX_EXPERTS = 4_096
_MAX_MATRICES = 1 << 19
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"
_SPLIT = "split.count"
_TOKENS = "tokenizer.ggml.tokens"
_TOKEN_IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}


def family_and_naming(header: GgufHeader) -> tuple[Family, GgufNaming]:
    """Return the family of a file and its GGUF tensor naming. Raises ``BuildError`` for an unsupported architecture."""
    parts = header.metadata.get(_SPLIT)
    if type(parts) is int and parts > 1:
        raise BuildError(
            f"{header.file} is one of {parts} parts of a model",
            why="split GGUF files are not supported",
            fix="merge the parts with `llama-gguf-split --merge` of llama.cpp",
        )
    by_architecture = {naming.architecture: (family, naming) for family in FAMILIES for naming in family.gguf}
    if header.architecture in by_architecture:
        return by_architecture[header.architecture]
    raise BuildError(
        f"{header.file} has an unsupported architecture: {shown(header.architecture or '(none)')}",
        why=f"the supported GGUF architectures are {', '.join(by_architecture)}",
        fix="use a model with one of these architectures, or the safetensors checkpoint of a supported model "
        "(docs/evidence.md)",
    )


def config_of(header: GgufHeader, problems: Problems) -> dict[str, Any]:
    """Build the decoder's part of the ``config.json`` that the model was published with."""
    family, naming = family_and_naming(header)
    _refuse(header, naming, problems)
    sizes = {entry: _plain(header.metadata.get(f"{naming.architecture}.{key}")) for entry, key in naming.sizes.items()}
    config: dict[str, Any] = {"architectures": [family.architectures[0]], "model_type": naming.model_type}
    config |= {entry: value for entry, value in sizes.items() if value is not None}
    if embedding := header.tensors.get(_EMBEDDING):
        config["vocab_size"] = embedding.shape[0]
        _check_vocabulary(header, embedding.shape[0], problems)
    if "head_dim" not in config:
        config |= _head_dim(config)
    if not naming.own_rope:
        config |= rope_entries(header, naming, config.get("head_dim"), problems)
    with problems.collecting():
        config |= naming.entries(_facts(header, naming))
    config["tie_word_embeddings"] = _HEAD not in header.tensors
    ids = {entry: header.metadata.get(f"tokenizer.ggml.{key}") for entry, key in _TOKEN_IDS.items()}
    config |= {entry: value for entry, value in ids.items() if type(value) is int}
    return {**config, **naming.settings}


def tensors_of(header: GgufHeader, config: Mapping[str, Any], problems: Problems) -> dict[str, StoredTensor]:
    """Map published names to tensors. Tensors that the model does not have are reported as problems."""
    _, naming = family_and_naming(header)
    queries = config.get("num_attention_heads")
    heads = {"attn_q": queries, "attn_k": config.get("num_key_value_heads", queries)}
    tensors: dict[str, StoredTensor] = {}
    misfits: dict[str, list[str]] = defaultdict(list)
    stacks: dict[str, dict[int, GgufTensor]] = defaultdict(dict)
    for name, entry in header.tensors.items():
        canonical, expert, stack = naming.canonical(name), naming.expert(name), naming.stack(name)
        if name == FREQUENCIES:  # the configuration has them
            continue
        if canonical is None and expert is None and stack is None:
            misfits[f"with names that {naming.architecture} does not use"].append(name)
        elif entry.dtype not in (*FLOATS, *ROUNDED):
            misfits[f"stored as {entry.dtype}, which is not supported"].append(name)
        elif len(entry.shape) == 1 and entry.dtype in ROUNDED:
            misfits[f"with one axis, stored as {entry.dtype}"].append(name)
        elif stack is not None:
            if len(entry.shape) != (2 if name.endswith(".bias") else 3):
                misfits["that are not stacked experts"].append(name)
            else:
                stacks[stack[0]][stack[1]] = GgufTensor(name, entry)
        elif expert is not None:
            if len(entry.shape) != 3 or entry.shape[0] > _MAX_EXPERTS or len(tensors) > _MAX_MATRICES:
                misfits["that are not stacked experts"].append(name)
            else:
                tensors |= _experts(name, entry, expert)
        elif canonical is not None:
            count = heads.get(name.split(".")[-2], 0) if naming.is_interleaved(name) else 0
            if count and not _fits(entry.shape[0], count):
                misfits[f"whose number of rows does not match {count} heads"].append(name)
            tensors[canonical] = GgufTensor(name, entry, count or 0)
    for canonical_name, parts in stacks.items():
        numbers, shapes = sorted(parts), {part.shape for part in parts.values()}
        _, _, count = naming.stack(parts[numbers[0]].name) or ("", 0, 0)
        if len(numbers) != count or len(shapes) > 1:
            misfits["that are not all parts of the same experts"] += [part.name for part in parts.values()]
        else:
            tensors[canonical_name] = GgufStack(tuple(parts[number] for number in numbers))
    for description, names in misfits.items():
        problems.add(
            f"{problems.subject} has {counted(names)} {description}: {listed(names)}",
            why=f"the supported types are {', '.join((*FLOATS, *ROUNDED))}" if "stored as" in description else "",
            fix="use a file of the model alone, without adapters or other parts, in a supported type",
        )
    return tensors


def _facts(header: GgufHeader, naming: GgufNaming) -> GgufFacts:
    prefix = f"{naming.architecture}."
    metadata = {
        key.removeprefix(prefix): _plain(value) for key, value in header.metadata.items() if key.startswith(prefix)
    }
    divisors = header.tensors.get(FREQUENCIES)
    is_read = divisors is not None and divisors.dtype == "F32" and len(divisors.shape) == 1
    values = GgufTensor(FREQUENCIES, divisors).rows(0, divisors.shape[0]) if divisors and is_read else ()
    return GgufFacts(metadata, frozenset(header.tensors), tuple(map(float, values)))


def _experts(name: str, entry: TensorEntry, canonical: str) -> dict[str, StoredTensor]:
    """Split a stack ``[E, rows, columns]`` into its matrices."""
    count, *shape = entry.shape
    size = (entry.end - entry.begin) // count
    offsets = ((canonical.format(index), entry.begin + index * size) for index in range(count))
    return {
        each: GgufTensor(name, TensorEntry(entry.file, entry.dtype, tuple(shape), begin, begin + size))
        for each, begin in offsets
    }


def _fits(rows: int, heads: Any) -> bool:
    return type(heads) is int and heads > 0 and not rows % (2 * heads)


def _refuse(header: GgufHeader, naming: GgufNaming, problems: Problems) -> None:
    """Report settings that make this a different model from the one its family implements."""
    keys = {f"{naming.architecture}.{key}" for key in naming.refused}
    found = [f"{key} {shown(repr(header.metadata[key]))}" for key in sorted(keys) if header.metadata.get(key)]
    if found:
        problems.add(
            f"{problems.subject} sets {', '.join(found)}: this variant of {naming.architecture} is not supported",
            why="only the results of the variant without these settings were compared with transformers",
            fix="use a variant without these settings",
        )


def _check_vocabulary(header: GgufHeader, rows: int, problems: Problems) -> None:
    """Report a vocabulary larger than the embedding table, which would be read out of bounds."""
    tokens = header.metadata.get(_TOKENS)
    if isinstance(tokens, list) and len(tokens) > rows:
        problems.add(
            f"{problems.subject} has {len(tokens)} tokens, but embeddings for {rows}",
            why="the tokenizer and the weights belong to different models",
            fix="use a file of the model with its own tokenizer",
        )


def _head_dim(config: Mapping[str, Any]) -> dict[str, int]:
    """Return the head size that llama.cpp assumes if the file does not give one."""
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    return {"head_dim": hidden // heads} if type(hidden) is int and type(heads) is int and heads > 0 else {}


def _plain(value: Any) -> Any:
    """Return the shortest decimal that reads back as the same float32: the number before its conversion."""
    return float(str(np.float32(value))) if isinstance(value, float) and abs(value) < 1e38 else value
