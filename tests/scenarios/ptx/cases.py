"""Small batches that cover all paths of the kernels, and the check of a mutated kernel."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from peagle.plugins.graph_contract import MAX_DRAFTS
from peagle.plugins.kernels.sources import kernel_of
from peagle.plugins.ops import OPS
from peagle.plugins.ops.accept_prefix.reference import race_noise
from tests.plugins import ptx
from tests.plugins.emission_cases import ACCEPT, batch_of
from tests.plugins.ops.accept_tree.trees import chains, with_parents
from tests.plugins.ops.test_grow_tree import candidates
from tests.plugins.ops.test_numbers_at import table
from tests.plugins.plugin_cases import EVERY, Arrays, inputs_of, own_tokens, reference, same_codes, same_numbers
from tests.plugins.ptx.compilers import NVRTC, ptx_of
from tests.plugins.ptx.errors import Fault, UnwrittenError
from tests.plugins.ptx.mutants import KINDS, Mutant, kernel_text, mutant
from tests.plugins.ptx.parse import parse
from tests.plugins.ptx.program import program_of
from tests.plugins.routed_experts import DOWN, GATE_UP, WILD_IDS, down_batch, gate_up_batch


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
    # Every thread takes several pieces, whole or single.
    for heads, size in ((60, 13), (45, 13), (50, 12 * each), (40, 10 * each)):
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
    columns = batch_of(1, ["greedy", "greedy", "plain"], vocab=1, k=7700, dtype=dtype)  # many turns of 512 threads
    columns["window_len"][0], columns["forced_next"][1], columns["draft_len"][:] = 0, 0, 20
    yield Case(columns)
    wide = 17_003 if np.dtype(dtype).itemsize == 4 else 33_003  # every block of the cluster has its part
    yield Case(batch_of(3, ["greedy", "hot", "greedy"], vocab=wide, k=1, dtype=dtype, ties=True), shift=1)
    odd = batch_of(7, ["greedy", "plain", "cold", "greedy", "min-p of one", "hot", "plain"], vocab=77, k=3, dtype=dtype)
    odd["tolerance"][:3] = [0.9, 0.97, 0.0]
    odd["window_len"][3], odd["forced_next"][4], odd["draft_len"][5] = 0, 55, 99
    odd["logits"][6, :, 9], odd["logits"][6, 1, 70] = np.nan, np.inf
    yield Case(odd)
    near = batch_of(
        5, ["top-p"] * 4, vocab=500, k=1, dtype=np.float32, spread=0.01
    )  # many in one bin of the first histogram
    near["logits"][2:] += 0.5
    near["logits"] = near["logits"].astype(dtype)
    near["top_p"][:], near["top_k"][:] = [0.5, 0.7, 0.2, 0.9], [70, 0, 149, 0]
    yield Case(near, shift=3)
    far = batch_of(3, ["top-k then top-p", "top-p"], vocab=wide, k=1, dtype=dtype)
    far["top_k"][0], far["top_p"][:] = 20_000, [0.99, 0.9]
    yield Case(far)
    yield Case(_at_the_edge(wide, dtype))
    policies = ["all", "min-p then top-p", "top-k", "top-p of nothing", "top-1", "min-p"]
    yield Case(batch_of(1, policies, vocab=1003, k=1, dtype=dtype), shift=1)
    yield Case(batch_of(4, ["plain", "hot"] * 8, vocab=1003, k=1, dtype=dtype, spread=0.3))


def _trees(dtype: Any) -> Iterator[Case]:
    """Trees that fork at every depth, one path of which is the target's; the rest is that of ``AcceptPrefix``."""
    rng = np.random.default_rng(4)
    parents = [0, 0, 1, 1, 2, 2, 0, 3, 5, 5, 9, 9, 11, 0]
    policies = ["greedy", "plain", "greedy", "hot", "all", "greedy", "plain", "greedy"]
    batch = chains(batch_of(5, policies, vocab=333, k=len(parents) + 1, dtype=dtype))
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    batch["draft_len"][:], batch["window_len"][:] = len(parents), len(parents) + 3
    batch["uniform"][:, : len(depths)] = batch["uniform"][:, depths]
    batch["tolerance"][2:4] = [0.9, 0.97]
    y = own_tokens(batch)
    for b in range(len(policies)):
        with_parents(batch, b, parents)
        agreeing = [{2, 5, 9, 11, 13}, {1, 4}, {14}, set(), {7}, {2, 6}, {2, 5, 10}, {1, 3, 8}][b]
        for column, parent in enumerate(parents, start=1):
            batch["input_ids"][b, 2 + column] = y[b, parent] if column in agreeing else rng.integers(333)
    batch["input_ids"][7, 4] = batch["input_ids"][7, 3]  # of two equal children the first
    batch["ancestors"][5, 5] = False  # hangs on the newest token
    batch["window_len"][6], batch["forced_next"][4] = 0, 77
    yield Case(batch, shift=1)
    yield Case(chains(batch_of(2, ["greedy"] * 2, vocab=77, k=MAX_DRAFTS, dtype=dtype)))
    beyond = chains(batch_of(3, ["greedy", "plain"], vocab=77, k=3, dtype=dtype))
    beyond["window_len"][:], beyond["draft_len"][:] = [99, 2], [99, 99]
    yield Case(beyond)


