"""Small batches that together reach what the kernels do, and whether a changed kernel still passes them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from tests.plugins import ptx
from tests.plugins.emission_cases import ACCEPT, batch_of, partings
from tests.plugins.ops.test_numbers_at import table
from tests.plugins.plugin_cases import EVERY, Arrays, inputs_of, reference, same_codes
from tests.plugins.ptx.errors import Fault
from tests.plugins.ptx.parse import parse
from tests.plugins.ptx.program import program_of


@dataclass(frozen=True)
class Case:
    """Inputs of an op by name, its attributes, and by how many numbers arrays lie off their alignment."""

    batch: Arrays
    attributes: dict[str, int] = field(default_factory=dict)
    shift: int | Mapping[str, int] = 0


def _numbers() -> Iterator[Case]:
    rows = [(3, 4, 2), (0, 0, 0), (60, 3, 1), (-5, 2, 0), (2**40, 1, 9), (10, 5, -3), (7, -2, 1), (70, 1, 0)]
    yield Case(table(rows, 67), {"columns": 5})
    for columns in (256, 600):  # the table ends in every turn of the 64 threads, and at its edges
        ends = [*range(0, columns, 37), *range(64, columns, 64)]
        rows = [(700 - end, 1, 0) for end in ends] + [(0, 300, 299), (1, 0, 0)]
        yield Case(table(rows, 700), {"columns": columns})


def _drafts() -> Iterator[Case]:
    rng = np.random.default_rng(0)
    for rows, width, columns in ((12, 7, 5), (2, 2, 2), (3, 513, 513), (4, 300, 1400), (40, 700, 620)):
        edges = [*range(0, width, 128), *range(1, width, 128), width, width + 9, -3]
        batch: Arrays = {
            "input_ids": rng.integers(100, 2**40, (rows, width)),
            "start": rng.integers(-9, 2**40, rows),
            "window_len": rng.choice(edges, rows).astype(np.int32),
            "draft_len": rng.choice([-2, 0, 1, 2, columns // 2, columns - 1, columns + 5], rows).astype(np.int32),
            "tokens": rng.integers(-1, 99, (rows, columns)).astype(np.int32),
            "num_tokens": rng.choice([-1, 0, 1, 2, columns // 2, columns, columns + 3], rows).astype(np.int32),
        }
        batch["window_len"][0], batch["draft_len"][0], batch["num_tokens"][0] = width, columns - 1, columns
        if rows == 40:  # what is emitted begins and ends in every turn of the 128 threads, and at its edges
            batch["window_len"][1:21] = width
            batch["draft_len"][1:21] = [width - 1 - c0 for c0 in (*range(100, 700, 31),)]
            batch["num_tokens"][1:21] = rng.integers(1, 400, 20)
            batch["num_tokens"][11:16], batch["draft_len"][11:16] = [12, 128, 140, 256, 268], [599, 571, 443, 315, 187]
        yield Case(batch, {"mask_token_id": 98})


def _writes(dtype: Any) -> Iterator[Case]:
    rng = np.random.default_rng(1)
    each = 16 // np.dtype(dtype).itemsize
    starts = np.array([2, 6, -2, 2**40, -(2**40)])
    shapes = ((3, 4, 8, 2 * each), (2, 3, 6, 9), (1, 2, 5, 10), *[(1, 2, 5, each)] * 4)
    shifts = ({}, {}, {}, {"k": 1}, {"v": 1}, {"k_cache": 1}, {"v_cache": 1})
    for (heads, width, length, size), shift in zip(shapes, shifts, strict=True):
        cache, new = (len(starts), heads, length, size), (len(starts), heads, width, size)
        batch: Arrays = {name: rng.choice(EVERY, cache) for name in ("k_cache", "v_cache")}
        with np.errstate(over="ignore"):
            batch |= {name: (rng.normal(size=new) * 200).astype(dtype) for name in ("k", "v")}
        batch["k"][0, 0, 0, :4] = [np.nan, np.inf, -0.0, -np.inf]
        batch |= {"start": starts, "k_scale": np.array(0.37, np.float32), "v_scale": np.array(2.0**-6, np.float32)}
        yield Case(batch, shift=shift)
    for heads, size in ((60, 13), (50, 5 * each)):  # every thread takes several pieces, whole or single
        cache, new = (2, heads, 6, size), (2, heads, 3, size)
        batch = {name: rng.choice(EVERY, cache) for name in ("k_cache", "v_cache")}
        batch |= {name: rng.normal(size=new).astype(dtype) for name in ("k", "v")}
        for starts in ([-1, 0], [4, 3], [-9, 2]):
            scales = {"k_scale": np.array(0.3, np.float32), "v_scale": np.array(2.0, np.float32)}
            yield Case(batch | {"start": np.array(starts), **scales})


def _emissions(dtype: Any) -> Iterator[Case]:
    many = batch_of(2, ["greedy"] * 3, vocab=77, k=40, dtype=dtype, ties=True)
    for b, accepted in enumerate((40, 23, 9)):  # every load that is in flight at once is needed
        many["input_ids"][b, 2 : 2 + accepted] = many["logits"][b, :accepted].astype(np.float32).argmax(axis=-1)
    yield Case(many, shift=1)
    columns = batch_of(1, ["greedy", "greedy", "plain"], vocab=1, k=4200, dtype=dtype)  # more than threads
    columns["window_len"][0], columns["forced_next"][1], columns["draft_len"][:] = 0, 0, 20
    yield Case(columns)
    wide = 17_003 if np.dtype(dtype).itemsize == 4 else 33_003  # every block of the cluster has its part
    yield Case(batch_of(3, ["greedy", "hot", "greedy"], vocab=wide, k=1, dtype=dtype, ties=True), shift=1)
    odd = batch_of(7, ["greedy", "plain", "cold", "greedy", "min-p of one", "hot", "plain"], vocab=77, k=3, dtype=dtype)
    odd["tolerance"][:3] = [0.9, 0.97, 0.0]
    odd["window_len"][3], odd["forced_next"][4], odd["draft_len"][5] = 0, 55, 99
    odd["logits"][6, :, 9], odd["logits"][6, 1, 70] = np.nan, np.inf
    yield Case(odd)
    near = batch_of(5, ["top-p"] * 4, vocab=500, k=1, dtype=np.float32, spread=0.01)  # many in one bin of the first histogram
    near["logits"][2:] += 0.5
    near["logits"] = near["logits"].astype(dtype)
    near["top_p"][:], near["top_k"][:] = [0.5, 0.7, 0.2, 0.9], [70, 0, 149, 0]
    yield Case(near, shift=3)
    far = batch_of(3, ["top-k then top-p", "top-p"], vocab=wide, k=1, dtype=dtype)
    far["top_k"][0], far["top_p"][:] = 20_000, [0.99, 0.9]
    yield Case(far)
    policies = ["all", "min-p then top-p", "top-k", "top-p of nothing", "top-1", "min-p"]
    yield Case(batch_of(1, policies, vocab=1003, k=1, dtype=dtype), shift=1)
    yield Case(batch_of(4, ["plain", "hot"] * 8, vocab=1003, k=1, dtype=dtype, spread=0.3))


@functools.cache
def cases(op: str, dtype: str) -> tuple[tuple[Case, tuple[Any, ...]], ...]:
    """Return the op's cases with their references, computed once."""
    kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    made = {"NumbersAt": _numbers, "PlaceholderDraft": _drafts}.get(op)
    each = made() if made else (_emissions(kind) if op == ACCEPT else _writes(kind))
    return tuple((case, tuple(reference(op, case.batch, **case.attributes))) for case in each)


