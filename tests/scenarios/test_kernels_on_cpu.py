"""The CUDA kernels compared with the references, without a GPU: their source runs in an emulator."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.plugins.graph_contract import MAX_DRAFTS
from peagle.plugins.kernels.sources import source
from peagle.plugins.ops import OPS
from tests.plugins import emulator
from tests.plugins.emission_cases import ACCEPT, batch_of, column, could_emit, partings
from tests.plugins.emulator import COMPILER, SANITIZE, run
from tests.plugins.ops.accept_tree.trees import partings as tree_partings
from tests.plugins.ops.accept_tree.trees import trees, with_any_ancestors
from tests.plugins.ops.test_close_up import moves
from tests.plugins.ops.test_grow_tree import growths
from tests.plugins.ops.test_numbers_at import table, tables
from tests.plugins.plugin_cases import (
    EVERY,
    POLICIES,
    Arrays,
    alone,
    inputs_of,
    own_tokens,
    reference,
    same_codes,
    same_numbers,
    windows,
    with_emitted,
    with_wild_lengths,
    writes,
)
from tests.plugins.routed_experts import DOWN, GATE_UP, batches

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs g++ to compile the kernels for a CPU"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the references compute with NaN and infinity on purpose
]

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
LOSSY = (0.0, 0.0, 0.3, 0.9, 1.0)
THREADS = 64  # the fewest that the kernel can do with

few = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def kernel(batch: Arrays, cluster: int = 2, threads: int = THREADS) -> list[Any]:
    return run(ACCEPT, inputs_of(ACCEPT, batch), threads=threads, cluster=cluster)


def test_the_rounding_check_lets_no_other_token_through() -> None:
    """Elsewhere than at an edge there is one choice; a kernel that took the runner-up would be found."""
    batch = batch_of(1, sorted(POLICIES), vocab=300, k=3, dtype=np.float32)
    y = own_tokens(batch)
    choices = [could_emit(batch, b, j) for b in range(len(y)) for j in range(4)]
    assert [{int(token)} for token in y.reshape(-1)] == choices
    wrong = reference(ACCEPT, batch)
    wrong[0][:, 0] = (wrong[0][:, 0] + 1) % 300
    with pytest.raises(AssertionError):
        partings(batch, wrong)


def _in_pairs() -> Iterator[Any]:
    """Any two of cluster, dtype and ties by default, all three with the slow tests."""
    for place, (cluster, dtype) in enumerate(itertools.product((1, 2, 8), DTYPES)):
        for ties in (False, True):
            yield pytest.param(cluster, dtype, ties, marks=[] if ties == place % 2 else pytest.mark.slow)


@pytest.mark.parametrize(("cluster", "dtype", "ties"), _in_pairs())
def test_every_policy_over_a_vocabulary_of_odd_size(cluster: int, dtype: Any, ties: bool) -> None:
    """Columns start off the 16-byte grid, a thread reads several words, blocks share the column."""
    parted = 0
    for seed, vocab in enumerate((1003, 517)):
        batch = batch_of(seed, sorted(POLICIES), vocab=vocab, k=2, dtype=dtype, ties=ties)
        parted += partings(batch, kernel(batch, cluster))
    assert parted <= 1  # of 30 rows


@few
@given(windows(tolerances=LOSSY), st.sampled_from([1, 2, 8]), st.booleans())
def test_any_batch(batch: Arrays, cluster: int, bfloat: bool) -> None:
    if bfloat and batch["logits"].dtype == np.float16:
        batch["logits"] = batch["logits"].astype(ml_dtypes.bfloat16)
    partings(batch, kernel(batch, cluster))


@few
@given(trees(tolerances=LOSSY), st.sampled_from([1, 2, 8]), st.one_of(st.none(), st.integers(0, 99)))
def test_any_tree(batch: Arrays, cluster: int, seed: int | None) -> None:
    if seed is not None:
        batch = with_any_ancestors(with_wild_lengths(batch, seed), seed)
    tree_partings(batch, run("AcceptTree", inputs_of("AcceptTree", batch), threads=THREADS, cluster=cluster))


@few
@given(moves())
def test_close_up(batch: Arrays) -> None:
    same_numbers(run("CloseUp", inputs_of("CloseUp", batch), threads=THREADS), reference("CloseUp", batch))


@few
@given(growths())
def test_grow_tree(batch: Arrays) -> None:
    same_numbers(run("GrowTree", inputs_of("GrowTree", batch), threads=32), reference("GrowTree", batch))


@few
@given(windows(tolerances=LOSSY), st.integers(0, 2**32 - 1))
def test_wild_lengths_and_ids(batch: Arrays, seed: int) -> None:
    wild = with_wild_lengths(batch, seed)
    rng = np.random.default_rng(seed)
    extremes = [np.iinfo(np.int64).min, -1, 2**31, np.iinfo(np.int64).max]
    wild["input_ids"] = np.where(rng.random(wild["input_ids"].shape) < 0.3, rng.choice(extremes), wild["input_ids"])
    wild["top_k"] = rng.choice([-(2**31), 0, 1, 2**31 - 1], len(wild["top_k"])).astype(np.int32)
    tokens, num_tokens = kernel(wild)
    wanted = reference(ACCEPT, wild)
    for b in np.flatnonzero(wild["temperature"] == 0):
        np.testing.assert_array_equal(tokens[b], wanted[0][b])
        assert num_tokens[b] == wanted[1][b]
    assert ((num_tokens >= 0) & (num_tokens <= tokens.shape[1])).all()


@pytest.mark.parametrize("policy", ["plain", "all"])
def test_the_tokens_do_not_depend_on_the_geometry(policy: str) -> None:
    """Not even in the last bit: a row is the same on a GPU without clusters."""
    batch = batch_of(3, [policy], vocab=2049, k=3, dtype=np.float16)
    first = kernel(batch, 1)
    for cluster, threads in ((2, 64), (8, 64), (3, 64), (1, 512)):
        for ours, theirs in zip(first, kernel(batch, cluster, threads), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("policy", ["greedy", "all"])
def test_every_allowed_draft_is_looked_at(policy: str) -> None:
    batch = batch_of(8, [policy], vocab=40, k=MAX_DRAFTS, dtype=np.float32)
    batch["input_ids"][0, 2 : 2 + MAX_DRAFTS] = own_tokens(batch)[0, :-1]
    tokens, num_tokens = kernel(batch)
    assert num_tokens.tolist() == [MAX_DRAFTS + 1]
    np.testing.assert_array_equal(tokens, own_tokens(batch))


def test_rows_do_not_influence_each_other() -> None:
    batch = batch_of(4, ["all", "greedy", "top-p"], vocab=100, k=2, dtype=np.float32)
    together = kernel(batch)
    for b in range(3):
        for whole, part in zip(together, kernel(alone(batch, b)), strict=True):
            np.testing.assert_array_equal(whole[b : b + 1], part)


def test_the_real_geometry() -> None:
    """The block and cluster of the spec, a vocabulary as models have them, 32 drafts of which some are accepted."""
    spec = OPS[ACCEPT].kernel
    assert spec is not None
    greedy = batch_of(5, ["greedy"], vocab=4999, k=32, dtype=ml_dtypes.bfloat16)
    assert partings(greedy, kernel(greedy, spec.cluster, spec.threads)) == 0
    sampled = batch_of(6, ["all"], vocab=151_936, k=1, dtype=np.float16)
    assert partings(sampled, kernel(sampled, spec.cluster, spec.threads)) == 0


@pytest.mark.parametrize("op", [GATE_UP, DOWN])
@few
@given(data=st.data())
def test_routed_experts(op: str, data: st.DataObject) -> None:
    batch = data.draw(batches(op, DTYPES))
    same_numbers(run(op, inputs_of(op, batch), threads=THREADS), reference(op, batch))


@pytest.mark.slow
def test_the_largest_case() -> None:
    spec = OPS[ACCEPT].kernel
    assert spec is not None
    for dtype in DTYPES:
        batch = batch_of(7, ["greedy", "top-p", "top-k then top-p"], vocab=262_144, k=4, dtype=dtype)
        assert partings(batch, kernel(batch, spec.cluster, spec.threads)) == 0
    many = batch_of(8, ["greedy", "plain"] * 128, vocab=40, k=1, dtype=np.float16)
    assert partings(many, kernel(many)) == 0


def only_token(batch: Arrays) -> int:
    tokens, num_tokens = kernel(batch)
    assert num_tokens.tolist() == [1]
    wanted, _ = reference(ACCEPT, batch)
    np.testing.assert_array_equal(tokens, wanted)
    return int(tokens[0, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 2, 9, 700])
def test_lowest_id_wins_any_tie(dtype: Any, size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(8):
        logits = np.full(size, -1, dtype)
        ids = rng.choice(size, min(3, size), replace=False)
        logits[ids] = 2
        assert only_token(column(logits)) == ids.min()
    assert only_token(column(np.full(size, 0.5, dtype))) == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("policy", ["greedy", "plain", "all", "min-p of one", "top-p"])
def test_nan_logits(dtype: Any, policy: str) -> None:
    """As NumPy has it: the first NaN is the largest; without a largest finite logit, a draw is id 0."""
    rng = np.random.default_rng(1)
    plain = rng.normal(size=100).astype(dtype)
    for value in (np.nan, np.inf, -np.inf):
        logits = plain.copy()
        logits[[40, 70]] = value
        only_token(column(logits, policy))
        only_token(column(np.full(100, value, dtype), policy))
    logits = plain.copy()
    logits[3], logits[90] = np.inf, np.nan
    assert only_token(column(logits, policy)) == (90 if policy == "greedy" else 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_zeros_are_one_number(dtype: Any) -> None:
    """Also where a thread meets them one after the other."""
    logits = np.full(3000, -1.0, dtype)
    logits[:8] = -0.0
    logits[512:520] = logits[1024:1032] = 0.0
    assert only_token(column(logits)) == 0


def test_a_large_crowd_of_unlikely_tokens_has_its_chance() -> None:
    """150,000 tokens of e^-13 each together weigh a third of the best one; far noise must be looked at."""
    logits = np.full(150_000, -13.0, np.float16)
    logits[77] = 0
    drawn = {only_token(column(logits, "plain", uniform=number / 8)) for number in range(8)}
    assert 77 in drawn
    assert len(drawn) > 1


@pytest.mark.parametrize("policy", ["plain", "top-k", "top-p", "all"])
def test_all_logits_equal(policy: str) -> None:
    """Everything ties at every floor, so nothing is cut and the noise alone decides."""
    batch = column(np.full(333, 1.5, np.float16), policy)
    plain = column(np.full(333, 1.5, np.float16), "plain")
    plain["uniform"] = batch["uniform"]
    assert only_token(batch) == only_token(plain)


@pytest.mark.parametrize("temperature", [1e-3, 0.05, 1.0, 30.0, 1e4])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24])
def test_extreme_temperatures_and_numbers(temperature: float, uniform: float) -> None:
    rng = np.random.default_rng(2)
    for policy in ("plain", "top-k", "top-p", "all"):
        logits = (rng.normal(size=500) * 10).astype(np.float32)
        batch = column(logits, policy, temperature=temperature, uniform=uniform)
        assert partings(batch, kernel(batch)) == 0


@pytest.mark.parametrize("top_k", [1, 2, 17, 499, 500, 501])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.9999, 1.0])
@pytest.mark.parametrize("spread", [0.01, 100.0])
def test_floors_near_and_far(top_k: int, top_p: float, spread: float) -> None:
    """Values that crowd into one bin of the first histogram, of both signs, and values beyond the last bin."""
    batch = batch_of(top_k, ["plain"] * 3, vocab=500, k=1, dtype=np.float32, spread=spread)
    batch["top_k"][:], batch["top_p"][:] = top_k, top_p
    assert partings(batch, kernel(batch)) == 0


def test_k_of_32_and_all_drafts_accepted() -> None:
    batch = batch_of(11, ["greedy", "plain"], vocab=60, k=32, dtype=np.float16)
    batch["input_ids"][:, 2:34] = own_tokens(batch)[:, :32]
    tokens, num_tokens = kernel(batch, 8)
    assert num_tokens.tolist() == [33, 33]
    np.testing.assert_array_equal(tokens, own_tokens(batch))


@few
@given(windows(), st.one_of(st.none(), st.integers(0, 2**32 - 1)))
def test_placeholder_draft(batch: Arrays, wild_seed: int | None) -> None:
    batch = with_emitted(batch)
    if wild_seed is not None:
        batch = with_wild_lengths(batch, wild_seed)
    inputs = inputs_of("PlaceholderDraft", batch)
    wanted = reference("PlaceholderDraft", batch, mask_token_id=98)
    for ours, theirs in zip(run("PlaceholderDraft", inputs, threads=4, mask_token_id=98), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@few
@given(tables())
def test_numbers_at(case: tuple[Arrays, int]) -> None:
    batch, columns = case
    (ours,) = run("NumbersAt", inputs_of("NumbersAt", batch), threads=4, columns=columns)
    np.testing.assert_array_equal(ours, reference("NumbersAt", batch, columns=columns)[0])


@few
@given(writes(DTYPES), st.sampled_from([4, THREADS]))  # each number is a compilation
def test_cache_write_fp8(batch: Arrays, threads: int) -> None:
    inputs = inputs_of("CacheWriteFp8", batch)
    same_codes(run("CacheWriteFp8", inputs, threads=threads), reference("CacheWriteFp8", batch))


def test_cache_write_fp8_rounds_every_half_and_every_tie() -> None:
    """All float16 numbers, by scales that put the edges of E4M3 elsewhere; and all codes and all middles of two."""
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(1, 16, 1, -1)
    codes = np.sort(EVERY.astype(np.float32)[np.isfinite(EVERY.astype(np.float32))])
    ties = ((codes[1:] + codes[:-1]) / 2).reshape(1, 1, 1, -1)
    for new in (halves, codes.reshape(1, 1, 1, -1), ties):
        for scale in (1.0, 0.37, 2.0**-20):
            empty = np.zeros(new.shape, EVERY.dtype)
            batch = {"k_cache": empty, "v_cache": empty, "k": new, "v": new, "start": np.zeros(1, np.int64)}
            batch |= {"k_scale": np.array(scale, np.float32), "v_scale": np.array(1.0, np.float32)}
            same_codes(
                run("CacheWriteFp8", inputs_of("CacheWriteFp8", batch), threads=THREADS),
                reference("CacheWriteFp8", batch),
            )


def test_the_emulator_finds_a_barrier_that_some_threads_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the threads leave before a barrier: on a GPU, a hang."""
    text = source(OPS["NumbersAt"]).replace("if (row >= rows) return;", "if (thread_index() < 2) return; sync_block();")
    assert "sync_block();" in text.partition("void numbers_at")[2]
    monkeypatch.setattr(emulator, "source", lambda spec: text)
    monkeypatch.setattr(emulator, "library", emulator.library.__wrapped__)
    batch = table([(0, 1, 0)], 4)
    with pytest.raises(AssertionError, match="threads wait"):
        run("NumbersAt", inputs_of("NumbersAt", batch), threads=8, columns=2)


