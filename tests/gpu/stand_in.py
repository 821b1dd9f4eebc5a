"""A pytest plugin that stands in for the GPU, so that tests/gpu runs on a machine without one.

``python -m pytest -p tests.gpu.stand_in -m gpu tests/gpu`` runs every test, with the first of its parameters, from its
fixtures to its last assertion; with ``-m "gpu and not slow"``, those that ``BY_DEFAULT`` names. Device memory is the
host's, a launch runs the NumPy reference after the launcher's own checks, and a build for a GPU gives the demo engine
of ONNX Runtime; plans that PyTorch runs come from the folder that ``PEAGLE_TEST_PLANS`` names. In those, the values of
the device are told from the host's, and what CUDA does not allow while a graph is captured is an error. This proves
nothing about a GPU. It finds a test that no longer fits the code it calls.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from peagle.compiler.pipeline import build as build_module
from peagle.compiler.pipeline.assemble_engine import BuildResult
from peagle.compiler.request.request import CompileRequest
from peagle.engines.backends.tensorrt import device
from peagle.engines.folder.manifest import Manifest
from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.kernels import launch, pack
from peagle.plugins.kernels.compile import Cubin
from peagle.plugins.kernels.launch import Geometry
from peagle.plugins.kernels.sources import digest, entries
from peagle.plugins.number_types import BY_NAME
from peagle.plugins.op_spec import OpSpec, evaluate_dim
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt import import_tensorrt
from tests.engines.backends.host_device import HostDevice

DEMO_ENGINE = "PEAGLE_TEST_DEMO_ENGINE"  # the folder of an engine that every build gives
PLUGIN_LIBRARY = "PEAGLE_TEST_PLUGIN_LIBRARY"  # a library whose kernels nobody may launch
MAX_THREADS = 1024  # of a block, on every GPU there is
SM = 120
# By default, a few tests of each module, which call most of what its others call; all of them with the slow tests. The
# tests of the runtime and its parts run in tests/engines/backends/tensorrt too, by default, with ONNX Runtime.
BY_DEFAULT = frozenset({
    "test_a_buffer_is_reused_once_its_copy_is_dropped_and_not_before",
    "test_a_captured_round_of_trees_writes_the_same_text_and_leaves_an_entry_for_every_token_of_it",
    "test_a_plan_runs_with_the_library_in_place_of_the_plugins_of_python",
    "test_arguments_that_do_not_fit_the_spec_are_refused", "test_batches_and_draft_counts_up_to_the_largest",
    "test_cache_writes_of_real_size", "test_captured_graph_runs_at_each_replay",
    "test_drafts_of_every_round_are_onnx_runtime_s", "test_driver_failure_is_reported",
    "test_empty_batch_launches_nothing", "test_experts_in_fp8_are_built_and_drafts_change_no_token",
    "test_half_precision_logits_become_float32", "test_invalid_machine_code_is_rejected",
    "test_kept_positions_are_restored_in_any_slot_and_nowhere_else", "test_library_plugin_matches_the_reference",
    "test_logits_are_close_to_onnx_runtime", "test_other_gpu_is_rejected",
    "test_rounds_read_what_the_texts_ask_for", "test_routed_experts_match_the_reference_bit_for_bit",
    "test_structured_output_follows_its_grammar",
    "test_the_captured_round_writes_the_text_of_plain_decoding_on_the_host", "test_the_host_is_one_round_behind",
})  # fmt: skip
_GPU = torch.device("cuda", 0)


class OnTheHost(TorchFunctionMode):
    """PyTorch without CUDA: GPU memory is host memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device == _GPU:  # that of a tensor in a pass
            return func(*args, **kwargs | {"device": "cpu"}).as_subclass(PassTensor)
        if str(device) == "cuda":
            kwargs["device"] = "cpu"
        return args[0] if func is torch.Tensor.cuda else func(*args, **kwargs)


