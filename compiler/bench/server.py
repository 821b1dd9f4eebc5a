"""Requests to an OpenAI-compatible server: streamed answers, with their times as a client sees them."""

from __future__ import annotations

import http.client
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from ...engines.requests.results import Acceptance
from ...plugins.errors import EnvironmentProblem, UsageError
from .measure import ModeTurn, TimedAnswer

Content = str | Sequence[int]  # of a prompt: text or, at an endpoint that takes them, token ids
_FIX = "check the URL, and make sure that the server is running"
_AT_ONCE, _MAX_AT_ONCE = 0.2e-3, 32  # seconds between pieces of a burst, and the most pieces of one: more than drafts
_TEXTS = ("content", "reasoning_content", "reasoning")  # of a delta; vLLM renamed its field for reasoning to the last
_SECONDS = 600  # without a byte from the server


@dataclass(frozen=True)
class Endpoint:
    """A value of ``--endpoint``: its path below ``/v1``, and the fields of its body that hold a prompt."""

    path: str
    fields: Callable[[Content], Mapping[str, Any]]
    takes_ids: bool = False


ENDPOINTS = {
    "chat": Endpoint("chat/completions", lambda text: {"messages": [{"role": "user", "content": text}]}),
    "completions": Endpoint("completions", lambda prompt: {"prompt": prompt}, takes_ids=True),
}


@dataclass(frozen=True)
class BenchServer:
    """A server at ``url``, with or without ``/v1``; ``fields`` are added to every request, such as ``max_tokens``."""

    url: str
    endpoint: str
    fields: Mapping[str, Any]
    api_key: str | None = None

    def __post_init__(self) -> None:
        fix = "use a URL such as http://127.0.0.1:8000"
        try:
            parts = urlsplit(self.url)
            _ = parts.port  # raises for one that is no number or too large
        except ValueError as error:
            raise UsageError(f"{self.url} is not the URL of a server", why=str(error), fix=fix) from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{self.url} is not the URL of a server", fix=fix)

    @cached_property
    def model(self) -> str:
        """The id of the first model that the server lists. Raises ``EnvironmentProblem`` if it lists none."""
        connection, response = self._send("GET", "models")
        try:
            listed = json.loads(response.read())["data"]
            return str(listed[0]["id"])
        except (ValueError, LookupError, TypeError):
            raise EnvironmentProblem(f"{self.url} lists no models", fix=_FIX) from None
        finally:
            connection.close()

    def warm_up(self, prompts: Sequence[Content], seed: int, temperature: float) -> None:
        """Send the first prompt. Raises ``EnvironmentProblem`` as ``answer`` does, and if the answer is empty."""
        (answer,) = self.answer((0,), prompts, seed, temperature).answers
        if not answer.text:
            raise EnvironmentProblem(
                f"{self.url} returned no text for the first prompt",
                why=f"the stream of /v1/{ENDPOINTS[self.endpoint].path} contains no text",
                fix="check --endpoint and the model that the server has loaded",
            )

    def answer(self, group: Sequence[int], prompts: Sequence[Content], seed: int, temperature: float) -> ModeTurn:
        """Send a group of prompts at once, by index, and read their streams.

        Raises ``EnvironmentProblem`` if the server cannot be reached, refuses a request or does not answer as expected.
        """
        done: SimpleQueue[tuple[int, TimedAnswer | Exception]] = SimpleQueue()

        def user(position: int, at: int) -> None:
            try:
                done.put((position, self._answer(at, prompts[at], seed + at, temperature)))
            except Exception as error:  # raised by the thread that waits for it
                done.put((position, error))

        started = time.perf_counter()
        for position, at in enumerate(group):
            threading.Thread(target=user, args=(position, at), daemon=True).start()  # daemon: Ctrl-C does not wait
        found = dict(done.get() for _ in group)
        seconds = time.perf_counter() - started
        answers = [_result_or_raise(found[position]) for position in range(len(group))]
        return ModeTurn(tuple(answers), seconds)

    def _answer(self, at: int, prompt: Content, seed: int, temperature: float) -> TimedAnswer:
        endpoint = ENDPOINTS[self.endpoint]
        body = {
            "model": self.model,
            "stream": True,
            "stream_options": {"include_usage": True},
            "seed": seed,
            "temperature": temperature,
            **self.fields,
            **endpoint.fields(prompt),
        }
        started = time.perf_counter()
        connection, response = self._send("POST", endpoint.path, body)
        arrived: list[float] = []
        texts: list[str] = []
        usage: Mapping[str, Any] = {}
        try:
            for chunk in _events(response):
                usage = chunk.get("usage") or usage
                pieces = [_piece(choice) for choice in chunk.get("choices") or ()]
                if any(has_tokens for _, has_tokens in pieces):
                    arrived.append(time.perf_counter())
                    texts += [text for text, _ in pieces]
            arrived = arrived or [time.perf_counter()]
            tokens, text = int(usage["completion_tokens"]), "".join(texts)
        except (OSError, http.client.HTTPException) as error:
            raise _unreachable(self.url, error) from None
        except KeyError:
            raise EnvironmentProblem(
                f"{self.url} did not report the number of tokens in a stream",
                why="the stream ended early, or contained no `usage` object although stream_options requested one",
                fix="use a server that supports stream_options.include_usage",
            ) from None
        except (AttributeError, TypeError, ValueError) as error:
            raise EnvironmentProblem(
                f"{self.url} does not stream in OpenAI's format", why=str(error), fix=_FIX
            ) from None
        finally:
            connection.close()
        gaps = [after - before for before, after in itertools.pairwise(arrived)]
        gaps = [] if _is_buffered(gaps) else gaps
        return TimedAnswer(
            prompt=at,
            text=text,
            token_ids=(),
            tokens=tokens,
            first_seconds=arrived[0] - started,
            decode_seconds=sum(gaps),
            pieces=tuple((gap, 0) for gap in gaps),  # a chunk does not tell how many tokens it has
            acceptance=acceptance_of(usage.get("speculation")),
        )

    def _send(
        self, method: str, path: str, body: object = None
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=_SECONDS)
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        )
        base = parts.path.rstrip("/").removesuffix("/v1")
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, f"{base}/v1/{path}", content, headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise _unreachable(self.url, error) from None
        if response.status != http.client.OK:
            answer_text = response.read(500).decode(errors="replace")
            connection.close()
            raise EnvironmentProblem(
                f"{self.url} answered {response.status} to /v1/{path}",
                why=" ".join(answer_text.split()),
                fix="check the URL, --endpoint and the server's options",
            )
        return connection, response


