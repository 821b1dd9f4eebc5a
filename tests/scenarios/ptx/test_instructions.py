"""Whole instructions in tiny kernels: operands of all kinds, memory, exchange between lanes, lanes that part."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.scenarios.ptx.tiny import run, words

LANES = np.arange(32)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mov.b64 %d1, {%r0, 7};\n mov.b64 {%r4, %r10}, %d1;", np.full(32, 7)),
        ("mov.b32 {%h1, %h2}, 0x20001;\n mov.b32 %r10, {%h2, %h1};", np.full(32, 0x10002)),
        ("cvt.u16.u32 %h1, %r0;\n setp.eq.s16 %p1, %h1, 3;\n selp.u32 %r10, 5, 6, %p1;", np.where(LANES == 3, 5, 6)),
        ("mov.u32 %r10, 1;\n setp.lt.u32 %p1, %r0, 5;\n @%p1 mov.u32 %r10, %r0;", np.where(LANES < 5, LANES, 1)),
        ("mov.u32 %r4, 9;\n mov.u32 %r10, %r4;\n setp.eq.u32 %p1, %r0, 1;\n @%p1 mov.u32 %r4, 2;", np.full(32, 9)),
        ("shfl.sync.up.b32 %r10|%p1, %r0, 2, 0, -1;", np.where(LANES < 2, LANES, LANES - 2)),
        ("shfl.sync.down.b32 %r10, %r0, 3, 31, -1;", np.where(LANES > 28, LANES, LANES + 3)),
        ("shfl.sync.bfly.b32 %r10, %r0, 5, 31, -1;", LANES ^ 5),
        ("shfl.sync.idx.b32 %r10, %r0, 6, 31, -1;", np.full(32, 6)),
        ("shfl.sync.idx.b32 %r10, %r0, 1, 0x181f, -1;", LANES // 8 * 8 + 1),
        ("shfl.sync.up.b32 %r4|%p1, %r0, 2, 0, -1;\n selp.u32 %r10, 1, 0, %p1;", (LANES >= 2).astype(int)),
        ("redux.sync.add.u32 %r10, %r0, -1;", np.full(32, 496)),
        ("redux.sync.min.s32 %r10, %r0, -1;", np.zeros(32)),
        ("redux.sync.xor.b32 %r10, %r0, -1;", np.zeros(32)),
        ("setp.gt.u32 %p1, %r0, 29;\n vote.sync.ballot.b32 %r10, %p1, -1;", np.full(32, 3 << 30)),
        ("setp.gt.u32 %p1, %r0, 2;\n vote.sync.all.pred %p2, %p1, -1;\n selp.u32 %r10, 1, 0, %p2;", np.zeros(32)),
        ("setp.gt.u32 %p1, %r0, 2;\n vote.sync.any.pred %p2, %p1, -1;\n selp.u32 %r10, 1, 0, %p2;", np.ones(32)),
        ("st.local.u32 [local], %r0;\n mov.u64 %d1, local;\n ld.local.u32 %r10, [%d1];", LANES),
        (
            "mov.u64 %d1, local;\n cvta.local.u64 %d2, %d1;\n st.u32 [%d2+4], %r0;\n ld.local.u32 %r10, [local+4];",
            LANES,
        ),
        ("mov.u64 %d1, seven;\n cvta.const.u64 %d1, %d1;\n ld.u32 %r10, [%d1];", np.full(32, 7)),
        ("st.shared.s8 [%r3], -2;\n ld.shared.s8 %r10, [%r3];", np.full(32, 2**32 - 2)),
        ("st.shared.u32 [%r3], 5;\n atom.shared.exch.b32 %r10, [%r3], 9;", np.full(32, 5)),
        (
            "st.shared.u32 [%r3], 5;\n atom.shared.cas.b32 %r4, [%r3], 5, 8;\n ld.shared.u32 %r10, [%r3];",
            np.full(32, 8),
        ),
        ("st.shared.u32 [%r3], 0;\n bar.sync 0;\n atom.shared.add.u32 %r10, [shared], 1;", LANES),
        ("mov.u32 %r10, %ntid.x;", np.full(32, 32)),
        ("mov.u32 %r10, %laneid;", LANES),
    ],
)
def test_whole_instructions(text: str, wanted: Any) -> None:
    np.testing.assert_array_equal(words(text), wanted.astype(np.uint32))


def test_a_loop_in_which_lanes_leave_one_by_one() -> None:
    """The sum 0 + 1 + .. + lane, and a lane that skips odd numbers."""
    body = """
	mov.u32 %r10, 0;
	mov.u32 %r4, 0;
LOOP:
	and.b32 %r5, %r4, 1;
	setp.eq.u32 %p1, %r5, 1;
	setp.eq.u32 %p2, %r0, 9;
	and.pred %p1, %p1, %p2;
	@%p1 bra SKIP;
	add.s32 %r10, %r10, %r4;
SKIP:
	add.s32 %r4, %r4, 1;
	setp.le.u32 %p3, %r4, %r0;
	@%p3 bra LOOP;"""
    wanted = LANES * (LANES + 1) // 2
    wanted[9] = 0 + 2 + 4 + 6 + 8
    np.testing.assert_array_equal(words(body), wanted)


def test_lanes_that_part_meet_again() -> None:
    """A loop takes as many steps as its longest lane, and what follows it is done once, by all together."""
    loop = "mov.u32 %r4, 0;\nLOOP: add.s32 %r4, %r4, 1;\n setp.le.u32 %p1, %r4, %r0;\n @%p1 bra LOOP;\n"
    halves = "setp.lt.u32 %p2, %r0, 9;\n @%p2 bra LOW;\n mov.u32 %r5, 1;\n bra END;\nLOW: mov.u32 %r5, 2;\nEND:\n"
    after = "".join("setp.lt.u32 %p3, %r0, 99;\n @!%p3 bra AWAY;\n" for _ in range(10)) + "AWAY: mov.u32 %r6, 3;"
    assert run(loop + halves + after, block=64).steps == 1 + 64 + 3 + 10 + 1