def _growths() -> Iterator[Case]:
    """Trees of one draft and of many, ties among them, and candidates that do not suffice."""
    for seed, sizes in enumerate([(3, 9, 8, 8), (1, 2, 1, 8), (2, 20, 3, 2), (1, 64, 7, 6), (1, 40, 1, 36)]):
        yield Case(candidates(seed, *sizes, ties=seed == 0))
    odd = candidates(9, 3, 9, 8, 4)
    odd["candidate_scores"][0, 0, 1], odd["candidate_scores"][1, 2] = np.nan, -np.inf
    odd["candidate_scores"][2, 0] = 0
    yield Case(odd)


def _moves() -> Iterator[Case]:
    """Words of 16 bytes and bytes, more of them than threads, rows beyond the paths, and both ends of the buffers."""
    rng = np.random.default_rng(5)
    path = np.array([[0, 2, 5, -1], [0, 1, 2, 3], [1, 4, 6, 7], [3, -1, -1, -1], [-1, 5, 6, 7]], np.int32)
    near, far = [2, 0, 3, 1, 4], [-2, 9, -5, 2**40, -(2**40)]
    for starts, (buffers, heads, size), shift in (
        (near, (3, 2, 32), 0), (far, (2, 3, 6), 0), (near, (2, 1, 16), 1), (far, (1, 1, 48), 0), (near, (1, 1, 2100), 0)
    ):  # fmt: skip
        entries = rng.integers(-128, 128, (buffers, 6, heads, 12, size)).astype(np.int8)
        yield Case({"entries": entries, "start": np.array(starts), "path": path}, shift={"entries": shift})


def _gate_ups(dtype: Any) -> Iterator[Case]:
    """Rows of more words than a warp takes at once; experts of more tokens than that; two pieces of a window."""
    rng = np.random.default_rng(2)
    long = gate_up_batch(rng, dtype, tokens=6, count=3, columns=1312, width=2)
    yield Case(long | {"experts": np.array([[1, 0], [1, 2], [1, -1], [1, 3], [0, 1], [2**32, 1]])})
    yield Case(gate_up_batch(rng, dtype, tokens=6, chosen=60, count=70, columns=32, width=1))
    steep = gate_up_batch(rng, dtype, tokens=5, chosen=1, count=2, columns=96, width=3, limit=np.inf)
    steep["x"] = (steep["x"].astype(np.float32) * [[1], [10], [100], [-0.0], [1]]).astype(dtype)
    steep["x"][4, 40] = np.nan
    yield Case(steep)
    yield Case(gate_up_batch(rng, dtype, tokens=3, columns=64, wild=True))


def _downs(dtype: Any) -> Iterator[Case]:
    rng = np.random.default_rng(3)
    long = down_batch(rng, dtype, tokens=6, count=3, columns=1312, width=3)
    yield Case(long | {"experts": np.array([[1, 0], [1, 2], [1, 0], [1, 3], [0, 1], [2, 1]])})
    yield Case(down_batch(rng, dtype, tokens=6, chosen=60, count=70, columns=32, width=1))
    many = down_batch(rng, dtype, tokens=90, chosen=1, count=3, columns=32, width=4)
    many["experts"][7::9] = np.array(WILD_IDS * 3)[:10, None]
    many["inner"][3:6] *= np.array([1e4, 1e-5, np.inf], np.float32)[:, None, None]
    yield Case(many)
    yield Case(down_batch(rng, dtype, tokens=3, columns=64, wild=True))


def _at_the_edge(vocab: int, dtype: Any) -> Arrays:
    """Rows whose winner of the race is the last token that top-k or top-p keeps, or the first that it drops.

    So an error by one token shows. The logits of one half crowd into a few bins of the first histogram.
    """
    batch = batch_of(6, ["plain"] * 8, vocab=vocab, k=1, dtype=np.float32)
    batch["draft_len"][:] = 0
    batch["logits"][:4] = batch["logits"][0] * 0.005 + 0.5
    batch["logits"][4:] = batch["logits"][4] * 0.3
    batch["logits"] = batch["logits"].astype(dtype)
    for first in (0, 4):
        z = batch["logits"][first, 0].astype(np.float32)
        for number in np.arange(1, 1000) / 1000:  # a draw that neither the best nor the last tokens win
            winner = int(np.argmax(z + race_noise(number, vocab)))
            better, equal = int((z > z[winner]).sum()), int((z == z[winner]).sum())
            if 0.02 * vocab < better < 0.6 * vocab:
                break
        weights = np.exp((z - z.max()).astype(np.float64))
        before, each = weights[z > z[winner]].sum() / weights.sum(), weights[winner] / weights.sum()
        batch["uniform"][first : first + 4] = number
        batch["top_k"][first : first + 2] = [better + equal, better]
        batch["top_p"][first + 2 : first + 4] = [before + each / 2, before - each / 2]
    return batch


