"""Kernels of routed experts run as nodes of a model, with the stacks as constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.plugins.cpu.one_node_model import one_node_model
from peagle.plugins.ops import OPS
from tests.plugins.cpu.sessions import session

Case = tuple[dict[str, Any], list[Any], list[Any]]  # attributes, constants, tokens


def reference(op: str, case: Case) -> Any:
    attributes, constants, tokens = case
    return OPS[op].reference(*tokens, *constants, **OPS[op].check_attributes(attributes))[0]


def kernel(op: str, library: Path, case: Case, path: str, threads: int = 1) -> Any:
    """``run(x, experts, scores) -> y`` of the kernel on one path; the stacks are constants."""
    attributes, constants, _ = case
    names = [operand.name for operand in OPS[op].inputs]
    operands = ["float32", "int64", "float32", *constants]
    model = one_node_model(op, dict(zip(names, operands, strict=True)), {"y": "float32"}, attributes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_CPU_INSTRUCTIONS", path)
        made = session(library, model, threads)
    return lambda *tokens: made.run(None, dict(zip(names, tokens, strict=False)))[0]


def same_bits(ours: Any, theirs: Any) -> None:
    np.testing.assert_array_equal(np.isnan(ours), np.isnan(theirs))
    there = ~np.isnan(theirs)
    np.testing.assert_array_equal(ours.view(np.int32)[there], theirs.view(np.int32)[there])
