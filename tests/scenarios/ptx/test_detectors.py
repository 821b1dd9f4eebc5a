"""The interpreter detects every kind of fault: for each, a tiny kernel with it, and a correct one."""

from __future__ import annotations

import numpy as np
import pytest

from tests.plugins.ptx.errors import (
    BarrierFault,
    DataRace,
    EarlyExit,
    Fault,
    InvalidOperand,
    LaunchError,
    Misaligned,
    NoEnd,
    OutOfBounds,
    UninitializedRead,
    UnsupportedPtxError,
)
from tests.plugins.ptx.launch import Input, Output, launch
from tests.plugins.ptx.parse import parse
from tests.plugins.ptx.program import program_of
from tests.plugins.ptx.threads import Shape
from tests.scenarios.ptx.tiny import line_of, run, text

NEIGHBOUR = """
	st.shared.u32 [%r3], %r0;
	{between}
	xor.b32 %r4, %r3, {distance};
	ld.shared.u32 %r5, [%r4];"""
SHUFFLE = "shfl.sync.up.b32 %r6|%p1, %r0, 1, 0, -1;"
REDUCE = "redux.sync.max.u32 %r6, %r0, -1;"


def neighbour(between: str, distance: int = 4) -> str:
    """Each thread writes its word and reads another's, so many bytes away."""
    return NEIGHBOUR.format(between=between, distance=distance)


@pytest.mark.parametrize(("between", "distance"), [("", 4), (SHUFFLE, 4), (REDUCE, 4), ("bar.warp.sync -1;", 128)])
def test_a_race_between_a_write_and_a_read_of_shared_memory(between: str, distance: int) -> None:
    """Shuffles and reductions order no memory, and a warp's barrier none of other warps."""
    body = neighbour(between, distance)
    with pytest.raises(DataRace) as caught:
        run(body)
    message = str(caught.value)
    assert f"tiny, line {line_of(body, 'ld.shared')}, block 0, thread " in message
    assert f"writes in line {line_of(body, 'st.shared')}" in message


@pytest.mark.parametrize(
    ("between", "distance"), [("bar.sync 0;", 128), ("barrier.sync 1;", 4), ("bar.warp.sync -1;", 4), (SHUFFLE, 0)]
)
def test_barriers_order_shared_memory(between: str, distance: int) -> None:
    run(neighbour(between, distance))


def test_a_race_between_a_read_and_a_later_write() -> None:
    read_then_write = """
	st.shared.u32 [%r3], %r0;
	bar.sync 0;
	ld.shared.u32 %r5, [%r1];
	{between}
	st.shared.u32 [%r3], %r5;"""
    with pytest.raises(DataRace, match=r"thread 0: writes shared memory, byte 0, that block 0, thread \d+ reads"):
        run(read_then_write.format(between=""))
    run(read_then_write.format(between="bar.sync 0;"))


def test_two_writes_of_one_instruction_and_atomics_instead() -> None:
    with pytest.raises(DataRace, match="writes"):
        run("st.shared.u32 [%r1], %r0;")
    clear = "st.shared.u32 [%r3], 0;\n bar.sync 0;\n"
    run(clear + "atom.shared.add.u32 %r5, [%r1], 1;\n atom.shared.max.u32 %r5, [%r1], %r0;")
    with pytest.raises(DataRace, match="accesses atomically"):
        run(clear + "atom.shared.add.u32 %r5, [%r1], 1;\n ld.shared.u32 %r5, [%r1];")
    run(clear + "atom.shared.add.u32 %r5, [%r1], 1;\n bar.sync 0;\n ld.shared.u32 %r5, [%r1];")
    with pytest.raises(DataRace, match="accesses atomically shared memory"):
        run("st.shared.u32 [%r3], 0;\n atom.shared.add.u32 %r5, [%r1], 1;")


def test_parts_of_a_word_are_distinguished() -> None:
    bytes_of_own = "add.s32 %r4, %r1, %r0;\n mov.u16 %h1, 3;\n st.shared.u8 [%r4], %h1;\n"
    run(bytes_of_own)
    with pytest.raises(DataRace):
        run(bytes_of_own + "and.b32 %r4, %r4, -4;\n ld.shared.u32 %r5, [%r4];")


GLOBAL = """
	ld.param.u64 %d1, [a0];
	mov.u32 %r4, %ctaid.x;
	mul.wide.u32 %d2, %r4, {pitch};
	mul.wide.u32 %d3, %r0, 4;
	add.s64 %d1, %d1, %d2;
	add.s64 %d1, %d1, %d3;
	st.global.u32 [%d1], %r0;"""


