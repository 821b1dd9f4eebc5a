"""The GPU of this machine, for tests that build engines for it with one of the two products."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.plugins.tensorrt.products import PRODUCTS


def gpu_for(product: str) -> str:
    """Name of the GPU, such as ``sm_100``. Skips the test where the product is missing or makes no code for it."""
    from peagle.compiler.hardware.gpus import sm_number
    from peagle.engines.backends.tensorrt.device import find_gpu

    gpu = find_gpu(product)
    assert gpu is not None
    if not PRODUCTS[product].supports(sm_number(gpu)):
        pytest.skip(f"{PRODUCTS[product].title} makes no code for {gpu}")
    module_of(product)
    return gpu


def module_of(product: str) -> Any:
    """The Python module of the product. Skips the test without it."""
    from peagle.plugins.errors import PeagleError
    from peagle.plugins.tensorrt.import_tensorrt import load

    try:
        return load(product)
    except PeagleError as error:
        pytest.skip(f"needs {product}: {error.one_line}")
