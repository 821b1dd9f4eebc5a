"""The CUDA kernels against the NumPy references, on a GPU."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.plugins.errors import BuildError, EnvironmentProblem
from peagle.plugins.kernels.compile import compile_nvrtc
from peagle.plugins.kernels.launch import Geometry, Launcher
from peagle.plugins.kernels.pack import Pack, obtain
from peagle.plugins.ops import OPS
from tests.gpu.on_device import Call, launcher_of, own_sm, representable, run
from tests.plugins.ops.accept_tree.trees import partings, trees
from tests.plugins.ops.test_close_up import moves
from tests.plugins.ops.test_grow_tree import growths
from tests.plugins.plugin_cases import (
    EVERY,
    POLICIES,
    Arrays,
    assert_same_emission,
    inputs_of,
    quick,
    reference,
    same_codes,
    windows,
    with_emitted,
    with_wild_lengths,
    writes,
)
from tests.plugins.routed_experts import BATCHES, DOWN, GATE_UP, batches, window

pytestmark = pytest.mark.gpu

LOSSY = (0.0, 0.0, 0.3, 0.9, 1.0)
DTYPES = ["float32", "float16", "bfloat16"]
MASK = {"mask_token_id": 7}


def check_emission(batch: Arrays, dtype: str, shift: int = 0) -> None:
    """AcceptPrefix on the GPU emits what the reference does; rows may part at a token drawn in a tie."""
    batch = batch | {"logits": representable(batch["logits"], dtype)}
    wanted = reference("AcceptPrefix", batch)
    got = run("AcceptPrefix", inputs_of("AcceptPrefix", batch), wanted, dtype, shift)
    assert_same_emission(batch, got, wanted)


def check_exactly(name: str, batch: Arrays, **attributes: int) -> None:
    wanted = reference(name, batch, **attributes)
    for ours, theirs in zip(run(name, inputs_of(name, batch), wanted, attributes=attributes), wanted, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def large(vocab: int, rows: int, k: int, seed: int, *, agreeing: bool = True) -> Arrays:
    """A decode batch of real size: every policy in turn, drafts that agree for a while, an idle row."""
    rng = np.random.default_rng(seed)
    policies = np.array([list(POLICIES.values())[b % len(POLICIES)] for b in range(rows)])
    ids = rng.integers(0, vocab, (rows, k + 1))
    batch: Arrays = {
        "logits": (rng.normal(size=(rows, k + 1, vocab)) * 3).astype(np.float32),
        "input_ids": ids,
        "start": rng.integers(0, 1000, rows),
        "window_len": np.full(rows, k + 1, np.int32),
        "draft_len": rng.integers(0, k + 1, rows).astype(np.int32),
        "forced_next": np.full(rows, -1),
        "uniform": rng.random((rows, k + 1), np.float32),
        "temperature": policies[:, 0].astype(np.float32),
        "top_k": policies[:, 1].astype(np.int32),
        "top_p": policies[:, 2].astype(np.float32),
        "min_p": policies[:, 3].astype(np.float32),
        "tolerance": np.zeros(rows, np.float32),
    }
    if rows > 2:
        batch["window_len"][rows // 2] = 0
    if agreeing:
        # Make each draft the clear favourite of its column, but for a column per row.
        for b in range(rows):
            drafts = batch["draft_len"][b]
            for j in range(min(drafts, int(rng.integers(0, k + 1)))):
                batch["logits"][b, j, ids[b, k + 1 - drafts + j]] = 60
    return batch


@quick
@given(windows(tolerances=LOSSY), st.sampled_from(DTYPES), st.sampled_from([0, 1, 3]))
def test_accept_prefix_matches_the_reference(batch: Arrays, dtype: str, shift: int) -> None:
    check_emission(batch, dtype, shift)


@quick
@given(windows(max_k=32, tolerances=LOSSY), st.sampled_from(DTYPES), st.integers(0, 2**32 - 1))
def test_out_of_range_lengths_stay_in_bounds(batch: Arrays, dtype: str, seed: int) -> None:
    wild = with_wild_lengths(batch, seed)
    check_emission(wild, dtype)
    emitted = with_wild_lengths(with_emitted(wild), seed + 1)
    check_exactly("PlaceholderDraft", emitted, **MASK)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vocab", [1, 2, 7, 255, 1001, 32_000, 151_936, 201_088, 262_144])
def test_vocabularies_from_one_to_the_largest(vocab: int, dtype: str) -> None:
    check_emission(large(vocab, rows=15, k=3, seed=vocab), dtype, shift=vocab % 3)


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (1, 32), (64, 7), (256, 2)])
def test_batches_and_draft_counts_up_to_the_largest(rows: int, k: int) -> None:
    check_emission(large(5003, rows, k, seed=rows), "float16")


@pytest.mark.parametrize("value", [0.0, -0.0, np.inf, -np.inf, np.nan, 65504.0, -65504.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_equal_logits(value: float, dtype: str) -> None:
    batch = large(3001, len(POLICIES), 3, seed=1, agreeing=False)
    batch["logits"][:] = value
    check_ids_in_range(batch, dtype, exact=np.isfinite(value))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("share", [0.001, 0.5, 0.999])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_scattered_nan_logits(value: float, share: float) -> None:
    batch = large(3001, len(POLICIES), 3, seed=2, agreeing=False)
    batch["logits"][np.random.default_rng(3).random(batch["logits"].shape) < share] = value
    check_ids_in_range(batch, "float16", exact=value == -np.inf)


def check_ids_in_range(batch: Arrays, dtype: str, *, exact: bool) -> None:
    """Emitted tokens are valid ids for any logits; greedy rows always equal the reference's, others if exact."""
    batch = batch | {"logits": representable(batch["logits"], dtype)}
    wanted = reference("AcceptPrefix", batch)
    tokens, counts = run("AcceptPrefix", inputs_of("AcceptPrefix", batch), wanted, dtype)
    valid = np.arange(tokens.shape[1]) < counts[:, None]
    assert ((tokens >= 0) & (tokens < batch["logits"].shape[2]))[valid].all()
    assert (tokens[~valid] == -1).all()
    greedy = batch["temperature"] <= 0
    np.testing.assert_array_equal(tokens[greedy], wanted[0][greedy])
    if exact:
        assert_same_emission(batch, [tokens, counts], wanted)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lowest_id_wins_a_tie_anywhere(dtype: str) -> None:
    rng = np.random.default_rng(5)
    batch = large(151_936, 32, 1, seed=6, agreeing=False)
    batch["temperature"][:] = 0
    batch["logits"] = np.minimum(batch["logits"], 8)
    for b in range(32):
        batch["logits"][b, :, rng.integers(0, 151_936, 5)] = 9
    check_emission(batch, dtype)


