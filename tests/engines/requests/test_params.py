"""Sampling parameters are validated when they are created."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peagle.engines import SamplingParams
from peagle.engines.requests.params import policy_of
from peagle.plugins.errors import UsageError


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"acceptance_tolerance": -1.0}, "acceptance_tolerance"),
        ({"stop": ("",)}, "stop"),
        ({"stop": "a\udcff"}, "U\\+DCFF"),
        *[({"stop": stop}, "stop") for stop in ("", (1,), {"a"}, b"a", {"a": 1}, 5, [""], ["a", None])],
        *[
            ({name: value}, name)
            for name in ("max_tokens", "top_k", "seed")
            for value in (1.0, 1.5, float("nan"), float("inf"), "3", True, [1], np.float32(1), np.True_)
        ],
        *[
            ({name: value}, name)
            for name in ("temperature", "top_p", "min_p", "acceptance_tolerance")
            for value in ("1", None, True, 10**400, 1j, [0.5], np.array([0.5]), float("nan"), float("-inf"))
        ],
        *[({"ignore_eos": value}, "ignore_eos") for value in (1, 0, None, "yes")],
        *[({"cache_salt": value}, "cache_salt") for value in ("", 1, b"a", ["a"], "a\udcff")],
        ({"max_tokens": None}, "max_tokens must be an integer of 1 or more, not None"),
        ({"max_tokens": 2.0}, r"max_tokens must be an integer of 1 or more, not 2\.0 \(float\)"),
        ({"top_p": -(10**5000)}, "top_p must be a finite number above 0 and at most 1, not a value"),
    ],
)
def test_an_illegal_parameter_is_named(bad: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SamplingParams(**bad)  # type: ignore[arg-type]


def test_numpy_numbers_become_python_numbers() -> None:
    params = SamplingParams(
        max_tokens=np.int64(5), top_k=np.int32(3), seed=np.uint64(2**63), temperature=np.float32(0.5), top_p=1,
        ignore_eos=np.True_,
    )  # fmt: skip
    assert params == SamplingParams(max_tokens=5, top_k=3, seed=2**63, temperature=0.5, ignore_eos=True)
    assert [type(getattr(params, name)) for name in ("max_tokens", "seed", "top_p", "ignore_eos")] == [
        int, int, float, bool,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("given", "kept"), [("ab", ("ab",)), (["a", "b"], ("a", "b")), (("a",), ("a",)), ([], ()), (None, ())]
)
def test_stop_strings_accept_vllm_forms(given: Any, kept: tuple[str, ...]) -> None:
    params = SamplingParams(stop=given)
    assert params.stop == kept
    assert hash(params) == hash(SamplingParams(stop=kept))


def test_every_illegal_parameter_is_named_at_once() -> None:
    with pytest.raises(UsageError, match=r"max_tokens.*temperature.*top_p"):
        SamplingParams(max_tokens=-1, temperature=-1, top_p=2)


@pytest.mark.parametrize(
    ("given", "name", "in_graph"),
    [
        *[({"temperature": t}, "temperature", 0.0) for t in (0, 1e-320, 1e-46, 1e-45, 1e-38, 1e-37, 9.9e-6)],
        ({"temperature": 1e-5}, "temperature", np.float32(1e-5)),
        ({"temperature": 1e300}, "temperature", np.finfo(np.float32).max),
        ({"top_k": 2**31}, "top_k", 2**31 - 1),
        ({"top_k": 10**5000}, "top_k", 2**31 - 1),
        ({"top_k": -(10**30)}, "top_k", 0),
        ({"top_p": 1e-46}, "top_p", np.finfo(np.float32).tiny),
    ],
    ids=lambda value: str(value)[:40] if not isinstance(value, dict) else next(iter(value)),
)
def test_out_of_type_values_are_clamped_equivalently(given: dict[str, Any], name: str, in_graph: float) -> None:
    with np.errstate(all="raise"):
        (value,) = policy_of(SamplingParams(**given))[name]
    assert value == in_graph


def test_a_policy_has_the_dtypes_of_the_graph() -> None:
    policy = policy_of(SamplingParams(temperature=0.5, top_k=3))
    assert list(policy) == ["temperature", "top_k", "top_p", "min_p", "tolerance"]
    assert [value.dtype.name for value in policy.values()] == ["float32", "int32", "float32", "float32", "float32"]
    assert [value.tolist() for value in policy.values()] == [[0.5], [3], [1.0], [0.0], [0.0]]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("stop", ["a"] * 257, "stop has 257 texts, but at most 256 are allowed"),
        ("stop", "a" * 65_537, "stop has 65537 characters, but at most 65536 are allowed"),
        ("bad_words", ["a"] * 50_000, "bad_words has 50000 texts, but at most 1024 are allowed"),
        ("bad_words", ["a" * 1000] * 66, "bad_words has 66000 characters, but at most 65536 are allowed"),
        ("logit_bias", dict.fromkeys(range(65537), 1.0), "logit_bias has 65537 token ids, but at most 65536"),
        *[
            (name, [7] * 524_289, f"{name} has 524289 token ids, but at most 524288 are allowed")
            for name in ("bad_token_ids", "allowed_token_ids", "stop_token_ids")
        ],
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_more_than_the_limit_is_refused_by_the_limit(name: str, value: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        SamplingParams(**{name: value})


def test_limit_values_are_accepted() -> None:
    params = SamplingParams(stop=["a"] * 256, bad_words=["a" * 64] * 1024, logit_bias=dict.fromkeys(range(65536), 1))
    assert params.logit_bias[-1] == (65_535, 1.0)
    assert len(SamplingParams(allowed_token_ids=[7] * 524_288).allowed_token_ids or ()) == 524_288