@pytest.mark.parametrize("cluster", [1, 2])
def test_races_between_blocks_on_global_memory(cluster: int) -> None:
    """No barrier orders blocks of different clusters; of one cluster, its barrier does."""
    out = [Output((4 * 64,), np.uint32)]
    run(GLOBAL.format(pitch=256), out, grid=4, cluster=cluster)
    with pytest.raises(DataRace, match="argument 0, byte"):
        run(GLOBAL.format(pitch=128), out, grid=4, cluster=cluster)
    both = GLOBAL.format(pitch=0).replace("st.global", "{}\nst.global")
    turns = "mov.u32 %r5, %cluster_ctarank;\n setp.eq.s32 %p1, %r5, 1;\n{}\n @%p1 st.global.u32 [%d1], %r0;"
    wait = "barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;"
    body = both.format("setp.eq.s32 %p2, %r4, 0;").replace("st.global", "@%p2 st.global")
    with pytest.raises(DataRace):
        run(body + turns.format(""), out, grid=2, cluster=2)
    run(body + turns.format(wait), [Output((64,), np.uint32)], grid=2, cluster=2)


PEER = """
	st.shared.u32 [%r3], %r0;
	{before}
	mov.u32 %r4, %cluster_ctarank;
	xor.b32 %r4, %r4, 1;
	mapa.shared::cluster.u32 %r5, %r3, %r4;
	ld.shared::cluster.u32 %r6, [%r5];
	{after}"""
CLUSTER = "barrier.cluster.arrive;\n\tbarrier.cluster.wait;"


def test_shared_memory_of_a_cluster() -> None:
    run(PEER.format(before=CLUSTER, after=CLUSTER), grid=4, cluster=2)
    with pytest.raises(DataRace, match="block 0, thread 0: reads shared memory"):
        run(PEER.format(before="bar.sync 0;", after=CLUSTER), grid=2, cluster=2)
    with pytest.raises(EarlyExit, match="which may have ended"):
        run(PEER.format(before=CLUSTER, after="bar.sync 0;"), grid=2, cluster=2)
    stale = "barrier.cluster.arrive;\n st.shared.u32 [%r3], %r0;\n barrier.cluster.wait;"  # after the arrival
    with pytest.raises(DataRace):
        run(PEER.replace("st.shared.u32 [%r3], %r0;", "").format(before=stale, after=CLUSTER), grid=2, cluster=2)
    with pytest.raises(InvalidOperand, match="maps an address to block 2"):
        run(
            PEER.format(before=CLUSTER, after=CLUSTER).replace("xor.b32 %r4, %r4, 1", "mov.u32 %r4, 2"),
            cluster=2,
            grid=2,
        )


def test_shared_memory_of_a_block_that_has_ended() -> None:
    leaves = "mov.u32 %r4, %cluster_ctarank;\n setp.eq.s32 %p1, %r4, 1;\n @%p1 ret;\n"
    body = leaves + "mapa.shared::cluster.u32 %r5, %r3, 1;\n st.shared::cluster.u32 [%r5], %r0;"
    with pytest.raises(OutOfBounds, match="of the cluster after its end"):
        run(body, grid=2, cluster=2)


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("ld.shared.u32 %r5, [%r3];", "st.shared.u32 [%r3], 1;\n ld.shared.u32 %r5, [%r3];"),
        ("ld.local.u32 %r5, [local+4];", "st.local.u32 [local+4], 1;\n ld.local.u32 %r5, [local+4];"),
        ("st.local.u16 [local+4], 1;\n ld.local.u32 %r5, [local+4];", "ld.const.u32 %r5, [seven];"),
        ("atom.shared.add.u32 %r5, [%r3], 1;", "st.shared.u32 [%r3], 1;\n atom.shared.add.u32 %r5, [%r3], 1;"),
    ],
)
def test_memory_that_nothing_wrote(bad: str, good: str) -> None:
    with pytest.raises(
        UninitializedRead, match=r"tiny, line \d+, block 0, thread 0: reads .* memory that nothing wrote"
    ):
        run(bad)
    run(good)


POINTER = "ld.param.u64 %d1, [a0];\n mul.wide.u32 %d2, %r0, 4;\n add.s64 %d1, %d1, %d2;\n"


