"""Tiny PTX kernels: a body with registers and memory declared around it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.plugins.ptx.launch import Argument, Output, Result, launch
from tests.plugins.ptx.parse import parse
from tests.plugins.ptx.program import program_of
from tests.plugins.ptx.threads import Shape

_TEXT = """.version 9.0
.target sm_90
.address_size 64
.const .align 4 .u32 seven = 7;
.visible .entry tiny({parameters}
)
{limits}{{
	.reg .pred %p<20>;
	.reg .b16 %h<20>;
	.reg .b32 %r<40>;
	.reg .b32 %f<20>;
	.reg .b64 %d<40>;
	.reg .b64 %e<20>;
	.shared .align 16 .b8 shared[256];
	.local .align 16 .b8 local[32];
	mov.u32 %r0, %tid.x;
	mov.u32 %r1, shared;
	shl.b32 %r2, %r0, 2;
	add.s32 %r3, %r1, %r2; // the thread's own word of shared memory
	// begin
{body}
	ret;
}}
"""


@functools.cache
def text(body: str, parameters: int = 0, limits: str = "") -> str:
    """Return a file with one kernel, ``tiny``, whose parameters ``a0``.. are pointers."""
    names = ",".join(f"\n\t.param .u64 a{i}" for i in range(parameters))
    return _TEXT.format(parameters=names, limits=f"{limits}\n" if limits else "", body=body)


def line_of(body: str, part: str) -> int:
    """Return the number of the line in the file that has this part of the body."""
    lines = text(body).split("\n")
    begin = next(i for i, line in enumerate(lines) if "// begin" in line)
    return next(i + 1 for i, line in enumerate(lines) if i > begin and part in line)


def run(
    body: str,
    arguments: Sequence[Argument] = (),
    *,
    block: int = 64,
    grid: int = 1,
    cluster: int = 1,
    max_steps: int = 10_000,
) -> Result:
    """Run a body."""
    code = program_of(parse(text(body, len(arguments))), "tiny")
    return launch(code, Shape(grid, block, cluster), arguments, max_steps)


def words(body: str, count: int = 32, dtype: Any = np.uint32, **geometry: int) -> Any:
    """Return what a body leaves in ``%r10`` of each thread (``%d10`` for 64 bits), stored at the end."""
    width = np.dtype(dtype).itemsize
    register = "%r10" if width == 4 else "%d10"
    store = f"""
	ld.param.u64 %d38, [a0];
	mul.wide.u32 %d39, %r0, {width};
	add.s64 %d38, %d38, %d39;
	st.global.b{8 * width} [%d38], {register};"""
    return run(body + store, [Output((count,), dtype)], block=count, **geometry).outputs[0]