class PassTensor(torch.Tensor):
    """A tensor of the GPU in a pass that may be captured: nothing reads it back, or mixes it with the host's.

    This is stricter than CUDA, which lets passes wait unless they are captured, and than PyTorch, which takes single
    numbers of the host.
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == _DEVICE:
            return _GPU
        given = [*_tensors((args, kwargs))]
        if any(type(x) is torch.Tensor for x in given):
            raise RuntimeError(f"{func.__name__}: expected all tensors to be on the same device, found cuda:0 and cpu")
        if _waits(func.__name__) or _moves(args, kwargs or {}) or _counts(func, given):
            raise RuntimeError(f"{func.__name__}: operation not permitted when stream is capturing")
        return super().__torch_function__(func, types, args, kwargs)


_DEVICE = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_READS = {"__array__", "__bool__", "__complex__", "__float__", "__index__", "__int__", "cpu", "numpy", "tolist"}


@functools.cache
def _waits(function: str) -> bool:
    """An op whose result on the host, or whose sizes, depend on the values: PyTorch has tags for those."""
    packet = getattr(torch.ops.aten, function, None)
    ops = [getattr(packet, name) for name in packet.overloads()] if packet else []
    told = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return function in _READS or any(told & {*op.tags} for op in ops)


def _moves(args: Any, kwargs: Mapping[str, Any]) -> bool:
    """A copy to another device."""
    named = [each for each in (*args, kwargs.get("device")) if isinstance(each, (str, torch.device))]
    return any(torch.device(each) != _GPU for each in named)


def _counts(func: Any, given: Sequence[torch.Tensor]) -> bool:
    """An index by truth values, which has as many places as are true."""
    by_index = func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
    return by_index and any(x.dtype == torch.bool for x in given[1:])


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _tensors(each)


class TorchHostDevice(HostDevice):
    """In the place of ``TorchDevice``: PyTorch works on the host's memory, when a wait makes the queue run."""

    _checked: ClassVar = set[Hashable]()  # kinds of passes, of all devices

    def __init__(self) -> None:
        super().__init__()
        self._captured_in: int | None = None  # the thread in which a captured pass runs

    def enqueue_pass(self, kind: Hashable, step: Callable[[], None]) -> None:
        """Check each kind of pass once when it is enqueued, and once when it is captured: the check takes its time."""
        is_captured = self._recording is not None
        kind = kind, is_captured

        def run() -> None:
            self._captured_in, is_checked = threading.get_ident() if is_captured else None, kind in self._checked
            try:
                with torch._C.DisableTorchFunctionSubclass() if is_checked else OnTheHost():  # in the thread that waits
                    step()
            finally:
                self._captured_in = None
            self._checked.add(kind)

        self.enqueue(run)

    def tensor(self, address: int, shape: Sequence[int], dtype: str) -> torch.Tensor:
        """Return the memory at ``address`` as a tensor; it must be inside an allocation."""
        kind = getattr(torch, BY_NAME[dtype].numpy)
        size = int(np.prod(shape)) * kind.itemsize
        raw = torch.from_numpy(self.view(address, (size,), np.uint8)) if size else torch.empty(0, dtype=torch.uint8)
        return raw.view(kind).reshape(tuple(shape)).as_subclass(PassTensor)

    def constant(self, host: torch.Tensor) -> torch.Tensor:
        """A copy. Raises ``RuntimeError`` in a captured step, as ``TorchDevice`` does; other threads may load plans."""
        if self._captured_in == threading.get_ident():
            raise RuntimeError("a captured pass asks for a constant that its first run did not")
        return host.clone().as_subclass(PassTensor)


class HostLauncher(launch.Launcher):
    """The launcher with its own checks of arguments, in front of the NumPy reference of the op."""

    def __init__(self, op: OpSpec, sm: int, code: bytes) -> None:
        if code != _code_of(op):
            raise EnvironmentProblem(f"cannot load the kernel of {op.name} for sm_{sm}", why="this is not its code")
        self.op, self.sm = op, sm
        self._entries = {name: launch._Entry(None, compiled_cluster=False) for name in entries(op)}

    def launch(
        self,
        stream: int,
        pointers: Sequence[int],
        dims: Mapping[str, int],
        attributes: Mapping[str, int] | None = None,
        dtype: str | None = None,
    ) -> None:
        """Do what the launcher does; the sizes and the dtype are kept for the reference."""
        self._call = (pointers, dict(dims), dict(attributes or {}), dtype)
        super().launch(stream, pointers, dims, attributes, dtype)

    def _enqueue(self, entry: Any, shape: Geometry, stream: int, parameters: int) -> None:
        if shape.block > MAX_THREADS:
            raise EnvironmentProblem(f"{self.op.name} was not launched", why=f"{shape.block} threads in a block")
        run_reference(self.op, *self._call)


class HostLibraryLauncher:
    """In the place of the launcher of a plugin library, whose kernels only a GPU can run."""

    def __init__(self, library: Path, op: OpSpec, attributes: Mapping[str, int]) -> None:
        assert library.is_file()
        self._op, self._attributes = op, dict(attributes)

    def launch(
        self,
        stream: int,
        pointers: Sequence[int],
        dims: Mapping[str, int],
        attributes: Mapping[str, int],
        dtype: str | None = None,
    ) -> None:
        """Run the reference."""
        run_reference(self._op, pointers, dict(dims), self._attributes | dict(attributes), dtype)


def run_reference(
    op: OpSpec, pointers: Sequence[int], dims: dict[str, int], attributes: dict[str, int], dtype: str | None
) -> None:
    """Read the inputs at their addresses, and write the reference's results to those of the outputs."""
    typed_by = op.kernel.typed_by if op.kernel else None
    by_name = {each.name: str(dtype) if each.name == typed_by else each.dtypes[0] for each in op.inputs}
    names = [by_name[each.same_as or each.name] for each in op.inputs]
    operands = (*op.inputs, *op.outputs)
    shapes = [[evaluate_dim(dim, dims | attributes) for dim in operand.dims] for operand in operands]
    views = [
        _view(address, shape, name)
        for address, shape, name in zip(pointers, shapes, [*names, *op.infer_dtypes(names)], strict=True)
    ]
    count = len(op.inputs)
    inputs = [view.astype(np.float32) if name == "bfloat16" else view for view, name in zip(views, names, strict=False)]
    for output, value in zip(views[count:], op.reference(*inputs, **attributes), strict=True):
        output[...] = value


