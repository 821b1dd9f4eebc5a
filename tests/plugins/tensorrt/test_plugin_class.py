"""A plugin's answers to TensorRT-RTX's descriptions; its builds are in ``tests/scenarios``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from peagle.plugins.errors import BuildError, EnvironmentProblem
from peagle.plugins.kernels.launch import load_driver, scalars
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt import errors, import_tensorrt
from peagle.plugins.tensorrt.plugin_class import creator, plugin_class, to_tensorrt
from peagle.plugins.tensorrt.register import find_creator, register
from tests.plugins.tensorrt.rtx_builds import needs_rtx

pytestmark = needs_rtx

SIZES = {"B": 2, "S": 4, "E": 3, "V": 32, "N": 65}


@pytest.fixture(scope="module")
def trt() -> Any:
    return import_tensorrt.load("tensorrt-rtx")


def made(trt: Any, op: str, **attributes: Any) -> Any:
    """The plugin as TensorRT gets it: from a creator, out of fields."""
    errors.clear()
    fields = [trt.PluginField(k, np.array([v], np.int32), trt.PluginFieldType.INT32) for k, v in attributes.items()]
    return creator(trt, OPS[op]).create_plugin("node", trt.PluginFieldCollection(fields), trt.TensorRTPhase.RUNTIME)


def described(trt: Any, dtype: str, shape: Sequence[int]) -> Any:
    desc = trt.PluginTensorDesc()
    desc.dims, desc.type, desc.format = tuple(shape), to_tensorrt(trt, dtype), trt.TensorFormat.LINEAR
    return desc


def described_inputs(trt: Any, op: str, sizes: Mapping[str, int], floats: str = "float16") -> list[Any]:
    return [
        described(trt, floats if len(operand.dtypes) > 1 else operand.dtypes[0], [sizes[dim] for dim in operand.dims])
        for operand in OPS[op].inputs
    ]


def described_outputs(trt: Any, op: str, inputs: Sequence[Any], attributes: Mapping[str, Any]) -> list[Any]:
    spec = OPS[op]
    shapes = spec.infer_shapes([tuple(desc.dims) for desc in inputs], attributes)
    names = spec.infer_dtypes(["float16" if len(operand.dtypes) > 1 else operand.dtypes[0] for operand in spec.inputs])
    return [described(trt, name, shape) for name, shape in zip(names, shapes, strict=True)]


class Recorder:
    """Stands where the launcher stands, which needs a GPU; keeps what it was told."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def launch(self, *call: Any) -> None:
        self.calls.append(call)


def test_a_launch_gets_pointers_sizes_and_attributes_in_the_order_of_the_spec(trt: Any) -> None:
    plugin = made(trt, "PlaceholderDraft", mask_token_id=9)
    plugin._launcher = recorder = Recorder()
    inputs = described_inputs(trt, "PlaceholderDraft", SIZES)
    outputs = described_outputs(trt, "PlaceholderDraft", inputs, {"mask_token_id": 9})
    plugin.enqueue(inputs, outputs, [10, 20, 30, 40, 50, 60], [1, 2, 3, 4, 5, 6, 7], 0, 99)
    ((stream, pointers, dims, attributes, dtype),) = recorder.calls
    assert (stream, dtype) == (99, None)
    assert pointers == [10, 20, 30, 40, 50, 60, 1, 2, 3, 4, 5, 6, 7]
    assert scalars(OPS["PlaceholderDraft"], dims, attributes) == (2, 4, 3, 9)


@pytest.mark.parametrize("floats", ["float16", "bfloat16", "float32"])
def test_the_entry_point_follows_the_dtype_of_the_logits(trt: Any, floats: str) -> None:
    plugin = made(trt, "AcceptPrefix")
    plugin._launcher = recorder = Recorder()
    plugin.enqueue(described_inputs(trt, "AcceptPrefix", SIZES, floats), [], range(11), range(2), 0, 0)
    assert recorder.calls[0][-1] == floats
    assert scalars(OPS["AcceptPrefix"], recorder.calls[0][2], {}) == (2, 3, 4, 32)


