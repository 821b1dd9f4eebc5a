"""A build recommends a quantized LM head if its measured loss is small, and advises against it otherwise."""

from __future__ import annotations

import numpy as np
import pytest

from peagle.compiler.precision.calibration.lm_head_loss import LmHeadLoss
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES

SMALL, TOO_FAR, TOO_OFTEN = (0.005, 0.02), (0.006, 0.0), (0.0, 0.03)


def note(
    loss: tuple[float, float], recipe: str, lm_head: str | None = None, *, kind: str = "fp8", tensorrt: bool = True
) -> str:
    (measured,) = LmHeadLoss.of({kind: np.array(loss, np.float32)})
    return measured.note(PrecisionOptions(lm_head=lm_head).of(RECIPES[recipe].on("bf16")), tensorrt=tensorrt)


def test_a_head_that_would_lose_little_is_advised() -> None:
    assert note(SMALL, "fp8") == (
        "--lm-head-precision fp8 would make every round read fewer bytes, and would change only the logits of "
        "the calibration samples by 0.005 nats per token, and the most likely next token at 2.0% of the positions"
    )


@pytest.mark.parametrize("loss", [TOO_FAR, TOO_OFTEN])
def test_a_head_that_loses_too_much_is_advised_against(loss: tuple[float, float]) -> None:
    assert note(loss, "fp8", "fp8").endswith("(limits: 0.005 nats, 2%); --lm-head-precision bf16 avoids this")


@pytest.mark.parametrize(
    ("loss", "recipe", "lm_head"),
    [(TOO_FAR, "fp8", None), (SMALL, "fp8", "fp8"), (SMALL, "int8", None), (SMALL, "bf16", None)],
)
def test_no_advice_where_the_type_suits_or_another_was_chosen(
    loss: tuple[float, float], recipe: str, lm_head: str | None
) -> None:
    assert note(loss, recipe, lm_head) == ""


def test_no_advice_for_kernels_that_round_inputs_otherwise() -> None:
    assert note(TOO_FAR, "int8", "int8", kind="int8", tensorrt=True)
    assert note(TOO_FAR, "int8", "int8", kind="int8", tensorrt=False) == ""