def _view(address: int, shape: Sequence[int], name: str) -> np.ndarray:
    dtype = BY_NAME[name].dtype
    size = int(np.prod(shape)) * dtype.itemsize
    raw: Any = (ctypes.c_byte * size).from_address(address) if size else b""
    return np.frombuffer(raw, dtype).reshape(shape)


def _code_of(op: OpSpec) -> bytes:
    return f"code of {op.name}".encode()


def obtain(op: OpSpec, sm: int, packs: Sequence[pack.Pack] = ()) -> Cubin:
    """Code that only ``HostLauncher`` takes."""
    return Cubin(op.name, sm, digest(op), _code_of(op), {}, "NVRTC")


def find_gpu(product: str) -> str:
    """A GPU that the product makes code for."""
    return "sm_100" if product == "tensorrt" else f"sm_{SM}"


def load(product: str, *, parser: bool = False) -> Any:
    """The product as far as a test calls it: one network of the plugin ``PlaceholderDraft``, which runs."""
    trt, addresses, op = mock.MagicMock(), dict[str, int](), OPS["PlaceholderDraft"]
    network = trt.Builder.return_value.create_network.return_value
    network.num_layers, network.get_layer.return_value.type = 1, trt.LayerType.PLUGIN_V3
    context = trt.Runtime.return_value.deserialize_cuda_engine.return_value.create_execution_context.return_value

    def execute(stream: int) -> bool:
        pointers = [addresses[operand.name] for operand in (*op.inputs, *op.outputs)]
        run_reference(op, pointers, {"B": 2, "S": 4, "E": 3}, {"mask_token_id": 7}, None)
        return True

    context.set_tensor_address.side_effect = lambda name, address: addresses.update({name: address}) or True
    context.execute_async_v3.side_effect = execute
    return trt


def build(request: CompileRequest, *_: Any, **__: Any) -> BuildResult:
    """The demo engine in place of any build for the GPU, with the report of such a build."""
    assert request.backend.name in ("tensorrt", "tensorrt-rtx")
    folder = Path(shutil.copytree(os.environ[DEMO_ENGINE], request.out))
    experts = {"role": "experts", "stored": "float8e4m3fn", "computed": "float8e4m3fn"}
    if "gpt-oss" in str(request.pair.model):
        experts |= {"stored": "int4", "computed": "float32", "blocks": "mxfp4"}
    report = {"precision": {"target": {"share": 1.0}}, "matmuls": {"target": {"list": [experts]}}}
    return BuildResult(folder, Manifest.read(folder), report)


def captured(steps: Callable[[], None]) -> Callable[[], None]:
    """The steps themselves: a replay runs them once more."""
    return steps


def write_plugin_library(folder: Path, sms: Sequence[int], *_: Any) -> None:
    """A library with the plugins and without kernels."""
    from peagle.plugins.tensorrt.library import LIBRARY

    shutil.copy(os.environ[PLUGIN_LIBRARY], folder / LIBRARY)


def _patches() -> list[Any]:
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    return [
        mock.patch("tests.conftest._missing_for_gpu", return_value=None),
        mock.patch("tests.conftest._missing_for_tensorrt", return_value=None),
        mock.patch.object(torch.cuda, "current_stream", return_value=stream),
        mock.patch.object(torch.cuda, "synchronize", return_value=None),
        mock.patch("tests.gpu.torch_device.TorchDevice", TorchHostDevice),
        mock.patch.object(launch, "Launcher", HostLauncher),
        mock.patch.object(pack, "obtain", obtain),
        mock.patch.object(device, "find_gpu", find_gpu),
        mock.patch.object(import_tensorrt, "load", load),
        mock.patch.object(build_module, "build", build),
        mock.patch.object(launch, "current_sm", return_value=SM),
        mock.patch("peagle.plugins.tensorrt.library.pack.write_plugin_library", write_plugin_library),
        mock.patch("tests.gpu.plugin_calls.LibraryLauncher", HostLibraryLauncher),
        mock.patch("tests.gpu.on_device.captured", captured),
        OnTheHost(),
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Put the stand-ins in their places before the first test module is imported, until the session ends."""
    stack = ExitStack()
    for patch in _patches():
        stack.enter_context(patch)
    session.config.add_cleanup(stack.close)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one item of each test function: other sizes and types take the same steps. Most are left to slow tests."""
    first = {(item.path, getattr(item, "originalname", item.name)): item for item in reversed(items)}
    is_short = "not slow" in config.option.markexpr
    kept = {item for (_, name), item in first.items() if not is_short or name in BY_DEFAULT}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]
