"""Weights are quantized in blocks while they stream: block sizes, scales, and one search per block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from peagle.compiler.precision.calibration.saved_ranges import Facts, Scales
from peagle.compiler.precision.on_the_fly_quantizer import OnTheFlyQuantizer
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.rounding.numbers_to_codes import values_of
from peagle.compiler.precision.weight_selection import Selection
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets.checkpoint_pieces import UnreadRows
from peagle.graphs.targets.weight_roles import Role, RoledWeight
from peagle.plugins.errors import BuildError
from peagle.plugins.ops.microscaled_round.reference import microscaled_round


class Checkpoint:
    """Noise, two rows at a time; counts how often a weight is read."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.reads = seed, 0

    def values(self, shape: tuple[int, ...]) -> np.ndarray:
        return np.random.default_rng(self.seed).standard_normal(shape).astype(np.float32)

    def __call__(self, _: str, shape: tuple[int, ...]) -> Iterator[UnreadRows]:
        self.reads += 1
        values = self.values(shape).reshape(-1, shape[-1])
        yield from (UnreadRows.of(values[at : at + 2]) for at in range(0, len(values), 2))


def _provider(read: Checkpoint, lowering: str = "ort", **shapes: tuple[int, ...]) -> OnTheFlyQuantizer:
    role: Role = "experts" if len(shapes) > 1 else "mlp"
    weights = {name: RoledWeight(name, shape, role, 1) for name, shape in shapes.items()}
    wide = "fp32" if lowering in ("ort", "cpu") else "fp16"
    recipe = RECIPES["int4"].on(wide, LOWERINGS[lowering])
    return OnTheFlyQuantizer(Selection(recipe, weights), LOWERINGS[lowering], read)


