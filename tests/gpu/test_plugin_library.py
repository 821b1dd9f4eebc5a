"""The C++ plugin library on a GPU: its launches against the NumPy references, and a plan of TensorRT that opens it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.plugins.errors import PeagleError
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt.library import LIBRARY
from peagle.plugins.tensorrt.products import PRODUCTS
from tests.gpu import on_device
from tests.gpu.on_device import own_sm, representable, run
from tests.gpu.plugin_calls import LibraryLauncher
from tests.gpu.products import module_of
from tests.plugins.plugin_cases import Arrays, assert_same_emission, inputs_of, quick, reference, windows, with_emitted

pytestmark = pytest.mark.gpu

MASK = {"mask_token_id": 7}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library for this GPU."""
    from peagle.plugins.tensorrt.library.pack import write_plugin_library

    folder = tmp_path_factory.mktemp("library")
    try:
        write_plugin_library(folder, [own_sm()])
    except PeagleError as error:
        pytest.skip(error.one_line)
    return folder / LIBRARY


@pytest.fixture(scope="module")
def _launched_by_it(library: Path) -> Any:
    """Every launch of this file is a plugin's of the library."""
    accept, place = (
        LibraryLauncher(library, OPS["AcceptPrefix"], {}),
        LibraryLauncher(library, OPS["PlaceholderDraft"], MASK),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(on_device, "launcher_of", {"AcceptPrefix": accept, "PlaceholderDraft": place}.__getitem__)
        yield


@pytest.mark.usefixtures("_launched_by_it")
@quick
@given(windows(), st.sampled_from(["float32", "float16", "bfloat16"]))
def test_library_plugin_matches_the_reference(batch: Arrays, dtype: str) -> None:
    batch = batch | {"logits": representable(batch["logits"], dtype)}
    wanted = reference("AcceptPrefix", batch)
    assert_same_emission(batch, run("AcceptPrefix", inputs_of("AcceptPrefix", batch), wanted, dtype), wanted)
    batch = with_emitted(batch)
    wanted = reference("PlaceholderDraft", batch, **MASK)
    for ours, theirs in zip(
        run("PlaceholderDraft", inputs_of("PlaceholderDraft", batch), wanted, attributes=MASK), wanted, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("product", [pytest.param("tensorrt", marks=pytest.mark.tensorrt), "tensorrt-rtx"])
def test_a_plan_runs_with_the_library_in_place_of_the_plugins_of_python(
    library: Path, write_model: Callable[..., str], product: str
) -> None:
    """Never run yet: neither TensorRT nor a GPU that TensorRT-RTX knows was to be had where this was written."""
    import torch

    if not PRODUCTS[product].supports(own_sm()):
        pytest.skip(f"{PRODUCTS[product].title} makes no code for sm_{own_sm()}")
    trt = module_of(product)
    registry, op = trt.get_plugin_registry(), OPS["PlaceholderDraft"]
    assert registry.load_library(str(library)) is not None
    sizes = {"B": 2, "S": 4, "E": 3}
    model = write_model(op.name, tuple(operand.dtypes[0] for operand in op.inputs), MASK, fixed=sizes)
    log = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(log)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, log)
    assert parser.parse_from_file(model)
    assert [network.get_layer(i).type for i in range(network.num_layers)] == [trt.LayerType.PLUGIN_V3]
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    context = trt.Runtime(log).deserialize_cuda_engine(plan).create_execution_context()
    arrays = {
        "input_ids": np.array([[5, 6, 7, 8], [3, 1, 4, 0]], np.int64),
        "start": np.array([10, 20], np.int64),
        "window_len": np.array([4, 3], np.int32),
        "draft_len": np.array([2, 1], np.int32),
        "tokens": np.array([[7, 2, -1], [6, -1, -1]], np.int32),
        "num_tokens": np.array([2, 1], np.int32),
    }
    wanted = op.reference(*arrays.values(), **MASK)
    memory = {name: torch.from_numpy(array).cuda() for name, array in arrays.items()}
    memory |= {
        operand.name: torch.zeros(array.shape, dtype=getattr(torch, str(array.dtype)), device="cuda")
        for operand, array in zip(op.outputs, wanted, strict=True)
    }
    for name, tensor in memory.items():
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    for operand, array in zip(op.outputs, wanted, strict=True):
        np.testing.assert_array_equal(memory[operand.name].cpu().numpy(), array)
