"""Kernels of routed experts run as nodes of a model, with the stacks as constants."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.plugins.cpu.one_node_model import one_node_model
from peagle.plugins.ops import OPS
from tests.plugins.cpu.sessions import paths_here, session
from tests.plugins.same_bits import same_bits

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


def require_independent_tokens(op: str, library: Path, case: Case, rng: np.random.Generator) -> None:
    """Windows of one token up to more than a strip, on every path, with one thread and with three.

    The case has 150 tokens of two experts each; the last 90 get the same ones, so that more than a strip of tokens
    chose them.
    """
    case[2][1][60:] = 0, 1
    alone = kernel(op, library, case, "portable")
    expected = np.concatenate([alone(*(each[i : i + 1] for each in case[2])) for i in range(150)])
    for path in paths_here(library):
        for threads in (1, 3):
            run = kernel(op, library, case, path, threads)
            for width in (1, 2, 5, 8, 49, 150):
                start = int(rng.integers(0, 151 - width))
                same_bits(run(*(each[start : start + width] for each in case[2])), expected[start : start + width])
            order = rng.permutation(150)
            same_bits(run(*(each[order] for each in case[2])), expected[order])


def require_nan_for_unknown_experts(op: str, library: Path, case: Case, count: int) -> None:
    """A row with an expert that does not exist, of ``count``, is NaN; the other rows keep their bits."""
    expected = reference(op, case)
    for wrong in (-1, count, 2**40):
        x, experts, scores = (each.copy() for each in case[2])
        experts[3, 1] = wrong
        for path in paths_here(library):
            y = kernel(op, library, case, path)(x, experts, scores)
            assert np.isnan(y[3]).all()
            same_bits(np.delete(y, 3, axis=0), np.delete(expected, 3, axis=0))