@quick
@given(windows(max_k=32))
def test_placeholder_draft_matches_the_reference(batch: Arrays) -> None:
    check_exactly("PlaceholderDraft", with_emitted(batch), **MASK)


@quick
@given(trees(tolerances=LOSSY), st.sampled_from(DTYPES))
def test_any_tree_emits_the_reference_tokens(batch: Arrays, dtype: str) -> None:
    batch = batch | {"logits": representable(batch["logits"], dtype)}
    wanted = reference("AcceptTree", batch)
    partings(batch, run("AcceptTree", inputs_of("AcceptTree", batch), wanted, dtype))


@quick
@given(growths())
def test_grow_tree_matches_the_reference(batch: Arrays) -> None:
    check_exactly("GrowTree", batch)


@quick
@given(moves())
def test_close_up_matches_the_reference(batch: Arrays) -> None:
    check_exactly("CloseUp", batch)


@quick
@given(windows(max_k=32), st.integers(1, 1100), st.booleans(), st.integers(0, 2**32 - 1))
def test_numbers_at_matches_the_reference(batch: Arrays, length: int, wild: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = batch | {"numbers": rng.random((len(batch["start"]), length), np.float32)}
    if wild:
        batch = with_wild_lengths(batch, seed)
        batch["start"] = rng.choice([-(2**62), -1, 0, length - 1, length, 2**62], len(batch["start"]))
    check_exactly("NumbersAt", batch, columns=batch["logits"].shape[1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_twenty_launches_are_bit_identical(dtype: str) -> None:
    batch = large(151_936, 15, 7, seed=8)
    batch["logits"] = representable(batch["logits"], dtype)
    call = Call("AcceptPrefix", inputs_of("AcceptPrefix", batch), reference("AcceptPrefix", batch), dtype, 0, {})
    seen = set()
    for _ in range(20):
        call.launch()
        seen.add(b"".join(x.tobytes() for x in call.read()))
    assert len(seen) == 1


def test_empty_batch_launches_nothing() -> None:
    nothing = [np.zeros((0, 4), np.float32), np.zeros(0, np.int64), *[np.zeros(0, np.int32)] * 2]
    call = Call("NumbersAt", nothing, [np.zeros((0, 3), np.float32)], "float32", 0, {"columns": 3})
    call.launch()
    assert call.read()[0].shape == (0, 3)


def test_nvrtc_code_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.plugins.kernels.pack.shipped", lambda: Pack(()))
    op, sm = OPS["NumbersAt"], own_sm()
    assert obtain(op, sm).compiler.startswith("NVRTC")
    monkeypatch.setattr("tests.gpu.on_device.launcher_of", lambda name: Launcher(op, sm, obtain(op, sm).code))
    batch = large(64, 4, 3, seed=9) | {"numbers": np.random.default_rng(9).random((4, 900), np.float32)}
    check_exactly("NumbersAt", batch, columns=4)


def test_nvrtc_gives_the_same_code_and_statistics_again() -> None:
    """Beside a driver, NVRTC has a cache, and compiling anew must not depend on it."""
    op, sm = OPS["PlaceholderDraft"], own_sm()
    assert compile_nvrtc(op, sm) == compile_nvrtc(op, sm)


def test_invalid_machine_code_is_rejected() -> None:
    with pytest.raises(EnvironmentProblem, match="cannot load the kernel of NumbersAt"):
        Launcher(OPS["NumbersAt"], own_sm(), b"not machine code" * 16)
    with pytest.raises((EnvironmentProblem, BuildError), match="cannot load the kernel of PlaceholderDraft"):
        Launcher(OPS["PlaceholderDraft"], own_sm(), obtain(OPS["NumbersAt"], own_sm()).code)


def test_arguments_that_do_not_fit_the_spec_are_refused() -> None:
    launcher = launcher_of("AcceptPrefix")
    dims = {"B": 1, "E": 2, "S": 2, "V": 8}
    for pointers, dtype, words in [([0] * 13, "float64", "no kernel for float64"), ([0], "float32", "13 pointers")]:
        with pytest.raises(BuildError, match=words):
            launcher.launch(0, pointers, dims, {}, dtype)


def test_driver_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    launcher = launcher_of("NumbersAt")
    monkeypatch.setattr("peagle.plugins.kernels.launch.geometry", lambda *_: Geometry(grid=1, block=5000, cluster=1))
    with pytest.raises(EnvironmentProblem, match="NumbersAt was not launched"):
        launcher.launch(0, [0] * 5, {"B": 1, "N": 1}, {"columns": 1})


def check_cache_write(batch: Arrays, dtype: str, shift: int = 0) -> None:
    """Code by code, in the caches' own memory; codes go to the device as bytes."""
    batch = batch | {name: representable(batch[name], dtype) for name in ("k", "v")}
    wanted = reference("CacheWriteFp8", batch)
    raw = batch | {name: batch[name].view(np.uint8) for name in ("k_cache", "v_cache")}
    got = run("CacheWriteFp8", inputs_of("CacheWriteFp8", raw), [x.view(np.uint8) for x in wanted], dtype, shift)
    same_codes([x.view(EVERY.dtype) for x in got], wanted)


@quick
@given(writes((np.float32,)), st.sampled_from(DTYPES), st.sampled_from([0, 1, 3]))
def test_cache_write_matches_the_reference(batch: Arrays, dtype: str, shift: int) -> None:
    check_cache_write(batch, dtype, shift)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width"), [(1, 512), (64, 6)])
def test_cache_writes_of_real_size(rows: int, width: int, dtype: str) -> None:
    rng = np.random.default_rng(4)
    cache, new = (rows, 4, 1024, 128), (rows, 4, width, 128)
    batch: Arrays = {name: rng.choice(EVERY, cache) for name in ("k_cache", "v_cache")}
    batch |= {name: rng.normal(size=new).astype(np.float32) for name in ("k", "v")}
    batch["start"] = rng.integers(-3, 1024, rows)
    batch |= {name: np.array(0.01, np.float32) for name in ("k_scale", "v_scale")}
    check_cache_write(batch, dtype)


def check_routed(op: str, batch: Arrays, dtype: str) -> Any:
    """The reference's bits, in any order of the blocks."""
    typed = {"x", "scores", "bias"}
    batch = {name: representable(array, dtype) if name in typed else array for name, array in batch.items()}
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in batch.items() if name in typed}
    (wanted,) = reference(op, batch | rounded if dtype == "bfloat16" else batch)
    is_bfloat = wanted.dtype == ml_dtypes.bfloat16
    shown = wanted.astype(np.float32) if is_bfloat else wanted
    call = Call(op, inputs_of(op, batch), [shown], dtype, 0, {}, {0: "bfloat16"} if is_bfloat else {})
    call.launch()
    (ours,) = call.read()
    np.testing.assert_array_equal(ours, shown)
    return ours


@pytest.mark.parametrize("op", [GATE_UP, DOWN])
@quick
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_routed_experts_match_the_reference_bit_for_bit(op: str, data: st.DataObject, dtype: str) -> None:
    check_routed(op, data.draw(batches(op, (np.float32,))), dtype)


@pytest.mark.parametrize("op", [GATE_UP, DOWN])
@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_of_gpt_oss_width_and_a_window_of_any_size(op: str, dtype: str) -> None:
    batch = BATCHES[op](np.random.default_rng(4), np.float32, tokens=70, chosen=4, count=32, columns=2880, width=16)
    whole = check_routed(op, batch, dtype)
    np.testing.assert_array_equal(check_routed(op, window(batch, [69]), dtype), whole[[69]])
