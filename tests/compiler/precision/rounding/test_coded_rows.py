"""Codes and scales equal those of a simple reference, bit by bit, for any division of a weight."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.precision.on_the_fly_quantizer import OnTheFlyQuantizer
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.precision.rounding import coded_rows, in_order, scale_and_min
from peagle.compiler.precision.rounding.numbers_to_codes import LARGEST, SMALLEST
from peagle.compiler.precision.weight_selection import Selection
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.quantization.quantized_weight import MIDDLE, QuantizedWeight
from peagle.graphs.targets.checkpoint_pieces import UnreadRows
from peagle.graphs.targets.weight_roles import Role, RoledWeight
from peagle.plugins.errors import BuildError
from peagle.plugins.number_types import powers_of_two

Array = np.ndarray[Any, Any]
EVERY = [
    ("fp8", "tensorrt"), ("fp8", "tensorrt-sm100"), ("fp8", "ort"), ("int8", "tensorrt"), ("int8", "ort"),
    ("int8", "cpu"), ("mxfp8", "tensorrt"), ("mxfp8", "ort"), ("int4", "tensorrt"), ("int4", "ort"), ("int4", "cpu"),
]  # fmt: skip


def weights(shape: tuple[int, ...], seed: int, *, bf16: bool = True) -> Array:
    """Numbers of many magnitudes; some rows and some blocks of zeros, and ties."""
    random = np.random.default_rng(seed)
    values = random.standard_normal(shape, dtype=np.float32) * np.exp2(random.integers(-12, 4, (*shape[:-1], 1)))
    values[random.random(shape) < 0.1] = 0.5
    values[..., : shape[-1] // 2][random.random(shape[:-1]) < 0.3] = 0
    return (values.astype(ml_dtypes.bfloat16) if bf16 else values).astype(np.float32)


def provider(kind: str, lowering: str, values: Array, cuts: tuple[int, ...] = ()) -> OnTheFlyQuantizer:
    """The source of one weight that is read in runs of rows, cut before the rows ``cuts``."""

    def runs(_: str, shape: tuple[int, ...]) -> Iterator[UnreadRows]:
        return map(UnreadRows.of, np.split(values.reshape(-1, shape[-1]), sorted({cut for cut in cuts if cut})))

    wide = "fp32" if lowering in ("ort", "cpu") else "bf16"
    role: Role = "experts" if values.ndim > 2 else "mlp"
    recipe = RECIPES[kind].on(wide, LOWERINGS[lowering])
    return OnTheFlyQuantizer(
        Selection(recipe, {"w": RoledWeight("w", values.shape, role, 1)}), LOWERINGS[lowering], runs
    )


def found(source: OnTheFlyQuantizer, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """All codes and all scales."""
    codes = np.concatenate(list(source.codes("w", shape)))
    return codes, np.concatenate([np.atleast_1d(scales) for scales in source.scales("w", shape)])


def reference(values: Array, stored: QuantizedWeight, wide: str) -> tuple[Array, Array]:
    """The same, of the whole weight at once and with the types of ml_dtypes."""
    rows, largest = values.reshape(-1, values.shape[-1]), np.float32(LARGEST[stored.codes])
    if stored.block:
        rows = np.pad(rows, ((0, 0), (0, -rows.shape[1] % stored.block)))
        grouped = rows.reshape(len(rows), -1, stored.block)
    else:
        grouped = rows.reshape(int(np.prod(stored.scale)), -1)
    if stored.packed == "q4_1":
        fitted = scale_and_min.fit(grouped)
        return scale_and_min.codes_of(grouped, fitted).reshape(len(rows), -1), fitted
    amax = abs(grouped).max(axis=-1)
    if stored.powers:
        scales = powers_of_two(amax)
    elif stored.codes in ("int4", "uint4"):
        scales = searched(grouped, stored.codes)
    else:
        scales = np.where(amax / largest < np.finfo(np.float32).tiny, np.float32(1), amax / largest)
    if stored.block and not stored.powers:
        scales = scales.astype({"bf16": ml_dtypes.bfloat16, "fp32": np.float32}[wide]).astype(np.float32)
    steps = grouped / scales[..., None]
    if stored.codes == "float8_e4m3fn":
        codes = np.clip(steps, -448, 448).astype(ml_dtypes.float8_e4m3fn)
    else:
        whole = np.clip(np.rint(steps), SMALLEST[stored.codes], LARGEST[stored.codes]) + MIDDLE.get(stored.codes, 0)
        codes = whole.astype(np.int16).astype(getattr(ml_dtypes, stored.codes, stored.codes))
    scales = np.log2(scales).astype(np.int16) + 127 if stored.powers else scales
    return codes.reshape(len(rows), -1), scales


def searched(grouped: Array, codes: str) -> Array:
    """The first of seven scales with the least sum of squared errors, block by block."""
    rows = grouped.reshape(-1, grouped.shape[-1])
    extreme = rows[np.arange(len(rows)), abs(rows).argmax(axis=1)]
    largest = -extreme if codes == "uint4" else abs(extreme)
    best, least = largest / np.float32(8), np.full(len(rows), np.inf, np.float32)
    best = np.where(abs(best) < np.finfo(np.float32).tiny, np.float32(1), best)
    for code in (6.5, 7.0, 7.5, 8.0, 8.5, 9.0, 9.5):
        scales = largest / np.float32(code)
        scales = np.where(abs(scales) < np.finfo(np.float32).tiny, np.float32(1), scales)
        error = np.clip(np.rint(rows / scales[:, None]), -8, 7) * scales[:, None] - rows
        squared = np.einsum("ij,ij->i", error, error)
        best, least = np.where(squared < least, scales, best), np.minimum(squared, least)
    return best.reshape(grouped.shape[:-1])


def assert_same(source: OnTheFlyQuantizer, values: Array, wide: str) -> None:
    codes, scales = found(source, values.shape)
    wanted, its_scales = reference(values, source.storage()[0]["w"], wide)
    assert codes.dtype == wanted.dtype
    np.testing.assert_array_equal(codes.view(np.uint8), wanted.view(np.uint8))
    np.testing.assert_array_equal(scales.reshape(-1), its_scales.reshape(-1))


@pytest.mark.parametrize(("kind", "lowering"), EVERY)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_cut_and_any_number_of_threads_give_the_reference(kind: str, lowering: str, data: st.DataObject) -> None:
    is_stack = data.draw(st.booleans()) if lowering != "cpu" else False
    leading = data.draw(st.sampled_from([(1, 1), (3, 4)] if is_stack else [(1,), (13,)]), "leading")
    columns = data.draw(st.sampled_from([32, 64, 256, 384] + [33, 100] * (kind in ("fp8", "mxfp8"))), "columns")
    values = weights((*leading, columns), data.draw(st.integers(0, 99), "seed"), bf16=data.draw(st.booleans(), "bf16"))
    cuts = data.draw(st.lists(st.integers(0, int(np.prod(leading)) - 1), max_size=4), "cuts")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(in_order, "processors", lambda: data.draw(st.integers(1, 3), "threads"))
        patched.setattr(coded_rows, "_AT_ONCE", data.draw(st.sampled_from([1, 700, 2**18]), "numbers at once"))
        patched.setattr(coded_rows, "_MANY", data.draw(st.sampled_from([1, 2**18]), "numbers for a table"))
        source = provider(kind, lowering, values, tuple(cuts))
        assert_same(source, values, "fp32" if lowering in ("ort", "cpu") else "bf16")


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("shape", [(1024, 512), (3, 512, 512)])
@pytest.mark.parametrize("lowering", ["tensorrt-sm100", "ort"])
def test_table_rounded_matrices_match_the_reference(lowering: str, shape: tuple[int, ...], bf16: bool) -> None:
    values = weights(shape, 1, bf16=bf16)
    source = provider("fp8", lowering, values, (300, 512, 700, 1023))
    assert_same(source, values, "bf16")


@pytest.mark.parametrize("kind", ["fp8", "int4"])
def test_the_loss_is_that_of_the_whole_weight(kind: str) -> None:
    values = weights((64, 256), 0)
    source = provider(kind, "tensorrt", values, (10, 11, 40))
    codes, scales = found(source, values.shape)
    block = source.storage()[0]["w"].block or values.size
    after = codes.astype(np.float64).reshape(-1, block) * scales.reshape(-1, 1).astype(np.float64)
    lost = np.linalg.norm(after.reshape(-1) - values.reshape(-1)) / np.linalg.norm(values)
    assert source.losses["w"] == pytest.approx(lost, rel=1e-5)


def test_numbers_that_float16_has_no_place_for_are_refused_from_a_thread() -> None:
    values = weights((16, 64), 0)
    values[9, 3] = 7e4
    source = provider("int4", "tensorrt", values, (8,))
    recipe = RECIPES["int4"].on("fp16", LOWERINGS["tensorrt"])
    source = OnTheFlyQuantizer(Selection(recipe, source.selection.weights), source.lowering, source.runs)
    with pytest.raises(BuildError, match="w: values overflow float16") as caught:
        list(source.codes("w", values.shape))
    assert "--precision bf16" in caught.value.fix