def acceptance_of(reported: Any) -> Acceptance | None:
    """Return the acceptance in the ``usage`` of this project's server; None from servers that do not report it."""
    try:
        counts = [reported["rounds"], *reported["accepted_per_position"], 0]
        rounds = reported["rounds"] + reported["rounds_without_drafts"]
        return Acceptance(
            rounds=reported["rounds"],
            drafted=reported["drafted_tokens"],
            accepted=reported["accepted_tokens"],
            histogram={at: count - after for at, (count, after) in enumerate(itertools.pairwise(counts))},
            undrafted=reported["rounds_without_drafts"],
            verify_seconds=reported["verify_milliseconds_per_round"] * rounds / 1000,
            draft_seconds=reported["draft_milliseconds_per_round"] * rounds / 1000,
        )
    except (KeyError, TypeError):
        return None


def _events(response: http.client.HTTPResponse) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a stream of server-sent events. Raises ``EnvironmentProblem`` for an error event."""
    while line := response.readline():
        name, _, data = line.decode(errors="replace").partition(":")
        if name != "data" or data.strip() == "[DONE]":
            continue
        try:
            chunk = json.loads(data)
        except ValueError:
            continue  # a comment of a proxy
        if not isinstance(chunk, Mapping):
            continue
        if "error" in chunk:
            raise EnvironmentProblem(
                "the server ended a stream with an error",
                why=str(chunk["error"]),
                fix="look for the cause in the log of the server",
            )
        yield chunk


def _piece(choice: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the text of a chunk's choice, and whether it has tokens: of an answer, of reasoning, or of a tool call."""
    delta = choice.get("delta") or {}
    texts = (choice.get("text"), *(delta.get(name) for name in _TEXTS))
    text = next(filter(None, texts), "")
    return text, bool(text or delta.get("tool_calls"))


def _is_buffered(gaps: Sequence[float]) -> bool:
    """Return True if much of an answer came in one burst: it was buffered somewhere, so its times are meaningless."""
    return any(is_short and len([*run]) >= _MAX_AT_ONCE for is_short, run in itertools.groupby(gaps, _is_short))


def _is_short(gap: float) -> bool:
    return gap < _AT_ONCE


def _result_or_raise(found: TimedAnswer | Exception) -> TimedAnswer:
    if isinstance(found, Exception):
        raise found
    return found


def _unreachable(url: str, error: Exception) -> EnvironmentProblem:
    return EnvironmentProblem(f"cannot reach {url}", why=str(error) or type(error).__name__, fix=_FIX)
