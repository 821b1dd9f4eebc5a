"""Batches for the two products of routed experts over MXFP4 blocks, and windows of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.plugins.plugin_cases import Arrays

GATE_UP, DOWN = "Mxfp4GateUp", "Mxfp4Down"
OF_TOKENS = ("x", "inner", "experts", "scores")
WILD_IDS = [-1, -(2**40), 2**31, 2**32]


def blocks(rng: np.random.Generator, *shape: int, wild: bool = False) -> tuple[Any, Any]:
    """Codes and exponents of matrices [..., columns]: any codes, and scales around 2^-5, or any at all."""
    *rows, columns = shape
    codes = rng.integers(-128, 128, (*rows, columns // 32, 16)).astype(np.int8)
    exponents = rng.integers(0 if wild else 119, 256 if wild else 126, (*rows, columns // 32)).astype(np.uint8)
    return codes, exponents.view(np.int8)


def gate_up_batch(
    rng: np.random.Generator,
    dtype: Any,
    *,
    tokens: int = 5,
    chosen: int = 2,
    count: int = 4,
    columns: int = 64,
    width: int = 3,
    limit: float = 7.0,
    wild: bool = False,
) -> Arrays:
    codes, exponents = blocks(rng, count, width, 2, columns, wild=wild)
    x = rng.normal(size=(tokens, columns)) * 3
    numbers = {"alpha": 1.702, "beta": 1.0, "limit": limit}
    return {
        "x": x.astype(dtype),
        "experts": choices(rng, tokens, chosen, count),
        "codes": codes,
        "exponents": exponents,
        "bias": rng.normal(size=(count, 2 * width)).astype(dtype),
        **{name: np.array(number, np.float32) for name, number in numbers.items()},
    }


def down_batch(
    rng: np.random.Generator,
    dtype: Any,
    *,
    tokens: int = 5,
    chosen: int = 2,
    count: int = 4,
    columns: int = 64,
    width: int = 3,
    wild: bool = False,
) -> Arrays:
    codes, exponents = blocks(rng, count, width, columns, wild=wild)
    return {
        "inner": rng.normal(size=(tokens, chosen, columns)).astype(np.float32),
        "experts": choices(rng, tokens, chosen, count),
        "scores": rng.random((tokens, chosen)).astype(dtype),
        "codes": codes,
        "exponents": exponents,
        "bias": rng.normal(size=(count, width)).astype(dtype),
    }


BATCHES = {GATE_UP: gate_up_batch, DOWN: down_batch}


def choices(rng: np.random.Generator, tokens: int, chosen: int, count: int) -> Any:
    """Different experts for each token."""
    return np.array([rng.permutation(count)[:chosen] for _ in range(tokens)], np.int64).reshape(tokens, chosen)


def window(batch: Arrays, tokens: Any) -> Arrays:
    """The batch with some of its tokens, in some order."""
    return {name: array[tokens] if name in OF_TOKENS else array for name, array in batch.items()}


@st.composite
def batches(draw: Any, op: str, dtypes: tuple[Any, ...]) -> Arrays:
    """Any window, with experts that many tokens share or none has, and some that do not exist."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 9))
    batch = BATCHES[op](
        rng,
        draw(st.sampled_from(dtypes)),
        tokens=draw(st.integers(1, 9)),
        chosen=draw(st.integers(1, count)),
        count=count,
        columns=32 * draw(st.integers(1, 5)),
        width=draw(st.integers(1, 3)),
        wild=draw(st.booleans()),
    )
    if draw(st.booleans()):
        ids = batch["experts"]
        batch["experts"] = np.where(rng.random(ids.shape) < 0.2, rng.choice([*WILD_IDS, count, 0]), ids)
    return batch
