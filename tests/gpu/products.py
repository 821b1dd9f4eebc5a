"""The GPU of this machine, for tests that build engines for it with one of the two products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from peagle.plugins.tensorrt.import_tensorrt import Product


def gpu_for(product: Product) -> str:
    """Name of the GPU, such as ``sm_100``. Skips the test where the product is missing or makes no code for it."""
    from peagle.compiler.hardware.gpus import RTX_SMS, sm_number
    from peagle.engines.backends.tensorrt.device import find_gpu

    gpu = find_gpu(product)
    assert gpu is not None
    if product == "tensorrt-rtx" and sm_number(gpu) not in RTX_SMS:
        pytest.skip(f"TensorRT-RTX makes no code for {gpu}")
    module_of(product)
    return gpu


def module_of(product: Product) -> Any:
    """The Python module of the product. Skips the test without it."""
    from peagle.plugins.errors import PeagleError
    from peagle.plugins.tensorrt.import_tensorrt import load

    try:
        return load(product)
    except PeagleError as error:
        pytest.skip(f"needs {product}: {error.one_line}")