def complaint(text: str, op: str, dtype: str, entry: str, sm: int, steps: list[int] | None = None) -> str | None:
    """Return how a kernel's text fails the cases: a fault, or the first output that differs; None if it passes.

    ``steps`` are those of the kernel as it ships, of which a changed one may take four times as many.
    """
    code = program_of(parse(text), entry)
    for i, (case, wanted) in enumerate(cases(op, dtype)):
        most = 4 * steps[i] if steps else 10**6
        inputs = inputs_of(op, case.batch)
        try:
            result = ptx.launch_program(code, op, inputs, sm, shift=case.shift, most_steps=most, **case.attributes)
        except (Fault, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
        if steps is None:
            assert op != ACCEPT or partings(case.batch, result.outputs) == 0
        for ours, theirs in zip(result.outputs, wanted, strict=True):
            try:
                same_codes([ours], [theirs]) if ours.dtype == EVERY.dtype else np.testing.assert_array_equal(ours, theirs)
            except AssertionError:
                return f"case {i}: another result than the reference"
    return None


def steps_of(text: str, op: str, entry: str, dtype: str, sm: int) -> list[int]:
    """Return how many steps the kernel takes for each case."""
    code = program_of(parse(text), entry)
    return [
        ptx.launch_program(code, op, inputs_of(op, case.batch), sm, shift=case.shift, **case.attributes).steps
        for case, _ in cases(op, dtype)
    ]
