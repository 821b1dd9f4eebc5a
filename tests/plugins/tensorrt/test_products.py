"""The records of the TensorRT products agree with the extras, and tell how each product builds."""

from __future__ import annotations

import pytest

from peagle.plugins.optional_packages import EXTRAS
from peagle.plugins.tensorrt.products import FULL_TENSORRT, PRODUCTS, TENSORRT_RTX, TensorRTProduct


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=list(PRODUCTS))
def test_the_extra_of_a_product_installs_its_module(product: TensorRTProduct) -> None:
    assert EXTRAS[product.extra][product.module] == product.name == product.distributions[0]


def test_a_product_that_builds_ahead_supports_only_the_gpus_of_its_record() -> None:
    assert TENSORRT_RTX.builds_ahead
    assert [sm for sm in (75, 80, 90, 100, 120) if TENSORRT_RTX.supports(sm)] == [80, 120]
    assert not FULL_TENSORRT.builds_ahead
    assert all(map(FULL_TENSORRT.supports, (80, 90, 100, 120)))


@pytest.mark.parametrize(("version", "has"), [("10.15.1", False), ("11.0.0", True), ("11.4.0", True), ("", True)])
def test_the_expert_layer_depends_on_the_version(version: str, has: bool) -> None:
    assert FULL_TENSORRT.has_expert_layer(version) == has
    assert not TENSORRT_RTX.has_expert_layer(version)
