"""MXFP4 as stored in GPT-OSS: 32 values of 4 bits share one power-of-two scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ....plugins.ops.mxfp4_gate_up.blocks import gguf_rows
from ....plugins.problems import Problems, listed
from ..safetensors import TensorEntry, read_rows
from .base import Format, Settings, Stored, View
from .plain import plain_tensors
from .stored_numbers import Array, as_numbers, check_scales, fp4_pairs

_BLOCKS, _SCALES = "_blocks", "_scales"
_BYTES = 16  # of a block of 32
_KIND = "MXFP4"  # as GGUF names it


@dataclass(frozen=True)
class Mxfp4:
    """``blocks`` [E, rows, cols / 32, 16] and ``scales`` [E, rows, cols / 32], both uint8, give [E, cols, rows].

    Transposed, as in an unquantized checkpoint of the model; it is a view without copying.
    """

    name: str
    entry: TensorEntry
    scales: TensorEntry
    granule: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        count, rows, blocks, _ = self.entry.shape
        return (count, blocks * 2 * _BYTES, rows)

    def rows(self, begin: int, end: int) -> Array:
        scales = as_numbers("F8_E8M0", self._exponents(begin, end))
        values = fp4_pairs(read_rows(self.name + _BLOCKS, self.entry, begin, end))
        values *= scales[..., None]
        return values.reshape(end - begin, self.shape[2], self.shape[1]).swapaxes(1, 2)

    @property
    def flat(self) -> tuple[Mxfp4Matrix]:
        """The stored matrices below each other, in their blocks."""
        count, rows, blocks, _ = self.entry.shape
        stored = replace(self.entry, dtype=_KIND, shape=(count * rows, blocks, _BYTES))
        return (Mxfp4Matrix(replace(self, entry=stored, scales=replace(self.scales, shape=stored.shape[:2]))),)

    def _exponents(self, begin: int, end: int) -> Array:
        raw = read_rows(self.name + _SCALES, self.scales, begin, end)
        check_scales(self.name + _SCALES, self.scales, as_numbers("F8_E8M0", raw))
        return raw


@dataclass(frozen=True)
class Mxfp4Matrix:
    """Rows of blocks, as GGUF files have them; ``stack`` has blocks and scales of rows instead of matrices."""

    stack: Mxfp4
    granule: int = 1

    @property
    def entry(self) -> TensorEntry:
        return self.stack.entry

    @property
    def shape(self) -> tuple[int, ...]:
        rows, blocks, _ = self.entry.shape
        return rows, blocks * 2 * _BYTES

    def blocks(self, begin: int, end: int) -> Array:
        """Rows of blocks of 17 bytes, uint8 [rows, bytes]."""
        codes = read_rows(self.stack.name + _BLOCKS, replace(self.entry, dtype="U8"), begin, end)
        return gguf_rows(codes, self.stack._exponents(begin, end))


def _view(stored: Stored, _: Settings, problems: Problems) -> View:
    packed = {
        name.removesuffix(_BLOCKS): entry
        for name, entry in stored.items()
        if name.endswith(_BLOCKS) and entry.dtype == "U8"
    }
    scales = {
        name.removesuffix(_SCALES): entry
        for name, entry in stored.items()
        if name.endswith(_SCALES) and entry.dtype == "U8"
    }
    pairs = {name: (entry, scales[name]) for name, entry in packed.items() if name in scales}
    misfits = {
        "blocks without scales": [name + _BLOCKS for name in packed.keys() - scales.keys()],
        "scales without blocks": [name + _SCALES for name in scales.keys() - packed.keys()],
        "blocks and scales whose shapes do not match": [
            f"{name} {list(blocks.shape)} and {list(scale.shape)}"
            for name, (blocks, scale) in pairs.items()
            if len(blocks.shape) != 4 or blocks.shape[-1] != _BYTES or blocks.shape[:-1] != scale.shape
        ],
        "tensors that are also stored unquantized": [name for name in pairs if name in stored],
    }
    for problem, names in misfits.items():
        if names:
            problems.add(
                f"{problems.subject} has MXFP4 {problem}: {listed(sorted(names))}",
                why="a tensor X is stored as X_blocks [E, rows, cols / 32, 16] and X_scales [E, rows, cols / 32]",
                fix="download all files of the model again: the files in the folder probably come from different "
                "versions",
            )
    used = {name + suffix for suffix in (_BLOCKS, _SCALES) for name in packed.keys() | scales.keys()}
    rest = plain_tensors({name: entry for name, entry in stored.items() if name not in used}, problems)
    tensors = {name: Mxfp4(name, blocks, scale) for name, (blocks, scale) in pairs.items()}
    return View({**rest, **tensors}, {name + _SCALES: entry for name, entry in scales.items()})


def blocks_of_config(config: Mapping[str, Any]) -> str:
    """Return the type of the blocks that a configuration says the routed experts are stored in; empty for none."""
    settings = config.get("quantization_config")
    return MXFP4.blocks if isinstance(settings, Mapping) and MXFP4.matches(settings) else ""


MXFP4 = Format("mxfp4", lambda settings: settings.get("quant_method") == "mxfp4", _view, _KIND)
