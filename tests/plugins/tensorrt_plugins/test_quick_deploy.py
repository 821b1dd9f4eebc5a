"""Quick-deploy plugins: the functions made from a spec, and their registration where full TensorRT is installed."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from peagle.plugins.errors import BuildError, EnvironmentProblem
from peagle.plugins.kernels.sources import kernel_ops
from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt import module, quick_deploy
from tests.plugins.tensorrt_plugins.rtx_builds import needs_rtx


@dataclass(frozen=True)
class Size:
    """As ``tensorrt.plugin.ShapeExpr``: no ``0 + size``, constants known only outside of dry runs."""

    text: str
    is_fake: bool = False

    def __init__(self, value: Any, is_fake: bool = False) -> None:
        object.__setattr__(self, "text", str(value))
        object.__setattr__(self, "is_fake", is_fake)

    @property
    def is_constant(self) -> bool:
        assert not self.is_fake, "TensorRT raises here"
        return self.text.isdigit()

    def constant_value(self) -> int:
        return int(self.text)

    def __add__(self, other: Any) -> Size:
        return Size(f"{self.text}+{getattr(other, 'text', other)}", self.is_fake)

    def __sub__(self, other: Any) -> Size:
        return Size(f"{self.text}-{getattr(other, 'text', other)}", self.is_fake)

    def __mul__(self, other: int) -> Size:
        return Size(f"({self.text})*{other}", self.is_fake)


@dataclass
class Tensor:
    shape_expr: list[Size]
    dtype: Any


@dataclass
class Launch:
    grid_x: Any = 1
    block_x: Any = 1
    shared_mem: Any = 0


class Ints(list[Any]):
    def __init__(self, length: int) -> None:
        super().__init__([None] * length)


DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "", "INT64": "", "BOOL": ""}
TRT = SimpleNamespace(DataType=SimpleNamespace(**{name: SimpleNamespace(name=name) for name in DTYPES}))


@dataclass
class Api:
    """What we use of ``tensorrt.plugin``, by the signatures in its Python files."""

    TensorDesc: type = Tensor
    ShapeExpr: type = Size
    ShapeExprs: type = Ints
    SymIntExprs: type = Ints
    SymInt32: Any = field(default=lambda value: value)
    KernelLaunchParams: type = Launch


def tensors(op: str, fake: bool = False, **known: int) -> list[Tensor]:
    return [
        Tensor(
            [Size(known.get(dim, dim), fake) for dim in operand.dims],
            quick_deploy.to_tensorrt(TRT, "float16" if len(operand.dtypes) > 1 else operand.dtypes[0]),  # type: ignore[arg-type]
        )
        for operand in OPS[op].inputs
    ]


@pytest.mark.parametrize("spec", kernel_ops(), ids=lambda spec: spec.name)
def test_signatures_name_inputs_then_attributes(spec: Any) -> None:
    """TensorRT reads names, order and annotations; it refuses defaults and anything but positional parameters."""
    api = Api()
    expected = [operand.name for operand in spec.inputs] + [attribute.name for attribute in spec.attributes]
    described = inspect.signature(quick_deploy.describer(TRT, api, spec))  # type: ignore[arg-type]
    assert list(described.parameters) == expected
    kinds = [parameter.annotation for parameter in described.parameters.values()]
    assert kinds == [Tensor] * len(spec.inputs) + [attribute.kind for attribute in spec.attributes]
    several = len(spec.outputs) > 1
    assert described.return_annotation == (tuple[(Tensor,) * len(spec.outputs)] if several else Tensor)

    implemented = inspect.signature(quick_deploy.implementer(api, spec, 100, b"code"))
    assert list(implemented.parameters) == [*expected, "outputs", "tactic"]
    assert get_args(implemented.return_annotation) == (str, bytes, Launch, Ints)
    assert all(
        parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and parameter.default is inspect.Parameter.empty
        for parameter in (*described.parameters.values(), *implemented.parameters.values())
    )


@pytest.mark.parametrize("fake", [False, True])
def test_outputs_are_described_by_the_spec(fake: bool) -> None:
    """Also in the dry run, in which TensorRT asks for types and no size is known."""
    describe = quick_deploy.describer(TRT, Api(), OPS["PlaceholderDraft"])  # type: ignore[arg-type]
    outputs = describe(*tensors("PlaceholderDraft", fake), mask_token_id=3)
    assert [[size.text for size in output.shape_expr] for output in outputs[:4]] == [
        ["B", "S+E-2"],
        ["B", "S+E-2"],
        ["B", "E-1"],
        ["B"],
    ]
    assert [output.dtype.name for output in outputs] == ["INT64", "BOOL", "INT64", "INT64", "INT64", "INT32", "INT32"]


def test_a_single_output_is_no_tuple() -> None:
    describe = quick_deploy.describer(TRT, Api(), OPS["NumbersAt"])  # type: ignore[arg-type]
    output = describe(*tensors("NumbersAt"), columns=5)
    assert [getattr(size, "text", size) for size in output.shape_expr] == ["B", 5]


def test_a_launch_has_the_entry_of_its_dtype_the_grid_and_the_ints_in_order() -> None:
    implement = quick_deploy.implementer(Api(), OPS["AcceptPrefix"], 100, b"code")
    name, code, launch, ints = implement(*tensors("AcceptPrefix", V=1000), [], 0)
    cluster, threads = OPS["AcceptPrefix"].kernel.cluster, OPS["AcceptPrefix"].kernel.threads  # type: ignore[union-attr]
    assert (name, code) == ("accept_prefix_float16", b"code")
    assert (launch.grid_x.text, launch.block_x) == (f"(B)*{cluster}", threads)
    assert [getattr(value, "text", value) for value in ints] == ["B", "E", "S", 1000]


def test_a_gpu_without_clusters_gets_a_block_a_row() -> None:
    implement = quick_deploy.implementer(Api(), OPS["AcceptPrefix"], 89, b"code")
    assert implement(*tensors("AcceptPrefix"), [], 0)[2].grid_x.text == "B"


def test_attributes_become_ints_of_the_kernel() -> None:
    implement = quick_deploy.implementer(Api(), OPS["PlaceholderDraft"], 100, b"code")
    name, _, launch, ints = implement(*tensors("PlaceholderDraft"), 77, [], 0)
    assert name == "placeholder_draft"
    assert launch.grid_x.text == "B"
    assert [getattr(value, "text", value) for value in ints] == ["B", "S", "E", 77]


def test_bad_attributes_are_refused() -> None:
    describe = quick_deploy.describer(TRT, Api(), OPS["PlaceholderDraft"])  # type: ignore[arg-type]
    with pytest.raises(BuildError, match="mask_token_id must be 0 or more"):
        describe(*tensors("PlaceholderDraft"), mask_token_id=-2)


@needs_rtx
def test_rtx_has_none() -> None:
    trt = module.load("tensorrt-rtx")
    assert not quick_deploy.offered(trt)
    with pytest.raises(EnvironmentProblem, match="no ahead-of-time quick-deploy plugins"):
        quick_deploy.register_quick_deploy(trt, 100)
