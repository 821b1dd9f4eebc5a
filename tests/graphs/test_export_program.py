"""A program is exported without a second trace if that gives the same graph, and with one otherwise."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from peagle.graphs import export_program as exporting
from peagle.graphs import trace as tracing
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.trace import trace_drafter, trace_target
from tests.graphs.checking import contents
from tests.graphs.targets.test_skeleton import short
from tests.heads import FORMS
from tests.models import CONFIGS


@pytest.fixture
def retraced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every program that torch decomposed."""
    calls: list[int] = []
    decompose = torch.export.ExportedProgram.run_decompositions

    def counted(program: torch.export.ExportedProgram, *table: object) -> torch.export.ExportedProgram:
        calls.append(1)
        return decompose(program, *table)

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    return calls


@pytest.fixture
def run_again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for every node that torch ran to promote types."""
    calls: list[int] = []
    run = torch.fx.Interpreter.call_function

    def counted(interpreter: torch.fx.Interpreter, *call: object) -> object:
        calls.append(1)
        return run(interpreter, *call)

    monkeypatch.setattr(torch.fx.Interpreter, "call_function", counted)
    return calls


def _target(family: str) -> ir.Model:
    skeleton = Skeleton(short(CONFIGS[family], layers=1))
    return trace_target(skeleton, skeleton.family.describe(skeleton.config).with_taps((0,)))


def _drafter(form: str) -> ir.Model:
    head = FORMS[form].make()
    return trace_drafter(head.spec, head.target)


QUICK = ("gemma-4-moe",)  # has most operators; all other families and heads are slow


@pytest.mark.parametrize(
    ("trace", "name"),
    [
        pytest.param(trace, name, marks=[] if name in QUICK else [pytest.mark.slow], id=name)
        for trace, names in ((_target, CONFIGS), (_drafter, FORMS))
        for name in names
    ],
)
def test_a_second_trace_would_give_the_same_graph(
    trace: Callable[[str], ir.Model],
    name: str,
    retraced: list[int],
    run_again: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once = trace(name)
    assert not retraced
    casts = len(run_again)
    monkeypatch.setattr(exporting, "_rewrite", lambda *_: False)
    monkeypatch.setattr(tracing, "known_results", nullcontext)
    twice = trace(name)
    assert retraced
    assert casts < len(run_again) / 2  # nodes with casts only
    assert contents(once, shapes=False) == contents(twice, shapes=False)


def _reshaped(x: Tensor) -> Tensor:
    return (x + 1).reshape(-1)


def _turned(x: Tensor) -> Tensor:
    return x.transpose(0, 1).reshape(-1)


def _to_same_type(x: Tensor) -> Tensor:
    return x.to(torch.float32) + 1


def _to_another_type(x: Tensor) -> Tensor:
    return x.to(torch.float64) / 3


def _change_of_a_result(x: Tensor) -> Tensor:
    best, _ = x.topk(2)
    best /= best.sum(-1, keepdim=True)
    return best


def _change_of_a_result_that_was_read(x: Tensor) -> Tensor:
    own = x + 1
    doubled = own * 2
    own -= doubled
    return own * doubled


def _change_under_a_view(x: Tensor) -> Tensor:
    own = x + 1
    row = own[0]
    own *= 2
    return row


def _change_through_a_view(x: Tensor) -> Tensor:
    own = x + 1
    own.view(-1).mul_(2)
    return own


def _change_by_a_wider_type(x: Tensor) -> Tensor:
    own, wide = x + 1, x.to(torch.float64)
    own += wide
    return own


def _parts(x: Tensor) -> Tensor:
    left, right = x.chunk(2, -1)
    return left * right


class _Module(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function."""
        return self.function(x)


ONCE = (_reshaped, _to_same_type, _to_another_type, _change_of_a_result, _change_of_a_result_that_was_read)
AGAIN = (_turned, _change_under_a_view, _change_through_a_view, _change_by_a_wider_type, _parts)


@pytest.mark.parametrize("function", [*ONCE, *AGAIN], ids=lambda function: function.__name__[1:])
def test_every_program_computes_what_its_module_does(
    function: Callable[[Tensor], Tensor], retraced: list[int], tmp_path: Path
) -> None:
    x = torch.arange(12.0).reshape(3, 4) - 5
    program = exporting.export_program(_Module(function), (x,), ({},))
    torch.onnx.export(program, (), tmp_path / "model.onnx", dynamo=True, verbose=False, external_data=False)
    assert bool(retraced) == (function in AGAIN)
    (found,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"x": x.numpy()})
    np.testing.assert_array_equal(found, function(x).numpy())
