"""The values of GGUF blocks, compared with ggml's definition, written out value by value."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType

from peagle.compiler.checkpoints.gguf.weights import ROUNDED, GgufStack, GgufTensor
from peagle.compiler.checkpoints.safetensors import TensorEntry

ROWS, COLUMNS = 6, 512
Block = bytes


def _half(block: Block, at: int) -> float:
    return float(np.frombuffer(block[at : at + 2], np.float16)[0])


def _nibbles(packed: Block) -> list[int]:
    """The low halves of some bytes, then the high ones."""
    return [byte & 15 for byte in packed] + [byte >> 4 for byte in packed]


def _fifth_bits(block: Block, at: int) -> list[int]:
    bits = int.from_bytes(block[at : at + 4], "little")
    return [bits >> index & 1 for index in range(32)]


def _q4_0(block: Block) -> Iterator[float]:
    return (_half(block, 0) * (q - 8) for q in _nibbles(block[2:18]))


def _q4_1(block: Block) -> Iterator[float]:
    return (_half(block, 0) * q + _half(block, 2) for q in _nibbles(block[4:20]))


def _q5_0(block: Block) -> Iterator[float]:
    pairs = zip(_nibbles(block[6:22]), _fifth_bits(block, 2), strict=True)
    return (_half(block, 0) * (q + 16 * bit - 16) for q, bit in pairs)


def _q5_1(block: Block) -> Iterator[float]:
    pairs = zip(_nibbles(block[8:24]), _fifth_bits(block, 4), strict=True)
    return (_half(block, 0) * (q + 16 * bit) + _half(block, 2) for q, bit in pairs)


def _q8_0(block: Block) -> Iterator[float]:
    return (_half(block, 0) * int(q) for q in np.frombuffer(block[2:34], np.int8))


def _scale_and_least(packed: Block, group: int) -> tuple[int, int]:
    """Six bits each, of eight groups in twelve bytes."""
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4


def _q4_k(block: Block) -> Iterator[float]:
    return _k(block, block[16:144], lambda group, index: 0)


def _q5_k(block: Block) -> Iterator[float]:
    high = block[16:48]
    return _k(block, block[48:176], lambda group, index: high[index] >> group & 1)


def _k(block: Block, packed: Block, bit: Callable[[int, int], int]) -> Iterator[float]:
    for group in range(8):
        scale, least = _scale_and_least(block[4:16], group)
        for index in range(32):
            byte = packed[group // 2 * 32 + index]
            q = (byte >> 4 if group % 2 else byte & 15) + 16 * bit(group, index)
            yield _half(block, 0) * scale * q - _half(block, 2) * least


def _q6_k(block: Block) -> Iterator[float]:
    scales = np.frombuffer(block[192:208], np.int8)
    for half in range(2):
        low, high = block[64 * half : 64 * half + 64], block[128 + 32 * half : 160 + 32 * half]
        for quarter in range(4):
            for index in range(32):
                byte = low[index + 32 * (quarter % 2)]
                q = (byte >> 4 if quarter > 1 else byte & 15) | (high[index] >> 2 * quarter & 3) << 4
                yield _half(block, 208) * int(scales[8 * half + 2 * quarter + index // 16]) * (q - 32)


_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def _iq4_nl(block: Block) -> Iterator[float]:
    return (_half(block, 0) * _IQ4_NL[q] for q in _nibbles(block[2:18]))


def _mxfp4(block: Block) -> Iterator[float]:
    return (2.0 ** (block[0] - 127) * (-1) ** (q >> 3) * _E2M1[q & 7] for q in _nibbles(block[1:17]))


REFERENCES: dict[str, tuple[Callable[[Block], Iterator[float]], tuple[int, ...]]] = {
    "Q4_0": (_q4_0, (0,)), "Q4_1": (_q4_1, (0, 2)), "Q5_0": (_q5_0, (0,)), "Q5_1": (_q5_1, (0, 2)),
    "IQ4_NL": (_iq4_nl, (0,)), "MXFP4": (_mxfp4, ()),
    "Q8_0": (_q8_0, (0,)), "Q4_K": (_q4_k, (0, 2)), "Q5_K": (_q5_k, (0, 2)), "Q6_K": (_q6_k, (208,)),
}  # fmt: skip
"""What a block stands for, and where its numbers of 16 bits are."""


def test_every_supported_type_has_a_reference() -> None:
    assert {*REFERENCES} == {*ROUNDED}


@pytest.mark.parametrize("kind", ROUNDED)
def test_random_blocks_are_read_as_ggml_defines_them(kind: str, tmp_path: Path, rng: np.random.Generator) -> None:
    reference, halves = REFERENCES[kind]
    numbers, size = gguf.GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = rng.integers(0, 256, (ROWS * COLUMNS // numbers, size), np.uint8)
    for at in halves:
        blocks[:, at : at + 2] = rng.normal(0, 0.1, len(blocks)).astype(np.float16)[:, None].view(np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(100, 150, len(blocks))
    path = tmp_path / "blocks"
    path.write_bytes(b"before" + blocks.tobytes())
    tensor = GgufTensor("x", TensorEntry(path, kind, (ROWS, COLUMNS), 6, 6 + blocks.nbytes))
    expected = np.array([[*reference(block.tobytes())] for block in blocks], np.float32).reshape(ROWS, COLUMNS)
    np.testing.assert_allclose(tensor.rows(0, ROWS), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(tensor.rows(2, 5), tensor.rows(0, ROWS)[2:5])


@pytest.mark.parametrize("alternating", [1, 2])
def test_a_stack_is_the_transposed_experts(alternating: int, tmp_path: Path, rng: np.random.Generator) -> None:
    experts, rows, columns = 3, 4, 32
    values = rng.normal(size=(alternating, experts, rows, columns)).astype(np.float32)
    path = tmp_path / "stacks"
    path.write_bytes(values.tobytes())
    size = values[0].nbytes
    parts = [
        GgufTensor("x", TensorEntry(path, "F32", (experts, rows, columns), at * size, (at + 1) * size))
        for at in range(alternating)
    ]
    stack = GgufStack(tuple(parts))
    in_turn = np.stack([*values], axis=2).reshape(experts, -1, columns)
    assert stack.shape == (experts, columns, alternating * rows)
    np.testing.assert_array_equal(stack.rows(0, experts), in_turn.swapaxes(1, 2))
    np.testing.assert_array_equal(stack.rows(1, 2), in_turn[1:2].swapaxes(1, 2))
    np.testing.assert_array_equal(stack.flat[-1].rows(0, experts * rows), values[-1].reshape(-1, columns))


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "F16"])
@pytest.mark.parametrize("heads", [0, 2])
def test_blocks_match_those_of_the_same_rows(kind: str, heads: int, tmp_path: Path, rng: np.random.Generator) -> None:
    rows, columns = 16, 64
    values = rng.normal(size=(rows, columns)).astype(np.float32)
    stored = gguf.quantize(values, GGMLQuantizationType[kind]).view(np.uint8).reshape(rows, -1)
    path = tmp_path / "blocks"
    path.write_bytes(b"before" + stored.tobytes())
    tensor = GgufTensor("x", TensorEntry(path, kind, (rows, columns), 6, 6 + stored.nbytes), heads)
    for begin, end in ((0, rows), (3, 11), (7, 8)):
        blocks = tensor.blocks(begin, end)
        assert blocks.dtype == np.uint8
        wide = gguf.dequantize(blocks, GGMLQuantizationType[kind])
        np.testing.assert_array_equal(wide.reshape(end - begin, columns), tensor.rows(begin, end))
