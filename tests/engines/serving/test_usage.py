"""Draft statistics per request, under vLLM's names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engines import Acceptance, Engine
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings, SpecDecodeMetrics
from peagle.engines.serving.usage import spec_decode_metrics
from tests.engines.serving.calls import call, events
from tests.fixtures.servers import MODEL

BODY: dict[str, Any] = {"max_tokens": 24, "temperature": 0, "num_speculative_tokens": 3, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "def f(x):\n"}]}


def require_consistent(told: dict[str, Any]) -> None:
    """Fail unless the figures agree, as clients require that read them."""
    histogram, steps = told["acceptance_histogram"], told["num_spec_steps"]
    assert len(histogram) == told["num_spec_tokens"] + 1
    assert sum(histogram) == steps
    assert sum(count * rounds for count, rounds in enumerate(histogram)) == told["num_accepted_draft_tokens"]
    assert told["mean_acceptance_length"] == pytest.approx(1 + told["num_accepted_draft_tokens"] / max(steps, 1))
    assert told["draft_acceptance_rate"] * told["num_draft_tokens"] == pytest.approx(told["num_accepted_draft_tokens"])
    by_length = told["acceptance_histogram_by_draft_length"]
    assert all(len(counts) == int(length) + 1 for length, counts in by_length.items())
    assert sum(map(sum, by_length.values())) == steps
    assert sum(int(length) * sum(counts) for length, counts in by_length.items()) == told["num_draft_tokens"]


@given(st.lists(st.integers(0, 9).flatmap(lambda drafted: st.tuples(st.just(drafted), st.integers(0, drafted)))))
def test_any_rounds_give_consistent_figures(rounds: list[tuple[int, int]]) -> None:
    acceptance = Acceptance()
    for drafted, accepted in rounds:
        acceptance.add_round(drafted, accepted)
    told = spec_decode_metrics(acceptance, 4, is_detailed=True)
    require_consistent(told)
    assert told["num_spec_tokens"] == max([4, *(drafted for drafted, _ in rounds)])
    with_drafts = [each for each in rounds if each[0]]
    assert list(zip(told["per_step_drafted"], told["per_step_accepted"], strict=True)) == with_drafts


@pytest.fixture(scope="module", params=["none", "summary", "detailed"])
def measuring(request: pytest.FixtureRequest, served_engine: Engine) -> Iterator[tuple[SpecDecodeMetrics, Server]]:
    """A server that reports drafts at one of the levels."""
    settings = ServerSettings(MODEL, per_request_spec_decode_metrics=request.param)
    server = Server(served_engine, settings, port=0)
    server.start()
    yield request.param, server
    server.stop(immediately=True)
    assert server.wait(10)


def test_a_response_reports_its_drafts(measuring: tuple[SpecDecodeMetrics, Server], served_engine: Engine) -> None:
    level, server = measuring
    completion = {"prompt": "def f(x):\n"}
    for path, fields in (("/v1/completions", completion), ("/v1/chat/completions", CHAT)):
        body = {**BODY, **fields}
        whole = json.loads(call(server, "POST", path, body)[2])
        stream = {"stream": True, "stream_options": {"include_usage": True}}
        *pieces, last, _, _ = call(server, "POST", path, {**body, **stream})[2].decode().split("\n\n")
        final = json.loads(last.removeprefix("data: "))
        assert not any("metrics" in piece for piece in pieces)
        assert final.get("metrics") == whole.get("metrics")
        if level == "none":
            assert "metrics" not in whole
            continue
        told = whole["metrics"]["speculative_decoding"]
        require_consistent(told)
        speculation = whole["usage"]["speculation"]
        assert (told["num_spec_steps"], told["num_draft_tokens"], told["num_accepted_draft_tokens"]) == (
            speculation["rounds"], speculation["drafted_tokens"], speculation["accepted_tokens"],
        )  # fmt: skip
        assert told["num_draft_tokens"] > 0
        assert told["num_spec_tokens"] == served_engine.num_speculative_tokens
        assert ("per_step_drafted" in told) == (level == "detailed")


def test_only_one_text_has_such_figures(measuring: tuple[SpecDecodeMetrics, Server]) -> None:
    level, server = measuring
    if level == "none":
        return
    for fields in ({"prompt": "a", "n": 2}, {"prompt": ["a", "b"]}):
        assert json.loads(call(server, "POST", "/v1/completions", {**BODY, **fields})[2])["metrics"] is None
    plain = json.loads(call(server, "POST", "/v1/completions", {**BODY, "prompt": "a", "num_speculative_tokens": 0})[2])
    told = plain["metrics"]["speculative_decoding"]
    assert (told["num_spec_steps"], sum(told["acceptance_histogram"]), told["mean_acceptance_length"]) == (0, 0, 1.0)


def test_the_last_event_of_a_response_has_its_drafts(measuring: tuple[SpecDecodeMetrics, Server]) -> None:
    level, server = measuring
    body = {"input": "def f(x):\n", "max_output_tokens": 24, "num_speculative_tokens": 3, "stream": True}
    *before, last = events(call(server, "POST", "/v1/responses", body)[2])
    assert not any("metrics" in each.get("response", {}) for each in before)
    assert ("metrics" in last["response"]) == (level != "none")
