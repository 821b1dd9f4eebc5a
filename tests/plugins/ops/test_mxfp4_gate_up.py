"""Mxfp4GateUp and Mxfp4Down: routed experts over MXFP4 blocks, as GPT-OSS has them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError
from peagle.plugins.number_types import FP4
from peagle.plugins.ops import OPS
from peagle.plugins.ops.mxfp4_gate_up.blocks import matrix, products
from tests.plugins.plugin_cases import Arrays, few, inputs_of, reference
from tests.plugins.routed_experts import DOWN, GATE_UP, WILD_IDS, batches, blocks, down_batch, gate_up_batch, window

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN and infinity are computed with on purpose


def through_both(rng: np.random.Generator, dtype: Any, hidden: int, inner: int, **sizes: int) -> tuple[Arrays, Arrays]:
    first = gate_up_batch(rng, dtype, columns=hidden, width=inner, **sizes)
    second = down_batch(rng, dtype, columns=inner, width=hidden, **sizes) | {"experts": first["experts"]}
    return first, second | {"inner": reference(GATE_UP, first)[0]}


def test_a_block_has_two_columns_to_a_byte_and_a_power_of_two() -> None:
    every = np.arange(16, dtype=np.uint8)
    codes = (every | every[::-1] << 4).view(np.int8)[None]  # column 2 i is code i, column 2 i + 1 is code 15 - i
    numbers = matrix(codes, np.array([127 - 3], np.int8))
    np.testing.assert_array_equal(numbers, np.stack([FP4, FP4[::-1]], axis=1).reshape(-1).astype(np.float32) / 8)


def test_the_numbers_are_those_of_the_checkpoint_reader() -> None:
    from peagle.compiler.checkpoints.formats.stored_numbers import as_numbers, fp4_pairs

    codes, exponents = blocks(np.random.default_rng(0), 3, 5, 96)
    stored = fp4_pairs(codes.view(np.uint8)) * as_numbers("F8_E8M0", exponents.view(np.uint8))[..., None]
    np.testing.assert_array_equal(matrix(codes, exponents), stored.reshape(3, 5, 96))


def test_products_are_those_of_the_numbers() -> None:
    rng = np.random.default_rng(1)
    codes, exponents = blocks(rng, 7, 2880)
    x = rng.normal(size=(3, 2880)).astype(np.float32)
    exact = x.astype(np.float64) @ matrix(codes, exponents).astype(np.float64).T
    np.testing.assert_allclose(products(x, codes, exponents), exact, atol=2e-5 * np.abs(exact).max())


def test_experts_are_those_of_transformers() -> None:
    """GptOssExperts over the same numbers, with its own SwiGLU, interleaved rows and biases."""
    torch = pytest.importorskip("torch")
    gpt_oss = pytest.importorskip("transformers.models.gpt_oss.modeling_gpt_oss")
    from transformers import GptOssConfig

    hidden, inner, count, chosen = 64, 96, 6, 3
    first, second = through_both(np.random.default_rng(2), np.float32, hidden, inner, count=count, chosen=chosen)
    config = GptOssConfig(hidden_size=hidden, intermediate_size=inner, num_local_experts=count, num_hidden_layers=1)
    experts = gpt_oss.GptOssExperts(config)
    stacks = {
        "gate_up_proj": matrix(first["codes"], first["exponents"]).reshape(count, 2 * inner, hidden).swapaxes(1, 2),
        "down_proj": matrix(second["codes"], second["exponents"]).swapaxes(1, 2),
        "gate_up_proj_bias": first["bias"],
        "down_proj_bias": second["bias"],
    }
    experts.load_state_dict({name: torch.tensor(np.ascontiguousarray(stack)) for name, stack in stacks.items()})
    with torch.no_grad():
        ids, scores = torch.tensor(second["experts"]), torch.tensor(second["scores"])
        theirs = experts.eval()(torch.tensor(first["x"]), ids, scores).reshape(-1, hidden).numpy()
    ours = reference(DOWN, second)[0]
    np.testing.assert_allclose(ours, theirs, atol=1e-5 * np.abs(theirs).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_are_sparse_experts_over_the_numbers(dtype: Any) -> None:
    hidden, inner = 64, 96
    first, second = through_both(np.random.default_rng(3), dtype, hidden, inner, tokens=7)
    gate_up = matrix(first["codes"], first["exponents"]).reshape(4, 2 * inner, hidden)
    down = matrix(second["codes"], second["exponents"])
    arrays = [first["x"], first["experts"], second["scores"], gate_up, down, first["bias"], second["bias"]]
    (wanted,) = OPS["SparseExperts"].reference(*arrays, alpha=1.702, beta=1.0, limit=7.0)
    (y,) = reference(DOWN, second)
    assert y.dtype == dtype
    step = {np.float32: 2e-6, np.float16: 1e-3}.get(dtype, 8e-3)
    np.testing.assert_allclose(y.astype(np.float32), wanted.astype(np.float32), atol=step * float(abs(wanted).max()))


@few
@given(op=st.sampled_from([GATE_UP, DOWN]), data=st.data())
def test_body_matches_the_reference(run_body: Any, op: str, data: st.DataObject) -> None:
    batch = data.draw(batches(op, DTYPES))
    stack = len(batch["codes"])
    batch["experts"] = np.clip(batch["experts"], 0, stack - 1)  # the runtime refuses others
    batch["exponents"] = np.clip(batch["exponents"].view(np.uint8), 110, 130).view(np.int8)
    (ours,), (theirs,) = run_body(op, inputs_of(op, batch)), reference(op, batch)
    step = {"float16": 1e-3, "bfloat16": 8e-3}.get(str(theirs.dtype), 1e-5)
    scale = float(np.abs(theirs.astype(np.float32)).max()) + 1
    np.testing.assert_allclose(ours.astype(np.float32), theirs.astype(np.float32), atol=step * scale)


@pytest.mark.parametrize("op", [GATE_UP, DOWN])
def test_a_row_with_an_expert_that_does_not_exist_is_nan_and_no_other(op: str) -> None:
    batch = {GATE_UP: gate_up_batch, DOWN: down_batch}[op](np.random.default_rng(5), np.float32, tokens=6)
    whole = reference(op, batch)[0]
    for token, wild in enumerate([*WILD_IDS, 4]):
        batch["experts"][token, 1] = wild
    result = reference(op, batch)[0]
    lost = result[:5, 1] if op == GATE_UP else result[:5]
    assert np.isnan(lost).all()
    np.testing.assert_array_equal(result[5], whole[5])


def test_no_bit_of_a_token_depends_on_the_window() -> None:
    rng = np.random.default_rng(6)
    for op, make in ((GATE_UP, gate_up_batch), (DOWN, down_batch)):
        batch = make(rng, np.float16, tokens=9)
        whole = reference(op, batch)[0]
        for some in ([3], [8, 0, 3]):
            np.testing.assert_array_equal(reference(op, window(batch, some))[0], whole[some])


REFUSED: dict[str, tuple[dict[str, tuple[int, ...]], str]] = {
    "columns": ({"x": (5, 96)}, "2 blocks of 32 do not have the 96 columns of the other factor"),
    "bytes": ({"codes": (4, 3, 2, 2, 8)}, "a block has 16 bytes of codes, not 8"),
    "rows": (
        {"codes": (4, 3, 3, 2, 16), "exponents": (4, 3, 3, 2)},
        "an inner column has two rows, gate and up, not 3",
    ),
    "bias": ({"bias": (4, 5)}, "bias has 5 numbers per expert, not two for each of 3 columns"),
    "experts": ({"experts": (5, 257)}, "257 experts per token are not 1 to 256"),
    "inner columns": (
        {"codes": (4, 2**23, 2, 2, 16), "exponents": (4, 2**23, 2, 2), "bias": (4, 2**24)},
        "8388608 inner columns exceed the limit of one launch",
    ),
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_sizes_that_do_not_fit_are_refused(what: str) -> None:
    changed, words = REFUSED[what]
    batch = gate_up_batch(np.random.default_rng(0), np.float32)
    shapes = [changed.get(name, array.shape) for name, array in batch.items()]
    with pytest.raises(BuildError, match=words):
        OPS[GATE_UP].infer_shapes(shapes)
