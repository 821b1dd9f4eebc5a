"""Every argument is converted to plain values or refused by name; no other error is raised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines import SamplingParams
from peagle.engines.requests import arguments
from peagle.engines.requests.params import params_of, policy_of
from peagle.plugins.errors import UsageError

ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**31, 2**63, 2**64, -(2**63), 10**400])
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(exclude_categories=()), max_size=4)  # including surrogates
    | st.binary(max_size=3)
    | st.sampled_from([np.int64(5), np.uint64(2**64 - 1), np.float32(0.5), np.float64("nan"), np.True_, np.str_("a")])
    | st.sampled_from([np.array(1), np.array([1, 2]), np.array([[1, 2]]), np.array([0.5]), np.array([None])])
    | st.sampled_from([object(), int, SamplingParams(), range(3), iter([1]), memoryview(b"ab"), bytearray(b"ab")]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
FIELDS = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_eos", "acceptance_tolerance")


def outcome(check: Callable[[], Any]) -> tuple[Any, str]:
    """Return the result of a check or its refusal; other errors are raised."""
    try:
        return check(), ""
    except UsageError as error:
        return None, error.what


@given(fields=st.dictionaries(st.sampled_from(FIELDS), ANYTHING, min_size=1))
def test_any_sampling_parameters_are_refused_by_name_or_fit_the_graph(fields: dict[str, Any]) -> None:
    params, refusal = outcome(lambda: SamplingParams(**fields))
    if refusal:
        assert any(f"{name} " in refusal for name in fields)
        assert len(refusal) < 200 * len(fields)
        return
    with np.errstate(over="raise", invalid="raise"):
        assert all(np.isfinite(value).all() for value in policy_of(params).values())
    assert type(params.max_tokens) is type(params.top_k) is int
    assert type(params.stop) is tuple
    hash(params)


@given(value=ANYTHING)
def test_any_prompt_is_refused_by_name_or_text_or_a_tuple_of_ids(value: object) -> None:
    ids, refusal = outcome(lambda: arguments.token_ids_of("prompt", value, 100, 50))
    assert refusal.startswith("prompt") if refusal else {type(i) for i in ids} == {int}
    text, refusal = outcome(lambda: arguments.text_of("prompt", value))
    assert refusal.startswith("prompt") if refusal else type(text) is str


@given(value=ANYTHING)
def test_any_list_of_prompts_or_params_is_refused_by_name_or_a_list(value: object) -> None:
    for name, check in (("prompts", arguments.prompts_of), ("params", lambda value: params_of(value, 1))):
        checked, refusal = outcome(lambda check=check: check(value))
        assert name in refusal if refusal else len(checked) >= 0


@pytest.mark.parametrize(
    "ids", [[5, 6], (5, 6), range(5, 7), np.array([5, 6]), np.array([5, 6], np.uint8), [np.int32(5), 6]]
)
def test_ids_are_a_sequence_of_integers_or_an_array_of_them(ids: Any) -> None:
    checked = arguments.token_ids_of("prompt", ids, 10, 10)
    assert checked == (5, 6)
    assert {type(i) for i in checked} == {int}


@pytest.mark.parametrize(
    ("ids", "says"),
    [
        ([5.7, 6.2], r"prompt\[0\] must be an integer, not 5\.7 \(float\)"),
        ([5, "6"], r"prompt\[1\] must be an integer, not '6' \(str\)"),
        ([True], r"prompt\[0\] must be an integer, not True \(bool\)"),
        ([5, None], r"prompt\[1\] must be an integer, not None"),
        ([5, 2**40], "token id 1099511627776 is out of range"),
        (b"abc", "one-dimensional array of them, not b'abc'"),
        ({5: 6}, "must be a str, or token ids"),
        ({5, 6}, "must be a str, or token ids"),
        ((i for i in [5]), "must be a str, or token ids"),
        (None, "must be a str, or token ids"),
        (5, "must be a str, or token ids"),
        (np.array([5.0]), "must be a str, or token ids"),
        (np.array([[5]]), "must be a str, or token ids"),
        (np.array([True]), "must be a str, or token ids"),
    ],
)
def test_invalid_id_list_is_rejected_with_an_example(ids: Any, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        arguments.token_ids_of("prompt", ids, 10, 10)


def test_lone_surrogate_is_rejected_with_its_position() -> None:
    with pytest.raises(UsageError, match=r"prompt is not valid text: character 1 is the lone surrogate U\+DCFF"):
        arguments.text_of("prompt", "a\udcff")


def test_range_error_names_the_range() -> None:
    with pytest.raises(UsageError, match=r"threads must be an integer from 1 to 8, not 9 \(int\)"):
        arguments.integer("threads", 9, 1, 8)
    with pytest.raises(UsageError, match=r"max_batch_size must be an integer of 1 or more, not 0"):
        arguments.integer("max_batch_size", 0, 1)