def test_global_memory_has_ends_and_a_first_content() -> None:
    inside = [Input(np.arange(64, dtype=np.uint32))]
    run(POINTER + "ld.global.u32 %r5, [%d1];", inside)
    with pytest.raises(OutOfBounds, match="block 0, thread 63: accesses byte 256 of argument 0, which has 256"):
        run(POINTER + "ld.global.u32 %r5, [%d1+4];", inside)
    with pytest.raises(OutOfBounds, match="thread 0: accesses byte -4"):
        run(POINTER + "ld.global.u32 %r5, [%d1+-4];", inside)
    with pytest.raises(OutOfBounds, match="where nothing is"):
        run("mov.u64 %d1, 0;\n ld.global.u32 %r5, [%d1];", inside)
    with pytest.raises(OutOfBounds, match="an input"):
        run(POINTER + "st.global.u32 [%d1], %r0;", inside)
    with pytest.raises(UninitializedRead):
        run(POINTER + "ld.global.u32 %r5, [%d1];", [Output((64,), np.uint32)])
    with pytest.raises(OutOfBounds, match="thread 63: accesses byte 252 of argument 0"):
        run(POINTER + "st.global.u32 [%d1], %r0;", [Output((63,), np.uint32, shift=4)])


@pytest.mark.parametrize("space", ["shared", "local"])
def test_other_spaces_have_ends(space: str) -> None:
    size = {"shared": 256, "local": 32}[space]
    run(f"st.{space}.u32 [{space}+{size - 4}], 1;", block=1)
    for address in (f"{space}+{size}", f"{space}+-4", "0"):
        with pytest.raises(OutOfBounds, match=f"of {space} memory, which has {size}"):
            run(f"st.{space}.u32 [{address}], 1;", block=1)


def test_addresses_are_multiples_of_the_width() -> None:
    run("st.shared.v4.u32 [shared+16], {%r0, %r0, %r0, %r0};", block=1)
    with pytest.raises(Misaligned, match="line 21, block 0, thread 0: accesses 16 bytes"):
        run("st.shared.v4.u32 [shared+8], {%r0, %r0, %r0, %r0};", block=1)
    with pytest.raises(Misaligned):
        run(POINTER + "ld.global.u32 %r5, [%d1];", [Input(np.arange(128, dtype=np.uint16), shift=2)])


def test_constant_loads_of_memory_that_the_kernel_writes() -> None:
    body = POINTER + "ld.global.nc.u32 %r5, [%d1];\n st.global.u32 [%d1], %r5;"
    with pytest.raises(DataRace):
        run(body, [Output((64,), np.uint32, np.zeros(64, np.uint32))])
    run(body.replace(".nc", ""), [Output((64,), np.uint32, np.zeros(64, np.uint32))])
    with pytest.raises(DataRace, match="as constant that the kernel wrote"):
        run(POINTER + "st.global.u32 [%d1], %r0;\n ld.global.nc.u32 %r5, [%d1];", [Output((64,), np.uint32)])


SOME = "setp.lt.u32 %p1, %r0, {};\n"


def test_barriers_that_some_threads_miss() -> None:
    with pytest.raises(
        BarrierFault, match=r"line 23, block 0, thread 5: waits at bar.sync for block 0, thread 0, which"
    ):
        run(SOME.format(5) + "@%p1 ret;\nbar.sync 0;")
    with pytest.raises(BarrierFault, match=r"which waits elsewhere \(32 do not come\)"):
        run(SOME.format(32) + "@%p1 bra LOW;\nbar.sync 0;\nbra END;\nLOW: bar.sync 1;\nEND:")
    with pytest.raises(BarrierFault, match=r"waits at barrier\.cluster\.wait for block 1, thread 0"):
        run("mov.u32 %r4, %cluster_ctarank;\n setp.eq.s32 %p1, %r4, 1;\n @%p1 ret;\n" + CLUSTER, grid=2, cluster=2)


def test_a_barrier_in_two_branches() -> None:
    """Warps may come to one barrier at two instructions; lanes of one warp may not."""
    both = SOME + "@%p1 bra LOW;\nbar.sync 0;\nbra END;\nLOW: bar.sync 0;\nEND:"
    run(both.format(32))
    with pytest.raises(BarrierFault, match="other lanes of its warp wait at the barrier in line"):
        run(both.format(16))
    run(both.format(16).replace("bar.sync", "barrier.sync"))


def test_cluster_barriers_alternate() -> None:
    run(f"{CLUSTER}\n{CLUSTER}", grid=2, cluster=2)
    with pytest.raises(InvalidOperand, match="without an arrival"):
        run("barrier.cluster.wait;", grid=2, cluster=2)
    with pytest.raises(InvalidOperand, match="arrives twice"):
        run("barrier.cluster.arrive;\nbarrier.cluster.arrive;", grid=2, cluster=2)