@functools.cache
def cases(op: str, dtype: str) -> tuple[tuple[Case, tuple[Any, ...]], ...]:
    """Return the op's cases with their references, computed once."""
    kind = {"bfloat16": ml_dtypes.bfloat16}.get(dtype, dtype)
    untyped = {"NumbersAt": _numbers, "PlaceholderDraft": _drafts, "GrowTree": _growths, "CloseUp": _moves}
    typed = {ACCEPT: _emissions, "AcceptTree": _trees, "CacheWriteFp8": _writes, GATE_UP: _gate_ups, DOWN: _downs}
    each = untyped[op]() if op in untyped else typed[op](kind)
    return tuple((case, tuple(reference(op, case.batch, **case.attributes))) for case in each)


@functools.cache
def steps_of(op: str, dtype: str, sm: int, number: int, compiler: str = NVRTC) -> int:
    """Return how many steps the kernel as it ships takes for a case, after checking that it passes."""
    case, wanted = cases(op, dtype)[number]
    code, inputs = ptx.program(op, sm, entry_of(op, dtype), compiler), inputs_of(op, case.batch)
    result = ptx.launch_program(code, op, inputs, sm, shift=case.shift, **case.attributes)
    assert same(result.outputs, wanted), f"{op} for sm_{sm} by {compiler} differs in case {number}"
    return result.steps


def entry_of(op: str, dtype: str) -> str:
    """Return the entry point of an op for a dtype; ops that have one for all ignore it."""
    kernel = kernel_of(OPS[op])
    return f"{kernel.entry}_{dtype}" if kernel.typed_by else kernel.entry


def same(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Return True if all outputs are equal, bit for bit; codes of NaN count as one."""
    try:
        for one, other in zip(ours, theirs, strict=True):
            (same_codes if one.dtype == EVERY.dtype else same_numbers)([one], [other])
    except AssertionError:
        return False
    return True


def complaint(text: str, op: str, dtype: str, sm: int, first: int = 0) -> str | None:
    """Return how a changed kernel fails the cases, ``first`` one of them: by a fault or another result.

    Return None if it passes them all. It may take four times as many steps as the kernel that ships. Small cases come
    before large ones, which take most of the time.
    """
    code = program_of(parse(text), entry_of(op, dtype))
    for i, (case, wanted) in sorted(enumerate(cases(op, dtype)), key=lambda each: (each[0] != first, size(each[1][0]))):
        most, inputs = 4 * steps_of(op, dtype, sm, i), inputs_of(op, case.batch)
        try:
            result = ptx.launch_program(code, op, inputs, sm, shift=case.shift, max_steps=most, **case.attributes)
        except (Fault, UnwrittenError) as error:
            return f"{type(error).__name__}: {error}"
        if not same(result.outputs, wanted):
            return f"case {i}: another result than the reference"
    return None


def size(case: Case) -> int:
    """Return how many numbers a case has."""
    return sum(each.size for each in case.batch.values())


def fate(op: str, dtype: str, sm: int, kind: str, number: int, first: int = 0) -> tuple[Mutant, str | None] | None:
    """Return a mutant and how it fails, see ``complaint``; None if there are fewer of the kind."""
    made = mutant(ptx_of(op, sm), entry_of(op, dtype), kind, number)
    return None if made is None else (made, complaint(made.text, op, dtype, sm, first))


def digest(op: str, dtype: str, sm: int) -> str:
    """Return what identifies a kernel's text: mutants chosen for one text are others in another.

    The names in the C++ source and the constants before the kernel are left out: mutants change neither.
    """
    text = kernel_text(ptx_of(op, sm), entry_of(op, dtype)).partition(".visible .entry ")[2]
    text = re.sub(r"//[^\n]*", "", re.sub(r"\b_Z\w+", "_Z", text))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def choose(op: str, dtype: str, sm: int, tries: int = 4) -> tuple[list[tuple[str, int]], list[Mutant]]:
    """Return the first mutant of each kind that fails, as (kind, number), and those before it that pass."""
    caught, passed = list[tuple[str, int]](), list[Mutant]()
    for kind in KINDS:
        for number in range(tries):
            if (found := fate(op, dtype, sm, kind, number)) is None:
                break
            if found[1]:
                caught.append((kind, number))
                break
            passed.append(found[0])
    return caught, passed
