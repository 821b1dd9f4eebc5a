"""Peers: other servers take turns with the engines, and a failing peer loses only its own figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from peagle.compiler.bench.options import BenchOptions
from peagle.compiler.bench.page import page
from peagle.compiler.bench.printing import report
from peagle.compiler.bench.run import BenchRun
from peagle.compiler.bench.server import BenchServer
from peagle.engines.serving.server import Server
from peagle.plugins.errors import EnvironmentProblem, PeagleError, UsageError

Chunks = list[Any]
USAGE = {"usage": {"completion_tokens": 3}, "choices": []}
ANSWER: Chunks = [{"choices": [{"text": each}]} for each in ("a", "b", "c")] + [USAGE]


class OtherServer:
    """A server of another program, which streams the chunks that ``answer`` returns for a number of a request."""

    def __init__(self, answer: Callable[[int], Chunks]) -> None:
        bodies: list[dict[str, Any]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(json.dumps({"data": [{"id": "other"}]}))

            def do_POST(self) -> None:
                bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                chunks = answer(len(bodies))
                self._send("".join(f"data: {json.dumps(each)}\n\n" for each in chunks))

            def _send(self, text: str) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: object) -> None: ...

        self.bodies = bodies
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        Thread(target=self._http.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@pytest.fixture
def other() -> Iterator[Callable[[Callable[[int], Chunks]], OtherServer]]:
    """Return a function that starts a server."""
    started: list[OtherServer] = []

    def start(answer: Callable[[int], Chunks]) -> OtherServer:
        started.append(OtherServer(answer))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def options(folder: Path, *peers: str, **more: Any) -> BenchOptions:
    given: dict[str, Any] = {"num_prompts": 4, "max_tokens": 6, "draft": ("ngram",), "threads": 1} | more
    return BenchOptions(engines=(folder,), peer=peers, **given)


def test_peer_takes_turns_and_its_texts_are_counted(demo_engine: Path, server: Server) -> None:
    result = BenchRun(options(demo_engine, f"same={server.url}", num_speculative_tokens=(2,))).start()
    plain, _, peer = result.figures
    assert (peer.mode, peer.turns, peer.answers) == ("same", plain.turns, plain.answers)
    assert peer.over_plain is not None
    assert (peer.identical, peer.equal_texts) == (None, 4)  # serves the same engine
    assert result.identical is True
    assert dict(result.origin)["peer same"] == f"{server.url}, model demo, token ids to completions"
    assert "same" in page(result)
    assert report(result).count("4/4") == 1


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_peer_gets_token_ids_or_texts_with_the_options(tiny_folder: Path, other: Any, endpoint: str) -> None:
    found = other(lambda _: ANSWER)
    BenchRun(options(tiny_folder, f"x={found.url}", num_prompts=1, endpoint=endpoint, seed=7)).start()
    for body in found.bodies:
        assert (body["max_tokens"], body["temperature"], body["seed"], body["model"]) == (6, 0.0, 7, "other")
        if endpoint == "chat":
            assert body["messages"][0]["content"]
        else:
            assert {type(each) for each in body["prompt"]} == {int}


def test_peer_answers_at_every_temperature_and_a_failure_ends_all_of_them(tiny_folder: Path, other: Any) -> None:
    found = other(lambda number: ANSWER if number <= 4 else [])  # the first two are warm-ups
    result = BenchRun(options(tiny_folder, f"x={found.url}", temperature=(0.0, 0.8), num_prompts=2)).start()
    assert (
        {body["temperature"] for body in found.bodies[:2]}
        == {0.0, 0.8}
        == {body["temperature"] for body in found.bodies[2:4]}
    )
    assert len(found.bodies) == 5
    turns = {(each.mode, each.temperature): each.turns for each in result.figures}
    assert turns["plain", 0.0] == turns["plain", 0.8] == 2
    assert turns["x", 0.0] == turns["x", 0.8] == 1
    assert "x was dropped" in result.notes[-1]


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ([], "did not report the number of tokens"),
        ([{"choices": 5}], "does not stream in OpenAI's format"),
        ([{"error": "out of memory"}], "out of memory"),
    ],
)
def test_peer_that_fails_leaves_with_a_note(tiny_folder: Path, other: Any, last: Chunks, why: str) -> None:
    found = other(lambda number: ANSWER if number <= 3 else last)  # the first is the warm-up
    result = BenchRun(options(tiny_folder, f"x={found.url}", concurrency=(1, 2))).start()
    first, second = ({each.mode: each.turns for each in figures} for figures in result.levels)
    assert (first["plain"], first["x"], second["plain"]) == (4, 2, 2)
    assert "x" not in second
    assert result.notes[-1].startswith("x was dropped after 2 turns: ")
    assert why in result.notes[-1]
    assert len(found.bodies) == 4
    assert all(text in report(result) for text in ("x was dropped after 2 turns", "0/2"))
    assert "x was dropped after 2 turns" in page(result)


def test_peer_that_stops_answering_leaves_with_a_note(tiny_folder: Path, other: Any) -> None:
    def answer(number: int) -> Chunks:
        if number == 2:
            Thread(target=found.stop).start()
        return ANSWER

    found = other(answer)
    result = BenchRun(options(tiny_folder, f"x={found.url}")).start()
    assert result.figures[0].turns == 4
    assert "cannot reach" in result.notes[-1]


def test_empty_answers_and_answers_in_one_piece_have_no_speed(tiny_folder: Path, other: Any) -> None:
    answers = (ANSWER, [USAGE], [{"choices": [{"text": "abc"}]}, USAGE])
    found = other(lambda number: answers[(number - 1) % 3])
    result = BenchRun(options(tiny_folder, f"x={found.url}", num_prompts=3)).start()
    plain, *_, peer = result.figures
    assert (plain.turns, peer.turns) == (3, 3)
    assert plain.user_speed.median > 0
    assert peer.over_plain is not None
    assert peer.over_plain.wins + peer.over_plain.losses == 1
    assert result.notes[-1].startswith("2 of 3 answers of x arrived in one piece, so their speed is unknown")


@pytest.mark.parametrize(
    ("peers", "more", "error", "said"),
    [
        (("x=http://127.0.0.1:9",), {}, EnvironmentProblem, "cannot reach http://127.0.0.1:9"),
        (("plain=http://127.0.0.1:9",), {}, UsageError, "--peer plain has the same name as a mode"),
    ],
)
def test_peer_that_cannot_take_part_is_named_before_engines_are_loaded(
    tiny_folder: Path, peers: tuple[str, ...], more: dict[str, Any], error: type[PeagleError], said: str
) -> None:
    run = BenchRun(options(tiny_folder, *peers, **more))
    with pytest.raises(error) as found:
        run.start()
    assert said in str(found.value)
    assert not run.prompts


def test_prompts_of_token_ids_need_the_endpoint_that_takes_them(tiny_folder: Path, other: Any) -> None:
    found = other(lambda _: ANSWER)
    with pytest.raises(UsageError, match="--endpoint chat takes text"):
        BenchRun(options(tiny_folder, f"x={found.url}", workload="random", endpoint="chat")).start()


def test_server_that_is_silent_at_first_is_refused(other: Any) -> None:
    found = BenchServer(other(lambda _: [USAGE]).url, "chat", {})
    with pytest.raises(EnvironmentProblem, match="returned no text for the first prompt"):
        found.warm_up(["Hello"], 0, 0.0)
