"""Run the CPU kernel of CachedAttention and its reference on the same arrays."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.plugins.cpu.one_node_model import one_node_model
from peagle.plugins.ops import OPS
from peagle.plugins.ops.cached_attention.int8_caches import codes_of
from tests.plugins.cpu.sessions import session

OP = "CachedAttention"
OPERANDS = OPS[OP].inputs
OPTIONAL = tuple(operand.name for operand in OPERANDS if operand.optional)
CACHES = ("k_cache", "v_cache")
Arrays = dict[str, Any]


@cache
def made(
    library: Path,
    options: tuple[str, ...],
    attributes: tuple[tuple[str, Any], ...],
    path: str = "",
    threads: int = 1,
    cache_type: str = "float32",
) -> Any:
    """A session of one node that is given the optional inputs ``options``."""
    types = {operand.name: operand.dtypes[0] for operand in OPERANDS} | dict.fromkeys(CACHES, cache_type)
    given = {name: None if name in OPTIONAL and name not in options else kind for name, kind in types.items()}
    outputs = {"y": "float32", "k_out": cache_type, "v_out": cache_type}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEAGLE_CPU_INSTRUCTIONS", path)
        return session(library, one_node_model(OP, given, outputs, dict(attributes)), threads)


def attend(library: Path, case: Arrays, attributes: Arrays, path: str = "", threads: int = 1) -> list[Any]:
    """Return y, k_out and v_out of the kernel, with the best instruction set by default."""
    cache_type, options = case["k_cache"].dtype.name, tuple(name for name in OPTIONAL if name in case)
    all_attributes = tuple((attributes | _scaled(case)).items())
    return list(made(library, options, all_attributes, path, threads, cache_type).run(None, case))


def reference(case: Arrays, attributes: Arrays) -> tuple[Any, ...]:
    """The same of the op's reference."""
    with np.errstate(all="ignore"):
        filled = OPS[OP].check_attributes(attributes | _scaled(case))
        return OPS[OP].reference(*(case.get(operand.name) for operand in OPERANDS), **filled)


def _scaled(case: Arrays) -> Arrays:
    return {"scaled": 1} if case["k_cache"].dtype == np.int8 else {}


def case_of(
    rng: Any, batch: int, key_heads: int, group: int, columns: int, size: int, starts: list[int], length: int
) -> Arrays:
    """Normal numbers, caches of float32."""
    new, old = (batch, key_heads, columns, size), (batch, key_heads, length, size)
    shapes = {"q": (batch, key_heads * group, columns, size), "k": new, "v": new, "k_cache": old, "v_cache": old}
    case: Arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return case | {"start": np.array(starts, np.int64)}


def kept(case: Arrays, cache_type: str) -> Arrays:
    """The same with caches of a type."""
    caches = {name: case[name] for name in CACHES}
    return case | {n: codes_of(x) if cache_type == "int8" else x.astype(cache_type) for n, x in caches.items()}
