"""Ragged batches for the ops, and an independent implementation of sampling."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from peagle.plugins.ops import OPS

Arrays = dict[str, Any]

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
few = settings(quick, max_examples=30)

POLICIES = {  # temperature, top_k, top_p, min_p
    "greedy": (0.0, 0, 1.0, 0.0),
    "greedy with idle filters": (0.0, 3, 0.5, 0.1),
    "plain": (1.0, 0, 1.0, 0.0),
    "cold": (0.4, 0, 1.0, 0.0),
    "hot": (1.7, 0, 1.0, 0.0),
    "top-k": (1.0, 3, 1.0, 0.0),
    "top-1": (1.0, 1, 1.0, 0.0),
    "top-k beyond the vocabulary": (1.0, 1000, 1.0, 0.0),
    "top-p": (1.0, 0, 0.7, 0.0),
    "top-p of nothing": (1.0, -1, 0.0, 0.0),
    "min-p": (1.0, 0, 1.0, 0.15),
    "min-p of one": (1.0, 0, 1.0, 1.0),
    "top-k then top-p": (0.8, 5, 0.6, 0.0),
    "min-p then top-p": (1.2, 0, 0.8, 0.1),
    "all": (0.9, 6, 0.85, 0.05),
}


def inputs_of(name: str, batch: Arrays) -> list[Any]:
    """The op's inputs, in order, out of a batch."""
    return [batch[operand.name] for operand in OPS[name].inputs]


def reference(name: str, batch: Arrays, **attributes: Any) -> list[Any]:
    return list(OPS[name].reference(*inputs_of(name, batch), **attributes))


def alone(batch: Arrays, b: int) -> Arrays:
    """Row b as a batch of its own: every array has the row first."""
    return {name: array[b : b + 1] for name, array in batch.items()}


def own_tokens(batch: Arrays) -> Any:
    """y [B, E]: what every emission column would emit if there were no drafts, by asking for one column at a time."""
    rows, columns, vocab = batch["logits"].shape
    flat = {name: np.repeat(array, columns, axis=0) for name, array in batch.items() if array.ndim == 1}
    flat |= {
        "logits": batch["logits"].reshape(rows * columns, 1, vocab),
        "uniform": batch["uniform"].reshape(rows * columns, 1),
        "input_ids": np.zeros((rows * columns, 1), np.int64),
        "window_len": np.ones(rows * columns, np.int32),
        "draft_len": np.zeros(rows * columns, np.int32),
        "forced_next": np.full(rows * columns, -1),
    }
    return reference("AcceptPrefix", flat)[0].reshape(rows, columns)


