"""Conversion of tensors to requests: exact values, and errors that name the tensor."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from peagle.engines import SamplingParams
from peagle.engines.serving.triton.fields import InputTensors, TensorOptions, parse_tensors, require_known
from peagle.plugins.errors import UsageError


def asked(**tensors: Any) -> TensorOptions:
    """Return the request of these tensors; each is one row."""
    return parse_tensors(InputTensors({name: np.asarray(value)[None] for name, value in tensors.items()}))


def text(*values: str) -> np.ndarray:
    """A tensor of texts, as Triton has it."""
    return np.array([value.encode() for value in values], np.object_)


def test_empty_request_gets_defaults() -> None:
    found = asked(text_input=text("a"))
    assert (found.prompt, found.params, found.streams, found.draft) == ("a", SamplingParams(), False, None)


@example(1e15)
@given(st.floats(min_value=0, max_value=2**90, width=32))
def test_a_number_of_32_bits_is_that_decimal_which_was_written(value: float) -> None:
    found = asked(text_input=text("a"), temperature=np.array([value], np.float32)).params.temperature
    assert np.float32(found) == np.float32(value)
    assert _digits(found) <= _digits(float(np.float32(value)))


def _digits(value: float) -> int:
    return len(Decimal(repr(value)).normalize().as_tuple().digits)


def test_a_tenth_is_a_tenth() -> None:
    assert asked(text_input=text("a"), top_p=np.array([0.1], np.float32)).params.top_p == 0.1


@given(st.dictionaries(st.sampled_from(["temperature", "seed", "stop", "logit_bias", "draft", "x"]), st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "none", "ngram", "7"]),
    st.lists(st.integers(), max_size=2), st.dictionaries(st.sampled_from(["", "7", "-1"]), st.integers(), max_size=2),
)))  # fmt: skip
def test_any_json_is_accepted_or_rejected(fields: dict[str, Any]) -> None:
    with contextlib.suppress(UsageError):
        asked(text_input=text("a"), sampling_parameters=text(json.dumps(fields)))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"text_input": np.array([b"\xff"], np.object_)}, "text_input is not valid UTF-8"),
        ({"text_input": text("a", "b")}, "text_input has 2 values"),
        ({"text_input": text("a"), "max_tokens": np.zeros(0, np.int32)}, "max_tokens has 0 values"),
        ({"text_input": text("a"), "temperature": np.array([np.nan], np.float32)}, "temperature must be"),
        ({"text_input": text("a"), "sampling_parameters": text("[1]")}, "not a JSON object"),
        ({"text_input": text("a"), "sampling_parameters": text('{"top_p": NaN}')}, "not valid JSON"),
        ({"text_input": text("a"), "sampling_parameters": text("[" * 99999)}, "not valid JSON"),
        ({"text_input": text("a"), "sampling_parameters": text('{"logit_bias": {"x": 1}}')}, "not a token id"),
        ({"text_input": text("a"), "sampling_parameters": text("null")}, "not a JSON object"),
        ({"text_input": text("a"), "sampling_parameters": text('{"logprobs": 1}')}, "unknown parameter 'logprobs'"),
        ({"text_input": text("a"), "chat_template_kwargs": text("{}")}, "requires messages"),
    ],
)
def test_unreadable_field_is_rejected_by_name(tensors: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        asked(**tensors)


def test_adaptive_drafts_can_be_requested_by_number_or_word() -> None:
    def drafts(**tensors: Any) -> object:
        return asked(text_input=text("a"), **tensors).num_speculative_tokens

    assert drafts(num_speculative_tokens=np.array([-1], np.int32)) == "auto"
    assert drafts(num_speculative_tokens=np.array([3], np.int32)) == 3
    assert drafts(sampling_parameters=text('{"num_speculative_tokens": "auto"}')) == "auto"
    assert drafts(sampling_parameters=text('{"num_speculative_tokens": -1}')) == -1, "which the engine refuses"
    assert drafts() is None


def test_fields_that_no_model_has_are_refused() -> None:
    require_known("", [])
    require_known('{"id": "7", "triton_enable_empty_final_response": true}', ["temperature"])
    with pytest.raises(UsageError, match="temprature is not an input") as caught:
        require_known('{"temprature": 1}', ["temperature", "top_p"])
    assert caught.value.fix == "did you mean temperature?"