def test_spec_matches_the_kernels_launch_layout() -> None:
    spec = OPS[ACCEPT].kernel
    assert spec is not None
    text = source(OPS[ACCEPT])
    assert re.findall(r"#define PEAGLE_(THREADS|CLUSTER) (\d+)", text) == [
        ("THREADS", str(spec.threads)),
        ("CLUSTER", str(spec.cluster)),
    ]


@pytest.mark.slow
def test_no_access_out_of_bounds_and_no_undefined_arithmetic() -> None:
    """This file again, in a process that watches every access of the emulated kernels."""
    assert COMPILER is not None
    names = ("libasan.so", "libubsan.so")
    find = [[COMPILER, f"-print-file-name={name}"] for name in names]
    found = [subprocess.run(c, capture_output=True, text=True, check=True).stdout.strip() for c in find]
    if not all(Path(path).is_absolute() for path in found):
        pytest.skip("g++ has no sanitizer libraries here")
    environment = os.environ | {
        SANITIZE: "1",
        "LD_PRELOAD": " ".join(found),
        "ASAN_OPTIONS": "detect_leaks=0,detect_stack_use_after_return=0",
    }
    command = [sys.executable, "-m", "pytest", "-x", __file__, "-p", "no:cacheprovider", "-k", "not geometry"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
