"""A server from a client's view: streams, tokens, and acceptance if it is reported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.bench.options import BenchOptions
from peagle.compiler.bench.page import page
from peagle.compiler.bench.run import BenchRun
from peagle.compiler.bench.server import BenchServer, _is_buffered, _piece, acceptance_of
from peagle.engines.requests.results import Acceptance
from peagle.engines.serving.server import Server
from peagle.engines.serving.usage import speculation
from peagle.plugins.errors import EnvironmentProblem, UsageError

FIELDS = {"max_tokens": 12}
PROMPTS = ["def gcd(a, b):", "import os\n"]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_streams_of_both_endpoints_are_timed_and_counted(server: Server, endpoint: str) -> None:
    turn = BenchServer(f"{server.url}/v1", endpoint, FIELDS).answer((0, 1), PROMPTS, 0, 0.0)
    for answer in turn.answers:
        assert 1 <= answer.tokens <= 12
        assert 0 < answer.first_seconds < turn.seconds
        assert sum(gap for gap, _ in answer.pieces) == pytest.approx(answer.decode_seconds)
        assert answer.acceptance is not None
        assert answer.acceptance.rounds + answer.acceptance.undrafted < answer.tokens
    assert [answer.prompt for answer in turn.answers] == [0, 1]


def test_texts_of_the_prompts_have_a_digest(server: Server) -> None:
    def workload(**options: Any) -> str:
        return dict(BenchRun(BenchOptions(url=server.url, max_tokens=4, **options)).start().origin)["workload"]

    one, same, other = (workload(num_prompts=count) for count in (1, 1, 2))
    assert one == same
    assert re.fullmatch(r"chat: 1 prompts, digest [0-9a-f]{16} of their texts", one)
    assert one.split()[4] != other.split()[4]


def test_whole_benchmark_of_a_server_has_no_modes_to_compare(server: Server) -> None:
    run = BenchRun(BenchOptions(url=server.url, num_prompts=4, max_tokens=8, concurrency=(1, 2), price_per_hour=1.0))
    result = run.start()
    assert [(each.mode, each.concurrency, each.turns) for each in result.figures] == [("demo", 1, 4), ("demo", 2, 2)]
    assert all(each.over_plain is None and each.cost_per_million for each in result.figures)
    assert result.identical is None
    assert server.url in result.command
    assert f"<h1>Benchmark of {server.url}, model demo, chat</h1>" in page(result)


def test_server_is_measured_at_every_temperature(server: Server) -> None:
    result = BenchRun(BenchOptions(url=server.url, num_prompts=2, max_tokens=8, temperature=(0.0, 1.5))).start()
    assert [(each.mode, each.temperature, each.turns) for each in result.figures] == [
        ("demo", 0.0, 2),
        ("demo", 1.5, 2),
    ]
    assert dict(result.origin)["decoding"] == "greedy, temperature 1.5, seed 0, up to 8 tokens"


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), max_size=30), st.integers(0, 5))
def test_reported_acceptance_is_read_back(rounds: list[tuple[int, int]], undrafted: int) -> None:
    acceptance = Acceptance()
    for drafted, accepted in rounds:
        acceptance.add_round(drafted, min(drafted, accepted))
    acceptance.undrafted += undrafted
    found = acceptance_of(speculation(acceptance))
    assert found is not None
    assert found.accepted_per_position == acceptance.accepted_per_position
    assert (found.rounds, found.drafted, found.accepted, found.undrafted) == (
        acceptance.rounds, acceptance.drafted, acceptance.accepted, acceptance.undrafted,
    )  # fmt: skip


@pytest.mark.parametrize("told", [None, {}, {"rounds": 3}, [1]])
def test_servers_that_do_not_report_acceptance_have_none(told: Any) -> None:
    assert acceptance_of(told) is None


@pytest.mark.parametrize("url", ["http://[x", "http://x:port", "http://x:99999", "http://", "x:1"])
def test_text_that_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not the URL of a server"):
        BenchServer(url, "chat", FIELDS)


def test_refusals_and_missing_servers_are_named(server: Server, tmp_path: Path) -> None:
    found = BenchServer(server.url, "chat", FIELDS)
    with pytest.raises(EnvironmentProblem, match="answered 400") as error:
        found.answer((0,), PROMPTS, 0, -1)
    assert "temperature" in error.value.why
    with pytest.raises(EnvironmentProblem, match="cannot reach"):
        _ = BenchServer("http://127.0.0.1:9", "chat", FIELDS).model
    with pytest.raises(UsageError, match="is not the URL of a server"):
        BenchServer("localhost:8000", "chat", FIELDS)


def test_key_is_sent(locked_server: Server) -> None:
    with pytest.raises(EnvironmentProblem, match="answered 401"):
        _ = BenchServer(locked_server.url, "chat", FIELDS).model
    assert BenchServer(locked_server.url, "chat", FIELDS, "second").model == "demo"


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ({"text": "a"}, ("a", True)),
        ({"delta": {"content": "a"}}, ("a", True)),
        ({"delta": {"reasoning_content": "a"}}, ("a", True)),
        ({"delta": {"reasoning": "a"}}, ("a", True)),
        ({"delta": {"content": None, "reasoning": "a", "reasoning_content": "a"}}, ("a", True)),
        ({"delta": {"tool_calls": [{}]}}, ("", True)),
        ({"delta": {"role": "assistant", "content": ""}}, ("", False)),
    ],
)
def test_answers_reasoning_and_tool_calls_count_as_pieces(choice: dict[str, Any], found: tuple[str, bool]) -> None:
    assert _piece(choice) == found


@pytest.mark.parametrize(
    ("gaps", "is_timed"),
    [([5e-6] * 40, False), ([0.01] * 9 + [5e-6] * 40, False), ([0.01, *[5e-6] * 8] * 9, True), ([0.01] * 40, True)],
)
def test_answer_that_came_in_one_burst_has_no_speed(gaps: list[float], is_timed: bool) -> None:
    """Drafts come in bursts too, but in short ones."""
    assert _is_buffered(gaps) is not is_timed