@pytest.mark.parametrize("what", [SHUFFLE, REDUCE, "vote.sync.ballot.b32 %r6, %p1, -1;", "bar.warp.sync -1;"])
def test_lanes_that_never_come(what: str) -> None:
    run(SOME.format(32) + f"@%p1 bra END;\n{what}\nEND:")
    with pytest.raises(BarrierFault, match="for lanes of its mask that never come"):
        run(SOME.format(5) + f"@%p1 bra END;\n{what}\nEND:")


def test_masks_of_part_of_a_warp() -> None:
    low = SOME.format(16) + "@!%p1 bra END;\n{}\nEND:"
    run(low.format("shfl.sync.bfly.b32 %r6|%p2, %r0, 8, 31, 0xffff;"), block=32)
    with pytest.raises(InvalidOperand, match="reads a lane that does not take part"):
        run(low.format("shfl.sync.bfly.b32 %r6|%p2, %r0, 16, 31, 0xffff;"), block=32)
    with pytest.raises(InvalidOperand, match="is not in its own mask"):
        run("redux.sync.add.u32 %r6, %r0, 0xffff;", block=32)


def test_division_by_zero() -> None:
    with pytest.raises(InvalidOperand, match="line 21, block 0, thread 0: division by 0"):
        run("div.u32 %r4, 7, %r0;")
    run("add.s32 %r4, %r0, 1;\n div.u32 %r4, 7, %r4;")


def test_a_loop_without_an_end() -> None:
    with pytest.raises(NoEnd, match="more than 50 steps"):
        run("AGAIN: add.s32 %r4, %r4, 1;\n setp.ge.s32 %p1, %r0, 0;\n @%p1 bra AGAIN;", max_steps=50)


@pytest.mark.parametrize(
    "what",
    [
        "lg2.approx.f32 %f1, %f2;",
        "add.sat.s32 %r4, %r5, %r6;",
        "fma.rz.f32 %f1, %f2, %f3, %f4;",
        "ld.global.ca.u32 %r4, [%d1];",
        "ld.shared.nc.u32 %r4, [%r3];",
        "st.global.v3.u32 [%d1], {%r1, %r2, %r3};",
        "barrier.cluster.arrive.relaxed;",
        "barrier.cluster.wait.aligned;",
        "atom.relaxed.cta.shared.add.u32 %r4, [%r3], 1;",
        "bar.sync 0, 32;",
        "cvt.rn.satfinite.e5m2x2.f32 %h1, %f1, %f2;",
        "setp.lt.and.s32 %p1, %r4, %r5, %p2;",
        "atom.shared.add.f32 %f1, [%r3], %f2;",
        "mov.u32 %r4, %clock;",
        "add.s64 %d1, %r4, %d2;",
        "add.f32 %f1, %f2, 1;",
        "call helper;",
        ".reg .b8 %x;",
        "bra NOWHERE;",
        "mov.b64 {%r4, %h1}, %d1;",
        "add.s32 %r4, %r5;",
    ],
)
def test_unknown_instructions_are_refused(what: str) -> None:
    with pytest.raises(UnsupportedPtxError, match=r"tiny"):
        run(what, block=1)


def test_errors_about_unknown_instructions_have_the_line() -> None:
    with pytest.raises(UnsupportedPtxError, match=r"tiny: line 22: unknown instruction add.wide.s32"):
        run("mov.u32 %r4, 1;\nadd.wide.s32 %d4, %r4, 1;")
    with pytest.raises(UnsupportedPtxError, match=r"line 3: unknown directive '.alias a, b;'"):
        parse(".version 9.0\n.target sm_90\n.alias a, b;\n")


def test_launches_that_do_not_fit() -> None:
    code = program_of(parse(text("", 1, ".maxntid 64\n.reqnctapercluster 2, 1, 1")), "tiny")
    good = [Output((1,), np.uint32)]
    for shape, arguments in [
        (Shape(2, 128, 2), good),
        (Shape(2, 64, 1), good),
        (Shape(3, 64, 2), good),
        (Shape(2, 64, 2), []),
        (Shape(2, 64, 2), [1]),
    ]:
        with pytest.raises(LaunchError):
            launch(code, shape, arguments)
    launch(code, Shape(2, 64, 2), good)


def test_every_fault_is_one() -> None:
    for kind in (BarrierFault, DataRace, EarlyExit, InvalidOperand, Misaligned, NoEnd, OutOfBounds, UninitializedRead):
        assert issubclass(kind, Fault)