def test_clones_keep_attributes_and_kernel(trt: Any) -> None:
    plugin = made(trt, "NumbersAt", columns=5)
    plugin._launcher = Recorder()
    copy = plugin.clone()
    assert copy is not plugin
    assert (copy.attributes, copy._launcher, copy.num_outputs) == ({"columns": 5}, plugin._launcher, 1)


def test_a_kernel_that_cannot_be_loaded_is_the_error_of_the_launch(trt: Any) -> None:
    """TensorRT takes a failed attach for a plugin and crashes; what ``enqueue`` returns it does not look at."""
    with suppress(EnvironmentProblem):
        load_driver()
        pytest.skip("this machine has a CUDA driver")
    plugin = made(trt, "PlaceholderDraft", mask_token_id=9).attach_to_context(None)
    assert errors.last() is None
    with pytest.raises(EnvironmentProblem):
        plugin.enqueue(described_inputs(trt, "PlaceholderDraft", SIZES), [], range(6), range(7), 0, 0)
    assert isinstance(errors.last(), EnvironmentProblem)


def test_a_plugin_never_attached_refuses_to_run(trt: Any) -> None:
    with pytest.raises(EnvironmentProblem, match="before its kernel was loaded"):
        made(trt, "AcceptPrefix").enqueue(described_inputs(trt, "AcceptPrefix", SIZES), [], [], [], 0, 0)


def test_real_shapes_are_checked_when_they_change(trt: Any) -> None:
    plugin = made(trt, "PlaceholderDraft", mask_token_id=9)
    inputs = described_inputs(trt, "PlaceholderDraft", SIZES)
    outputs = described_outputs(trt, "PlaceholderDraft", inputs, {"mask_token_id": 9})
    plugin.on_shape_change(inputs, outputs)
    assert errors.last() is None
    with pytest.raises(BuildError, match="dimension B is 3, but 2 in another tensor"):
        plugin.on_shape_change([*inputs[:-1], described(trt, "int32", [3])], outputs)
    with pytest.raises(BuildError, match="tokens must have at least 2 columns"):
        plugin.on_shape_change(described_inputs(trt, "PlaceholderDraft", {**SIZES, "E": 1}), outputs)
    with pytest.raises(
        BuildError, match=r"TensorRT passed row_ids int64 \[2, 6\], but the spec requires int64 \[2, 5\]"
    ):
        plugin.on_shape_change(inputs, [described(trt, "int64", [2, 6]), *outputs[1:]])
    with pytest.raises(BuildError, match="TensorRT passed newest int32"):
        plugin.on_shape_change(inputs, [*outputs[:3], described(trt, "int32", [2]), *outputs[4:]])
    assert "newest" in str(errors.last())


def test_unknown_sizes_pass_the_check_at_configuration(trt: Any) -> None:
    plugin = made(trt, "PlaceholderDraft", mask_token_id=9)
    unknown = dict.fromkeys(SIZES, -1)
    inputs = described_inputs(trt, "PlaceholderDraft", unknown)
    outputs = [described(trt, output.dtypes[0], [-1] * len(output.dims)) for output in OPS["PlaceholderDraft"].outputs]
    plugin.on_shape_change(inputs, outputs)
    with pytest.raises(BuildError, match="row_ids"):
        plugin.on_shape_change(inputs, [described(trt, "int64", [-1]), *outputs[1:]])


def combination(trt: Any, descs: Sequence[Any]) -> list[Any]:
    wrapped = []
    for desc in descs:
        dynamic = trt.DynamicPluginTensorDesc()
        dynamic.desc = desc
        wrapped.append(dynamic)
    return wrapped


def test_one_type_combination_in_linear_format_is_supported(trt: Any) -> None:
    plugin = made(trt, "AcceptPrefix")
    inputs = described_inputs(trt, "AcceptPrefix", SIZES, "bfloat16")
    outputs = described_outputs(trt, "AcceptPrefix", inputs, {})
    descs = [*inputs, *outputs]
    for position in range(len(descs)):
        assert plugin.supports_format_combination(position, combination(trt, descs), len(inputs))
        other = described(trt, "bool", tuple(descs[position].dims))
        wrong = [*descs[:position], other, *descs[position + 1 :]]
        assert not plugin.supports_format_combination(position, combination(trt, wrong), len(inputs))
    descs[0].format = trt.TensorFormat.HWC
    assert not plugin.supports_format_combination(0, combination(trt, descs), len(inputs))


