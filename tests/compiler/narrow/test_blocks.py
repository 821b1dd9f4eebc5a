"""Weights rounded in blocks while they stream: which blocks, scales that fit the codes, and one search for each."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from peagle.compiler.narrow import RoundedHere
from peagle.compiler.narrow.codes import values_of
from peagle.compiler.recipes import RECIPES
from peagle.graphs.census import Role, RoledWeight
from peagle.graphs.lowering import Lowering


class Checkpoint:
    """Noise, two rows at a time; counts how often a weight is read."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.reads = seed, 0

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(self.seed).standard_normal(shape).astype(np.float32)

    def __call__(self, _: str, shape: tuple[int, ...]) -> Iterator[np.ndarray]:
        self.reads += 1
        values = self.values(shape).reshape(-1, shape[-1])
        yield from (values[at : at + 2] for at in range(0, len(values), 2))


def _provider(read: Checkpoint, lowering: Lowering = "ort", **shapes: tuple[int, ...]) -> RoundedHere:
    role: Role = "experts" if len(shapes) > 1 else "mlp"
    wanted = {name: RoledWeight(name, shape, role, 1) for name, shape in shapes.items()}
    wide = "fp32" if lowering == "ort" else "fp16"
    return RoundedHere(RECIPES["int4"].on(wide, lowering), lowering, wanted, read)


@pytest.mark.parametrize(
    ("columns", "blocks"),
    [((2816, 704), {"ort": 32, "tensorrt": 64}), ((2880, 2880), {"ort": 32, "tensorrt": 64}),
     ((48, 24), {"ort": 8, "tensorrt": 8}), ((2048, 768), {"ort": 32, "tensorrt": 128})],
)  # fmt: skip
@pytest.mark.parametrize("lowering", ["ort", "tensorrt"])
def test_both_stacks_of_experts_have_the_same_blocks(
    columns: tuple[int, int], blocks: dict[str, int], lowering: Lowering
) -> None:
    taken, wide = _provider(
        Checkpoint(), lowering, gate_up=(4, 2 * columns[1], columns[0]), down=(4, columns[0], columns[1])
    ).weights()
    assert wide == {}
    assert {each.block for each in taken.values()} == {blocks[lowering]}
    assert taken["down"].scale == (4, columns[0], columns[1] // blocks[lowering])


def test_columns_that_no_block_divides_stay_wide_and_say_so() -> None:
    taken, wide = _provider(Checkpoint(), w=(6, 20)).weights()
    assert taken == {}
    assert "20 columns" in wide["w"]


@pytest.mark.parametrize("lowering", ["ort", "tensorrt"])
def test_codes_times_their_scales_are_the_weight_and_it_is_read_once(lowering: Lowering) -> None:
    read, shape = Checkpoint(), (7, 256)
    provider = _provider(read, lowering, w=shape)
    kind, block = provider.weights()[0]["w"].codes, provider.weights()[0]["w"].block
    codes = np.concatenate(list(provider.codes("w", shape)))
    scales = np.concatenate(list(provider.scales("w", shape)))
    assert read.reads == 1
    values = values_of(codes.reshape(7, -1, block), scales[..., None], kind).reshape(shape)
    wide = read.values(shape)
    assert np.linalg.norm(values - wide) / np.linalg.norm(wide) == pytest.approx(provider.losses["w"], rel=1e-4)
    assert provider.losses["w"] < 0.11
    np.testing.assert_array_equal(np.concatenate(list(provider.scales("w", shape))), scales)
    assert read.reads == 2


def test_scales_too_small_for_half_precision_do_not_make_codes_of_nothing() -> None:
    provider = _provider(Checkpoint(), "tensorrt", w=(2, 128))
    small = type(provider)(
        provider.recipe, provider.lowering, provider.wanted, lambda _, shape: iter([np.full(shape, 1e-9, np.float32)])
    )
    codes, scales = next(small.codes("w", (2, 128))), next(small.scales("w", (2, 128)))
    assert np.all(codes.astype(np.int64) == 0)
    assert np.all(scales == 1)
