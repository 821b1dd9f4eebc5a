"""Programs give the same bits as their steps: with views, reused memory, and any windows, threads and instructions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.cpu.fused_region.programs import BoundRegion, Writer, fused_region
from tests.plugins.cpu.fused_region.test_steps import BITS
from tests.plugins.cpu.sessions import paths_here
from tests.plugins.ops.packed_cases import matrix
from tests.plugins.same_bits import same_bits

WIDTH, HEADS, SIZE, INNER, LENGTH = 64, 4, 16, 96, 80
ALL = HEADS * SIZE
few = settings(max_examples=8, deadline=None)


def decoder(seed: int, layers: int = 2, format: str = "q4_1", forks: bool = False) -> tuple[Writer, list[str]]:
    """A small decoder over caches of 4 heads, with a tap: its steps and what it returns; ``forks`` has ancestors."""
    rng, writer = np.random.default_rng(seed), Writer()
    cos, sin = rng.normal(size=(2, LENGTH, SIZE // 2)).astype(np.float32)
    writer.inputs |= {"x": "float32", "start": "int64", "at": "int64", "heads": "int64", "cos": cos, "sin": sin}
    steering = ["start"]
    if forks:
        writer.inputs["ancestors"] = "bool"
        steering += ["", "ancestors"]

    def product(x: str, rows: int, columns: int) -> str:
        name = f"w{len(writer.inputs)}"
        codes, scales = matrix(rng, format, rows, columns)
        writer.inputs |= {name: codes, f"{name}.scales": (scales / 8).astype(scales.dtype)}
        made: str = writer.step("QuantizedLinear", x, name, f"{name}.scales", attributes=f"format={format} rows={rows}")
        return made

    def weight() -> str:
        name = f"n{len(writer.inputs)}"
        writer.inputs[name] = rng.normal(size=WIDTH).astype(np.float32)
        return name

    stream, results = "x", []
    for layer in range(layers):
        writer.inputs |= {f"k{layer}": "float32", f"v{layer}": "float32"}
        normed = writer.step("RMSNormalization", stream, weight(), attributes=f"epsilon={BITS}")
        parts = writer.step("Split", product(normed, 3 * ALL, WIDTH), outputs=3, attributes=f"sizes={ALL},{ALL},{ALL}")
        q, k, v = (
            writer.step("Transpose", writer.step("Reshape", part, "heads"), attributes="perm=0,2,1,3") for part in parts
        )
        q, k = (writer.step("RotaryEmbedding", x, "cos", "sin", "at") for x in (q, k))
        y, k_out, v_out = writer.step(
            "CachedAttention", q, k, v, f"k{layer}", f"v{layer}", *steering, outputs=3, attributes="scale=#3e800000"
        )
        rows = writer.step("Reshape", y, attributes=f"shape=0,0,{ALL}")
        # A product and a sum that read parts of rows, which lie apart.
        first, second = writer.step("Split", rows, outputs=2, attributes=f"sizes=32,{ALL - 32}")
        mixed = product(writer.step("Add", second, first), WIDTH, 32)
        mixed = writer.step("Add", mixed, product(first, WIDTH, 32))
        skip = ("SkipSimplifiedLayerNormalization", stream, mixed, weight())
        normed, _, _, total = writer.step(*skip, outputs=4, attributes=f"epsilon={BITS}")
        gate, up = writer.step(
            "Split", product(normed, 2 * INNER, WIDTH), outputs=2, attributes=f"sizes={INNER},{INNER}"
        )
        silu = writer.step("Mul", gate, writer.step("Sigmoid", gate))
        stream = writer.step("Add", total, product(writer.step("Mul", silu, up), WIDTH, INNER))
        results += [stream, k_out, v_out]
    # Something whose tokens are more than the window's, and a result that is a view.
    many = writer.step("Reshape", stream, attributes="shape=0,-1,16")
    many = writer.step("RMSNormalization", many, "small", attributes=f"epsilon={BITS}")
    writer.inputs["small"] = rng.normal(size=16).astype(np.float32)
    return writer, [*results, writer.step("Split", many, outputs=2, attributes="sizes=9,7")[1]]


def caches(rng: Any, batch: int, layers: int = 2) -> dict[str, Any]:
    return {f"{kind}{i}": rng.normal(size=(batch, HEADS, LENGTH, SIZE)).astype(np.float32)
            for i in range(layers) for kind in "kv"}  # fmt: skip


def window(x: Any, start: Any) -> dict[str, Any]:
    at = start[:, None] + np.arange(x.shape[1])
    return {"x": x, "start": start, "at": at, "heads": np.array([x.shape[0], x.shape[1], HEADS, SIZE])}


def ancestors(rng: Any, batch: int, columns: int) -> Any:
    """Trees and chains."""
    chain = np.tri(columns, k=-1, dtype=bool)
    return np.stack([chain & (rng.random(chain.shape) < rng.choice([0.5, 1.0])) for _ in range(batch)])


@few
@given(
    st.integers(1, 3), st.integers(1, 9), st.sampled_from(["int8", "q4_1"]), st.booleans(), st.integers(0, 2**32 - 1)
)
def test_program_gives_the_bits_of_its_steps(
    cpu_library: Path, batch: int, columns: int, format: str, forks: bool, seed: int
) -> None:
    writer, results = decoder(seed, 1, format, forks)
    rng = np.random.default_rng(seed)
    start = rng.choice([*range(70), LENGTH - columns], batch)
    fed = window(rng.normal(size=(batch, columns, WIDTH)).astype(np.float32), start) | caches(rng, batch, 1)
    fed |= {"ancestors": ancestors(rng, batch, columns)} if forks else {}
    expected = writer.step_by_step(cpu_library, fed, results)
    for path in paths_here(cpu_library):
        run = fused_region(cpu_library, writer.text(results), writer.inputs, len(results), path, threads=2)
        for _ in range(2):  # the second has the memory of the first
            for ours, theirs in zip(run(**fed), expected, strict=True):
                same_bits(ours, theirs)


@few
@given(
    st.sampled_from([(8,), (2, 6), (5, 1, 2), (1, 7), (1,) * 8, (2, 1, 2, 1, 2)]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2**32 - 1),
)
def test_windows_neighbours_and_threads_change_no_bit(
    cpu_library: Path, windows: tuple[int, ...], threads: int, seed: int
) -> None:
    writer, results = decoder(seed)
    rng, text = np.random.default_rng(seed), writer.text(results)
    x, start, there = rng.normal(size=(3, 8, WIDTH)).astype(np.float32), rng.integers(0, 60, 3), caches(rng, 3)
    whole = fused_region(cpu_library, text, writer.inputs, len(results))(**window(x, start), **there)
    for path in paths_here(cpu_library):
        run = fused_region(cpu_library, text, writer.inputs, len(results), path, threads)
        row = int(rng.integers(0, 3))
        held, begin = {name: cache[row : row + 1] for name, cache in there.items()}, 0
        for columns in windows:
            part = x[row : row + 1, begin : begin + columns]
            outputs = run(**window(part, start[row : row + 1] + begin), **held)
            held = dict(zip(held, [each for at, each in enumerate(outputs[:-1]) if at % 3], strict=True))
            for at, each in ((0, 1), (3, 1), (6, WIDTH // 16)):  # the last one has four for a token
                same_bits(outputs[at], whole[at][row : row + 1, each * begin : each * (begin + columns)])
            begin += columns
        for ours, theirs in zip(held.values(), [e for at, e in enumerate(whole[:-1]) if at % 3], strict=True):
            same_bits(ours, theirs[row : row + 1])


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_over_the_memory_of_the_last_one_gives_the_bits_of_a_new_session(cpu_library: Path, threads: int) -> None:
    writer, results = decoder(1, forks=True)
    rng, text = np.random.default_rng(1), writer.text(results)
    bound = window(np.empty((2, 3, WIDTH), np.float32), np.zeros(2, np.int64)) | caches(rng, 2)
    bound["ancestors"] = ancestors(rng, 2, 3)
    runner = BoundRegion(cpu_library, text, writer.inputs, bound, len(results), threads)
    for start in ((3, 9), (62, 5), (4, 11), (76, 77), (10, 61)):  # one chunk of positions, two, and fewer again
        fed = window(rng.normal(size=(2, 3, WIDTH)).astype(np.float32), np.array(start)) | caches(rng, 2)
        fed["ancestors"] = ancestors(rng, 2, 3)
        expected = fused_region(cpu_library, text, writer.inputs, len(results))(**fed)
        for ours, theirs in zip(runner.run(fed), expected, strict=True):
            same_bits(ours, theirs)


def test_empty_window_gives_empty_results(cpu_library: Path) -> None:
    writer, results = decoder(0)
    run = fused_region(cpu_library, writer.text(results), writer.inputs, len(results), threads=2)
    there = caches(np.random.default_rng(0), 2)
    outputs = run(**window(np.zeros((2, 0, WIDTH), np.float32), np.array([3, 5])), **there)
    assert outputs[0].shape == (2, 0, WIDTH)
    np.testing.assert_array_equal(outputs[1], there["k0"])


def test_control_values_are_read_every_run(cpu_library: Path) -> None:
    writer, results = decoder(0)
    run = fused_region(cpu_library, writer.text(results), writer.inputs, len(results))
    rng = np.random.default_rng(0)
    fed = window(rng.normal(size=(1, 2, WIDTH)).astype(np.float32), np.array([3])) | caches(rng, 1)
    run(**fed)
    with pytest.raises(Exception, match="do not fit in a cache of 80"):
        run(**fed | {"start": np.array([79])})
    with pytest.raises(Exception, match="position 80 is out of range"):
        run(**fed | {"at": np.array([[79, 80]])})
    with pytest.raises(Exception, match="a Reshape cannot turn 128 elements"):
        run(**fed | {"heads": np.array([1, 2, HEADS, SIZE + 1])})


REFUSED = {
    "no program": ("", "no outputs"),
    "an unknown step": ("Cosine 0 > 1\noutputs 1", "there is no kernel of Cosine"),
    "a value that nobody made": ("Tanh 7 > 1\noutputs 1", "reads value 7 before"),
    "values out of order": ("Tanh 0 > 5\noutputs 5", "does not number its outputs in order"),
    "an input that is handed on": ("Tanh 0 > 1\noutputs 0", "an input of the program must not be its output"),
    "half a line": ("Tanh 0\noutputs 0", "invalid step"),
    "an attribute without a value": ("Tanh 0 > 1 x\noutputs 1", "invalid attribute"),
    "a float that is none": ("RMSNormalization 0,0 > 1 epsilon=0.5\noutputs 1", "attribute epsilon is"),
    "too many inputs": ("Tanh 0,0 > 1\noutputs 1", "too many inputs"),
    "too few inputs": ("Add 0 > 1\noutputs 1", "lacks a required input"),
    "sizes that a step makes": ("Tanh 0 > 1\nReshape 1,1 > 2\noutputs 2", "target shape of a Reshape must be an input"),
    "another type": ("Reshape 0,0 > 1\noutputs 1", "must be int64"),
    "a Split that does not fit": ("Split 0 > 1,2 sizes=3,3\noutputs 1", "do not add up to 4"),
    "a Transpose of the last": ("Transpose 0 > 1 perm=0,2,1\noutputs 1", "must not move the last dimension"),
    "a weight that does not fit": (
        "Tanh 0 > 1\nSplit 1 > 2,3 sizes=1,3\nRMSNormalization 0,2 > 4\noutputs 4",
        "weights",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_programs_are_refused(cpu_library: Path, what: str) -> None:
    program, complaint = REFUSED[what]
    with pytest.raises(Exception, match=complaint):
        fused_region(cpu_library, program, {"x": "float32"}, 1)(x=np.ones((1, 2, 4), np.float32))


def test_large_memory_of_many_regions_is_needed_once(cpu_library: Path) -> None:
    """Twelve regions, one after the other, each of 16 MB between its input and its output."""
    rng = np.random.default_rng(8)
    x, at = rng.normal(size=(2048, 1024)).astype(np.float32), np.array([7, 2047])
    program = Writer({"x": "float32", "at": "int64"})
    result = program.step("Gather", program.step("Tanh", program.step("Sigmoid", "x")), "at")
    runs = [fused_region(cpu_library, program.text([result]), program.inputs, 1) for _ in range(12)]
    expected = runs[0](x=x, at=at)[0]
    same_bits(expected, runs[1](x=x[[7, 2047]], at=np.array([0, 1]))[0])
    before = _anonymous_bytes()
    for run in runs:
        same_bits(run(x=x, at=at)[0], expected)
    assert _anonymous_bytes() - before < 4 * 2 * x.nbytes


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