def test_tied_inputs_follow_the_others_type(trt: Any) -> None:
    spec = OPS["CachedAttention"]
    op = replace(
        spec,
        inputs=tuple(replace(o, optional=False) for o in spec.inputs),
        kernel=OPS["NumbersAt"].kernel,
    )
    plugin = plugin_class(trt, op)()
    plugin._prepare(op.check_attributes({}))
    assert [plugin.get_aliased_input(i) for i in range(3)] == [-1, 3, 4]
    halves = [described(trt, "float16", [1] * 4), described(trt, "float16", [1] * 4)]
    assert plugin.supports_format_combination(1, combination(trt, halves), 8)
    mixed = [halves[0], described(trt, "float32", [1] * 4)]
    assert not plugin.supports_format_combination(1, combination(trt, mixed), 8)


@pytest.mark.parametrize(
    ("op", "complaint"), [("SparseExperts", "has no CUDA kernel"), ("CachedAttention", "has no CUDA kernel")]
)
def test_op_without_a_kernel_is_not_a_plugin(trt: Any, op: str, complaint: str) -> None:
    with pytest.raises(BuildError, match=complaint):
        plugin_class(trt, OPS[op])


def test_an_optional_input_is_refused(trt: Any) -> None:
    with pytest.raises(BuildError, match="cannot be a plugin"):
        plugin_class(trt, replace(OPS["CachedAttention"], kernel=OPS["NumbersAt"].kernel))


def test_a_bad_field_is_our_last_error(trt: Any) -> None:
    with pytest.raises(BuildError):
        made(trt, "PlaceholderDraft")
    assert "mask_token_id must be given" in str(errors.last())


def test_registering_twice_is_once(trt: Any) -> None:
    register(trt)
    register(trt)
    ours = [c.name for c in trt.get_plugin_registry().all_creators if c.plugin_namespace == "peagle"]
    assert sorted(ours) == sorted(name for name, op in OPS.items() if op.kernel)
    assert find_creator(trt, "SparseExperts") is None


def test_registered_name_of_another_library_is_an_error(trt: Any) -> None:
    op = replace(OPS["NumbersAt"], name="TakenByAnother")
    other = creator(trt, op)
    assert trt.get_plugin_registry().register_creator(other, "peagle")
    try:
        with pytest.raises(
            EnvironmentProblem,
            match="has registered the TensorRT plugin peagle::TakenByAnother version 1",
        ):
            register(trt, [op])
    finally:
        assert trt.get_plugin_registry().deregister_creator(other)


@pytest.mark.gpu
def test_plugin_launch_matches_the_reference(trt: Any) -> None:
    """The way from an attached plugin to the device, without an engine. The kernels' own tests are in ``tests/gpu``."""
    torch = pytest.importorskip("torch")
    spec, attributes = OPS["PlaceholderDraft"], {"mask_token_id": 9}
    arrays = [
        np.array([[5, 6, 7, 8], [3, 1, 4, 0]], np.int64),
        np.array([10, 20], np.int64),
        np.array([4, 3], np.int32),
        np.array([2, 1], np.int32),
        np.array([[7, 2, -1], [6, -1, -1]], np.int32),
        np.array([2, 1], np.int32),
    ]
    expected = spec.reference(*arrays, **attributes)
    tensors = [torch.from_numpy(array).cuda() for array in arrays]
    outputs = [torch.zeros(array.shape, dtype=torch.from_numpy(array).dtype, device="cuda") for array in expected]
    descs = [described(trt, str(tensor.dtype).removeprefix("torch."), tensor.shape) for tensor in (*tensors, *outputs)]
    plugin = made(trt, "PlaceholderDraft", **attributes).attach_to_context(None)
    assert plugin.attach_to_context(None)._launcher is plugin._launcher  # loaded once
    plugin.on_shape_change(descs[:6], descs[6:])
    stream = torch.cuda.current_stream()
    pointers = [tensor.data_ptr() for tensor in (*tensors, *outputs)]
    plugin.enqueue(descs[:6], descs[6:], pointers[:6], pointers[6:], 0, stream.cuda_stream)
    stream.synchronize()
    for output, array in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(output.cpu().numpy(), array)