@st.composite
def windows(draw: Any, max_k: int = 8, tolerances: tuple[float, ...] = (0.0,)) -> Arrays:
    """A batch as the runtime feeds it: idle, prefill, last prefill chunk, and decode rows with 0..K drafts."""
    k = draw(st.integers(1, max_k))
    batch = draw(st.integers(1, 4))
    width = k + 1 + draw(st.integers(0, 4))
    vocab = draw(st.sampled_from([2, 5, 12]))
    dtype = draw(st.sampled_from([np.float32, np.float16]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    logits = rng.normal(size=(batch, k + 1, vocab)) * draw(st.sampled_from([0.5, 3.0]))
    if draw(st.booleans()):
        logits = np.round(logits * 2) / 2  # ties
    names = [draw(st.sampled_from(sorted(POLICIES))) for _ in range(batch)]
    policies = np.array([POLICIES[name] for name in names])
    arrays: Arrays = {
        "logits": logits.astype(dtype),
        "input_ids": rng.integers(0, vocab, (batch, width)),
        "start": rng.integers(0, 1000, batch),
        "window_len": np.zeros(batch, np.int32),
        "draft_len": np.zeros(batch, np.int32),
        "forced_next": np.full(batch, -1),
        "uniform": rng.random((batch, k + 1), np.float32),
        "temperature": policies[:, 0].astype(np.float32),
        "top_k": policies[:, 1].astype(np.int32),
        "top_p": policies[:, 2].astype(np.float32),
        "min_p": policies[:, 3].astype(np.float32),
        "tolerance": np.array([draw(st.sampled_from(tolerances)) for _ in range(batch)], np.float32),
    }
    y = own_tokens(arrays)
    for b in range(batch):
        kind = draw(st.sampled_from(["idle", "prefill", "last chunk", "decode", "decode", "decode"]))
        if kind == "idle":
            continue
        arrays["window_len"][b] = window = draw(st.integers(1, width))
        if kind == "prefill":
            arrays["forced_next"][b] = draw(st.integers(0, vocab - 1))
        elif kind == "decode":
            arrays["draft_len"][b] = drafts = draw(st.integers(0, min(k, window - 1)))
            agreeing = draw(st.integers(0, drafts))
            arrays["input_ids"][b, window - drafts : window - drafts + agreeing] = y[b, :agreeing]
            if agreeing < drafts:
                arrays["input_ids"][b, window - drafts + agreeing] = (y[b, agreeing] + 1) % vocab
    return arrays


WILD = [-(2**31), -1, 0, 1, 2, 5, 1000, 2**31 - 1]


def with_wild_lengths(batch: Arrays, seed: int) -> Arrays:
    """The batch with lengths that no caller should give: they must be clamped, never index out of a tensor."""
    rng = np.random.default_rng(seed)
    names = {"window_len", "draft_len", "num_tokens"} & batch.keys()
    return batch | {name: rng.choice(WILD, len(batch["window_len"])).astype(np.int32) for name in sorted(names)}


def with_emitted(batch: Arrays) -> Arrays:
    """The batch with what AcceptPrefix emits for it, ready for PlaceholderDraft."""
    tokens, num_tokens = reference("AcceptPrefix", batch)
    return batch | {"tokens": tokens, "num_tokens": num_tokens}


def processed(logits: Any, temperature: float, top_k: int, top_p: float, min_p: float) -> Any:
    """p float64 [V] as textbooks have it: temperature, min-p, top-k, top-p, each on the renormalized softmax."""
    z = logits.astype(np.float64) / temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    p[p < min_p * p.max() * (1 - 1e-9)] = 0
    if 0 < top_k < len(p):
        p[p < np.sort(p)[-top_k]] = 0
    p /= p.sum()
    mass = 0.0
    for value in np.sort(p)[::-1]:
        mass += value
        if mass >= top_p:
            p[p < value] = 0
            break
    return p / p.sum()


def _hash(x: int) -> int:
    for _ in range(2):
        x = (((x >> 16) ^ x) * 0x45D9F3B) % 2**32
    return (x >> 16) ^ x


def race(uniform: float, vocab: int) -> Any:
    """Gumbel noise float64 [V], computed with Python integers: what AcceptPrefix adds to the scaled logits."""
    key = _hash(int(min(max(float(np.float32(uniform)), 0.0), 1 - 2**-24) * 2**24))
    t = np.array([_hash(_hash(i + 1) ^ key) for i in range(vocab)]) / 2**32
    return -np.log(-np.log(np.clip(t, 2**-33, 1 - 2**-24)))


def could_draw(batch: Arrays, b: int, j: int, token: int) -> bool:
    """Whether the token wins the race for column j, give or take 1e-4.

    Two correct programs may differ in the last bits of a quotient or a logarithm, so a race between two tokens that end
    as close as that may go either way. Anything farther apart has one answer only.
    """
    temperature, top_k = float(batch["temperature"][b]), int(batch["top_k"][b])
    if temperature == 0:
        return False
    logits = batch["logits"][b, j].astype(np.float64)
    p = processed(logits, temperature, top_k, float(batch["top_p"][b]), float(batch["min_p"][b]))
    score = np.where(p > 0, logits / temperature + race(batch["uniform"][b, j], len(p)), -np.inf)
    return bool(p[token] > 0 and score[token] >= score.max() - 1e-4)


def assert_same_emission(batch: Arrays, got: list[Any], expected: list[Any]) -> None:
    """tokens and num_tokens agree, except that a row may part at a token drawn in a tie (see could_draw)."""
    for b, (tokens, others) in enumerate(zip(got[0], expected[0], strict=True)):
        differing = np.flatnonzero(tokens != others)
        if len(differing) == 0:
            assert got[1][b] == expected[1][b]
            continue
        j = int(differing[0])
        assert could_draw(batch, b, j, tokens[j]), (b, j, tokens, others)
        assert could_draw(batch, b, j, others[j]), (b, j, tokens, others)


def same_numbers(ours: list[Any], theirs: list[Any]) -> None:
    """Bit for bit, but for NaN, of which there are many. NumPy knows none of bfloat16."""
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        wide = [x.astype(np.float32) if x.dtype == ml_dtypes.bfloat16 else x for x in (mine, other)]
        np.testing.assert_array_equal(*wide)


E4M3 = ml_dtypes.float8_e4m3fn
EVERY = np.arange(256, dtype=np.uint8).view(E4M3)
ODD = [np.nan, np.inf, -np.inf, 448.0, 448.1, -464.0, 1e30, 0.0, -0.0, 2.0**-9, 2.0**-10, 1.5 * 2.0**-10, 0.0166]


@st.composite
def writes(draw: Any, floats: tuple[Any, ...] = (np.float32, np.float16)) -> Arrays:
    """1..5 columns into caches of any codes, at any positions."""
    batch, heads, width = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(1, 5))
    length, size = width + draw(st.integers(0, 7)), draw(st.sampled_from([1, 4, 6, 8, 16]))
    dtype = draw(st.sampled_from(floats))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def new() -> Any:
        x = rng.normal(size=(batch, heads, width, size)) * draw(st.sampled_from([0.02, 1.0, 300.0]))
        wild = rng.random(x.shape) < 0.1
        x[wild] = rng.choice(ODD, int(wild.sum()))
        with np.errstate(over="ignore"):
            return x.astype(dtype)

    near = st.integers(-6, length + 2)
    far = st.sampled_from([-(2**62), 2**62, -(2**31) - 1, 2**31])
    return {
        "k_cache": rng.choice(EVERY, (batch, heads, length, size)),
        "v_cache": rng.choice(EVERY, (batch, heads, length, size)),
        "k": new(),
        "v": new(),
        "start": np.array([draw(st.one_of(near, near, far)) for _ in range(batch)], np.int64),
        "k_scale": np.array(draw(st.sampled_from([1.0, 0.013, 7.5])), np.float32),
        "v_scale": np.array(draw(st.sampled_from([1.0, 2.0**-6, 0.3])), np.float32),
    }


def same_codes(ours: list[Any], theirs: list[Any], *, signed_zero: bool = True) -> None:
    """Compare code by code; NaN has two codes, and so has zero if its sign is ignored."""
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype == E4M3
        wide = other.astype(np.float32)
        np.testing.assert_array_equal(mine.astype(np.float32), wide)
        numbers = ~np.isnan(wide) & (signed_zero | (wide != 0))
        np.testing.assert_array_equal(mine.view(np.uint8)[numbers], other.view(np.uint8)[numbers])