@pytest.mark.parametrize(
    ("columns", "blocks"),
    [((2816, 704), {"ort": 32, "tensorrt": 64}), ((2880, 2880), {"ort": 32, "tensorrt": 64}),
     ((48, 16), {"ort": 16, "tensorrt": 8}), ((2048, 768), {"ort": 32, "tensorrt": 128})],
)  # fmt: skip
@pytest.mark.parametrize("lowering", ["ort", "tensorrt"])
def test_both_expert_stacks_have_the_same_blocks(
    columns: tuple[int, int], blocks: dict[str, int], lowering: str
) -> None:
    taken, wide = _provider(
        Checkpoint(), lowering, gate_up=(4, 2 * columns[1], columns[0]), down=(4, columns[0], columns[1])
    ).storage()
    assert wide == {}
    assert {each.block for each in taken.values()} == {blocks[lowering]}
    assert taken["down"].scale == (4, columns[0], columns[1] // blocks[lowering])


def test_indivisible_columns_stay_unquantized_with_a_reason() -> None:
    taken, wide = _provider(Checkpoint(), w=(6, 20)).storage()
    assert taken == {}
    assert wide["w"] == "no block size from 16 to 32 divides its 20 columns"


@pytest.mark.parametrize("lowering", ["ort", "tensorrt"])
def test_codes_times_their_scales_are_the_weight_and_it_is_read_once(lowering: str) -> None:
    read, shape = Checkpoint(), (7, 256)
    provider = _provider(read, lowering, w=shape)
    kind, block = provider.storage()[0]["w"].codes, provider.storage()[0]["w"].block
    codes = np.concatenate(list(provider.codes("w", shape)))
    scales = np.concatenate(list(provider.scales("w", shape)))
    assert read.reads == 1
    values = values_of(codes.reshape(7, -1, block), scales[..., None], kind).reshape(shape)
    wide = read.values(shape)
    assert np.linalg.norm(values - wide) / np.linalg.norm(wide) == pytest.approx(provider.losses["w"], rel=1e-4)
    assert provider.losses["w"] < 0.11
    np.testing.assert_array_equal(np.concatenate(list(provider.scales("w", shape))), scales)
    assert read.reads == 2


@pytest.mark.parametrize("lowering", ["ort", "tensorrt"])
@pytest.mark.parametrize("shape", [(5, 64), (5, 48), (5, 20), (3, 4, 33), (3, 4, 96)])
def test_microscaled_rows_are_stored_in_whole_blocks(lowering: str, shape: tuple[int, ...]) -> None:
    """With codes of zero at their end, which no scale depends on."""
    read, columns = Checkpoint(), shape[-1]
    whole = (*shape[:-1], columns + -columns % 32)
    role: Role = "experts" if len(shape) > 2 else "mlp"
    recipe = RECIPES["mxfp8"].on("fp32" if lowering == "ort" else "fp16", LOWERINGS[lowering])
    selection = Selection(recipe, {"w": RoledWeight("w", shape, role, 1)})
    provider = OnTheFlyQuantizer(selection, LOWERINGS[lowering], read)
    taken, wide = provider.storage()
    assert (wide, taken["w"].scale, taken["w"].block) == ({}, (*shape[:-1], whole[-1] // 32), 32)
    codes = np.concatenate(list(provider.codes("w", shape))).astype(np.float32).reshape(whole)
    powers = np.concatenate(list(provider.scales("w", shape))).reshape(taken["w"].scale).astype(np.float32) - 127
    padded = np.pad(read.values(shape), [*[(0, 0)] * (len(shape) - 1), (0, whole[-1] - columns)])
    np.testing.assert_array_equal(codes * np.exp2(powers).repeat(32, axis=-1), microscaled_round(padded)[0])
    assert not np.any(codes[..., columns:])


def test_experts_of_a_layer_have_a_scale_each_or_share_the_largest() -> None:
    stack = RoledWeight("experts", (3, 4, 32), "experts", 1)
    selection = Selection(RECIPES["fp8"].on("fp16"), {"experts": stack})
    layer = LOWERINGS["tensorrt-sm100"]
    each, shared = (
        OnTheFlyQuantizer(selection, replace(layer, experts_share_scale=one), Checkpoint()) for one in (False, True)
    )
    (scales,), (scale,) = (provider.scales("experts", stack.shape) for provider in (each, shared))
    assert (scales.shape, scale.shape) == ((3,), ())
    assert scale == scales.max()
    assert shared.storage()[0]["experts"].scale == ()
    assert each.key != shared.key
    codes = np.concatenate(list(shared.codes("experts", stack.shape))).astype(np.float32)
    np.testing.assert_allclose(codes.reshape(stack.shape) * scale, Checkpoint().values(stack.shape), atol=16 * scale)


def test_tiny_scales_do_not_underflow_in_half_precision() -> None:
    provider = _provider(Checkpoint(), "tensorrt", w=(2, 128))
    small = type(provider)(
        provider.selection, provider.lowering, lambda _, shape: iter([UnreadRows.of(np.full(shape, 1e-9, np.float32))])
    )
    codes, scales = next(small.codes("w", (2, 128))), next(small.scales("w", (2, 128)))
    assert np.all(codes.astype(np.int64) == 0)
    assert np.all(scales == 1)


def test_unused_ranges_change_nothing() -> None:
    """They may be there for the caches."""
    facts = Facts("m", "a", "f", {}, "float32", "d", "s", 1, 1, {}, ("an expert saw no token",))
    plain = _provider(Checkpoint(), "tensorrt", w=(2, 128))
    for largest in (1.0, 2.0):
        calibrated = replace(plain, ranges=Scales({"w": np.full((), largest, np.float32)}, {}, {}, facts))
        assert (calibrated.key, calibrated.notes()) == (plain.key, [])
        fp8 = replace(calibrated, selection=replace(plain.selection, recipe=RECIPES["fp8"].on("fp16")))
        assert fp8.key[-1] == {"w": largest}
        assert fp8.notes() == list(facts.warnings)


def _measured(squares: np.ndarray) -> Scales:
    facts = Facts("m", "a", "f", {}, "float32", "d", "s", 1, 1, {})
    return Scales({}, {}, {}, facts, {"w": squares.astype(np.float32)})


def _stored(provider: OnTheFlyQuantizer, shape: tuple[int, int]) -> np.ndarray:
    codes = np.concatenate(list(provider.codes("w", shape))).reshape(shape[0], -1, 32)
    fitted = np.concatenate(list(provider.scales("w", shape)))
    return (codes * fitted[..., :1] + fitted[..., 1:]).reshape(shape)


def test_four_bit_rounding_protects_large_inputs() -> None:
    read, shape, squares = Checkpoint(), (7, 96), np.ones(96)
    squares[[3, 40]] = 1e4
    flat = _provider(read, "cpu", w=shape)
    measured = replace(flat, ranges=_measured(squares))
    measured.check()
    how = measured.storage()[0]["w"]
    assert (how.packed, how.scale, how.block) == ("q4_1", (7, 3, 2), 32)
    lost = [((_stored(each, shape) - read.values(shape)) ** 2 * squares).sum() for each in (flat, measured)]
    assert lost[1] < 0.3 * lost[0]
    assert measured.key != flat.key != replace(flat, ranges=_measured(squares * [2, *[1] * 95])).key
    assert (measured.unweighted(), measured.notes()) == ([], [])
    assert flat.unweighted() == ["w"]
    assert "4-bit quantization of 1 weight without calibration" in flat.notes()[0]


def test_second_moments_of_wrong_width_are_rejected() -> None:
    with pytest.raises(BuildError, match=r"(?s)of the input of w have the shape \[64\].*has 96 columns"):
        replace(_provider(Checkpoint(), "cpu", w=(7, 96)), ranges=_measured(np.ones(64))).check()


def test_other_lowerings_ask_for_no_squares() -> None:
    for lowering in ("ort", "tensorrt"):
        assert _provider(Checkpoint(), lowering, w=(7, 256)).unweighted() == []
