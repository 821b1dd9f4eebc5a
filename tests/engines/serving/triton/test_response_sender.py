"""The thread that sends responses, with a real engine: every request ends once, with its whole text or an error."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.triton.counters import TritonCounters
from peagle.engines.serving.triton.fields import InputTensors, parse_tensors
from peagle.engines.serving.triton.response_sender import PendingRequest, ResponseSender
from peagle.plugins.errors import UsageError
from tests.engines.serving.triton.stand_in import SenderOf, Utilities

SECONDS = 30
PROMPT = [5, 9, 30, 7]


@pytest.fixture
def utilities() -> Utilities:
    """Triton's module."""
    return Utilities()


@pytest.fixture
def courier(tiny_engine: Engine, utilities: Utilities) -> Iterator[ResponseSender]:
    """It ends with the test."""
    counters = TritonCounters(utilities, {"model_name": "m"}, lambda: tiny_engine.load_now)
    courier = ResponseSender(utilities, counters, 600.0)
    yield courier
    courier.close()


def letter(engine: Engine, sender: SenderOf, name: str = "", **fields: Any) -> PendingRequest:
    """A request that was submitted."""
    tensors = {name: np.array([[value]]) for name, value in {"max_tokens": 8, "ignore_eos": True, **fields}.items()}
    asked = parse_tensors(InputTensors({"input_ids": np.array([PROMPT], np.int32), **tensors}))
    assert asked.prompt is not None
    return PendingRequest(sender, engine.submit(asked.prompt, asked.params), asked, name)


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait for an asynchronous result."""
    end = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.mark.parametrize("streams", [False, True])
def test_a_request_is_answered_to_its_end(
    courier: ResponseSender, utilities: Utilities, tiny_engine: Engine, streams: bool
) -> None:
    (wanted,) = tiny_engine.generate([PROMPT], SamplingParams(max_tokens=40, ignore_eos=True))
    sender = SenderOf()
    courier.take(letter(tiny_engine, sender, max_tokens=40, stream=streams, return_token_ids=True))
    assert sender.ended.wait(SECONDS)
    assert (sender.text, tuple(sender.value("output_ids"))) == (wanted.text, wanted.token_ids)
    assert sender.value("finish_reason") == [b"length"]
    assert [flags for _, flags in sender.sent] == [0] * (len(sender.sent) - 1) + [1]
    assert streams or len(sender.sent) == 1
    wait_for(lambda: utilities.value("generation_tokens_total") == 40)
    assert utilities.value("request_success_total", "length") == 1
    assert len(utilities.counted["vllm:e2e_request_latency_seconds", ""].seen) == 1


def test_concurrent_requests_get_their_own_texts(courier: ResponseSender, tiny_engine: Engine) -> None:
    senders = [SenderOf() for _ in range(12)]
    for seed, sender in enumerate(senders):
        courier.take(letter(tiny_engine, sender, temperature=0.9, random_seed=seed, stream=bool(seed % 2)))
    for seed, sender in enumerate(senders):
        assert sender.ended.wait(SECONDS)
        params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.9, seed=seed)
        assert sender.text == tiny_engine.generate([PROMPT], params)[0].text


def test_a_disconnected_client_frees_its_slot(
    courier: ResponseSender, utilities: Utilities, tiny_engine: Engine
) -> None:
    sender = SenderOf()
    courier.take(letter(tiny_engine, sender, max_tokens=80, stream=True))
    wait_for(lambda: bool(sender.sent))
    sender.is_gone = True
    assert sender.ended.wait(SECONDS)
    assert sender.failure == utilities.TritonError("the request was canceled", utilities.TritonError.CANCELLED) or (
        sender.value("finish_reason") == [b"length"]
    ), "it was cancelled, unless it was through before"
    wait_for(lambda: tiny_engine.load_now.running == 0)


def test_unsendable_response_ends_only_its_request(
    courier: ResponseSender, utilities: Utilities, tiny_engine: Engine
) -> None:
    broken, whole = SenderOf(fails_at=0), SenderOf()
    courier.take(letter(tiny_engine, broken, stream=True))
    courier.take(letter(tiny_engine, whole))
    assert broken.ended.wait(SECONDS)
    assert whole.ended.wait(SECONDS)
    assert broken.failure is not None
    assert broken.failure.message() == "internal error; see the server log"
    assert whole.value("finish_reason") == [b"length"]
    wait_for(lambda: utilities.value("request_refused_total") == 1)


def test_rejection_is_an_error_with_a_reason(courier: ResponseSender, utilities: Utilities) -> None:
    sender = SenderOf()
    courier.refuse(sender, UsageError("that is wrong", fix="change it"))
    assert sender.ended.wait(SECONDS)
    assert sender.failure == utilities.TritonError("that is wrong; fix: change it", utilities.TritonError.INVALID_ARG)


def test_a_request_is_stopped_by_its_id_and_others_are_not(courier: ResponseSender, tiny_engine: Engine) -> None:
    told, stopped, other = SenderOf(), SenderOf(), SenderOf()
    for name, sender in (("a", other), ("b", stopped)):
        courier.take(letter(tiny_engine, sender, name, max_tokens=80))
    courier.stop(told, "b")
    for sender in (told, stopped, other):
        assert sender.ended.wait(SECONDS)
    assert told.failure is None
    assert stopped.failure is not None
    assert stopped.failure.message() == "the request was canceled"
    assert other.value("num_output_tokens") == [80]


@pytest.mark.parametrize("name", ["", "nobody"])
def test_empty_stop_is_rejected(courier: ResponseSender, name: str) -> None:
    sender = SenderOf()
    courier.stop(sender, name)
    assert sender.ended.wait(SECONDS)
    assert sender.failure is not None
    assert f"no running request has the id {name!r}" in sender.failure.message()


def test_accepted_requests_finish_on_shutdown(tiny_engine: Engine, utilities: Utilities) -> None:
    counters = TritonCounters(utilities, {"model_name": "m"}, lambda: tiny_engine.load_now)
    courier, senders = ResponseSender(utilities, counters, 600.0), [SenderOf() for _ in range(5)]
    for sender in senders:
        courier.take(letter(tiny_engine, sender))
    courier.close()
    assert all(sender.ended.is_set() for sender in senders)
    assert utilities.value("request_success_total", "length") == 5
    assert utilities.value("num_requests_running") == utilities.value("num_requests_waiting") == 0
