"""Interface of a checkpoint format: how it is declared, and how stored tensors become the model's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ....plugins.problems import Problems
from ..safetensors import TensorEntry

if TYPE_CHECKING:
    import numpy as np

Stored = Mapping[str, TensorEntry]
Settings = Mapping[str, Any]  # the quantization_config of the checkpoint

_KEYS = ("quantization_config", "compression_config")  # early versions of compressed-tensors use the latter
_DESCRIPTIVE_KEYS = ("quant_method", "quant_algo", "format", "weight_block_size", "transform_config", "sparsity_config")


class StoredTensor(Protocol):
    """A tensor of the model, read and dequantized some rows at a time."""

    @property
    def entry(self) -> TensorEntry:
        """The location of its main data."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all ``rows``."""

    @property
    def granule(self) -> int:
        """The number of rows that share scales; readers should take multiples of it."""

    def rows(self, begin: int, end: int) -> np.ndarray[Any, Any]:
        """Rows along axis 0: float32, or integers and booleans as stored. A tensor without axes has one row."""


@dataclass(frozen=True)
class View:
    """The model's tensors without their storage format. ``companions`` are the scales that the format consumed."""

    tensors: dict[str, StoredTensor]
    companions: dict[str, TensorEntry]


@dataclass(frozen=True)
class Format:
    """A storage format for weights. ``view`` reports inconsistencies as problems.

    ``blocks`` is the type of the blocks that routed experts are stored in, as GGUF names it; empty for none.
    """

    name: str
    matches: Callable[[Settings], bool]
    view: Callable[[Stored, Settings, Problems], View]
    blocks: str = ""


def declared(config: Mapping[str, Any], modelopt: Mapping[str, Any], problems: Problems) -> Settings:
    """Return the quantization settings, empty if none. ``modelopt`` is the content of hf_quant_config.json."""
    text = config.get("text_config")
    configs = (config, text if isinstance(text, Mapping) else {})
    entry: Any = next((description for each in configs for key in _KEYS if (description := each.get(key))), {})
    of_file = modelopt.get("quantization") or {}
    if not isinstance(entry, Mapping) or not isinstance(of_file, Mapping):
        problems.add(
            f"{problems.subject} has a quantization config that is not an object",
            fix="use the config.json and hf_quant_config.json that belong to the weights",
        )
        return {}
    nested = entry.get("quantization")
    settings = {**nested, **entry} if isinstance(nested, Mapping) else dict(entry)
    if not of_file.get("quant_algo") and not of_file.get("kv_cache_quant_algo"):
        return settings
    declared_entries = {key: value for key, value in of_file.items() if value is not None}
    both = {"quant_method": "modelopt", **declared_entries, **settings}
    if both["quant_method"] != "modelopt" or both.get("quant_algo") != of_file.get("quant_algo"):
        problems.add(
            f"{problems.subject}: config.json and hf_quant_config.json describe different quantizations",
            why=f"{describe(settings)} and {describe(of_file)}",
            fix="use the config.json and hf_quant_config.json that belong to the weights",
        )
    return both


def describe(settings: Settings) -> str:
    """Return the entries that identify a format."""
    entries = [f"{key} {settings[key]!r}" for key in _DESCRIPTIVE_KEYS if settings.get(key)]
    return ", ".join(entries)[:200] or "no quant_method"
