"""Programs of ``FusedRegion`` nodes are read without the libraries that made them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from onnx import helper

from peagle.graphs.fused_region_program import FUSED_REGION, PROGRAM, steps_of
from peagle.graphs.lowering.cpu.steps import RULES, StepRule
from peagle.plugins.op_spec import DOMAIN
from peagle.plugins.ops import OPS


def _read(*lines: str) -> list[tuple[str, str]]:
    program = "".join(f"{line}\n" for line in lines)
    return steps_of(helper.make_node(FUSED_REGION, ["x"], ["y"], domain=DOMAIN, **{PROGRAM: program}))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_a_step_has_the_domain_of_its_rule(rule: StepRule) -> None:
    for op in rule.ops:
        assert _read(f"{op} 0 1", "out 1") == [(rule.domain, op)]


def test_an_op_of_this_project_is_recognized_by_its_name() -> None:
    op = next(op for op in OPS.values() if op.in_fused_regions)
    assert _read(f"{op.name} 0 1", "out 1") == [(DOMAIN, op.name)]


def test_other_nodes_have_no_steps() -> None:
    assert steps_of(helper.make_node("Add", ["x", "x"], ["y"])) == []


def test_reading_a_program_imports_no_library_of_graphs() -> None:
    code = "import sys, peagle.graphs.fused_region_program; print({'onnx', 'onnx_ir', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
