"""The response thread: it sends the engine loop's output, polls for cancellation and flushes the counters.

New requests and notices of new pieces arrive through a queue. Only the flush runs on a timer.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

from ....plugins.errors import EnvironmentProblem, UsageError
from ...requests.results import Delta
from ...running.submission import Submission
from .answers import tensors_of
from .backend_utilities import error_of
from .counters import TritonCounters
from .fields import TensorOptions

POLL_SECONDS = 0.05  # between two polls for cancellation, and between two flushes


@dataclass(eq=False)
class PendingRequest:
    """A request that is being answered: its sender, its engine request, and the pieces that have not been sent."""

    sender: Any
    submission: Submission
    options: TensorOptions
    name: str = ""  # the client's request id
    came: float = field(default_factory=time.perf_counter)
    first: float | None = None  # seconds until the first token
    held: list[Delta] = field(default_factory=list)
    is_cancelled: bool = False


@dataclass(frozen=True)
class _Ready:
    request: PendingRequest  # it has new pieces, or has failed


@dataclass(frozen=True)
class _Refusal:
    sender: Any
    error: Exception


@dataclass(frozen=True)
class _StopById:
    sender: Any
    name: str


class ResponseSender:
    """Sends the responses of a model's requests until it is closed. Every request gets a final response or an error."""

    def __init__(self, utilities: Any, counters: TritonCounters, seconds: float) -> None:
        """``counters`` belong to the courier from now on. ``seconds`` is the request timeout."""
        self._utilities, self._counters, self._seconds = utilities, counters, seconds
        self._final = utilities.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        self._inbox: SimpleQueue[PendingRequest | _Ready | _Refusal | _StopById | None] = (
            SimpleQueue()
        )  # None: end when no request is left
        self._pending: set[PendingRequest] = set()
        self._thread = threading.Thread(target=self._run, name="peagle-courier", daemon=True)
        self._thread.start()

    def take(self, request: PendingRequest) -> None:
        """Answer a request from now on."""
        self._inbox.put(request)

    def refuse(self, sender: Any, error: Exception) -> None:
        """Send an error for a request."""
        self._inbox.put(_Refusal(sender, error))

    def stop(self, sender: Any, name: str) -> None:
        """Cancel the requests with an id and answer the sender of the stop; with an error if there are none."""
        self._inbox.put(_StopById(sender, name))

    def close(self) -> None:
        """Wait until all requests have been answered."""
        self._inbox.put(None)
        self._thread.join()

    def _run(self) -> None:
        counters = self._counters
        is_ending, polled_at = False, time.monotonic()
        while not is_ending or self._pending:
            try:
                item = self._inbox.get(timeout=POLL_SECONDS)
            except Empty:
                item = None
            else:
                is_ending = is_ending or item is None
            if isinstance(item, _Refusal):
                self._fail(item.sender, item.error, counters)
            elif isinstance(item, _StopById):
                self._stop(item, counters)
            elif isinstance(item, _Ready):
                self._advance(item.request, counters)
            elif item is not None:
                self._pending.add(item)
                self._advance(item, counters)
            if time.monotonic() - polled_at > POLL_SECONDS:
                self._cancel_disconnected()
                counters.flush()
                polled_at = time.monotonic()
        counters.close()

    def _advance(self, request: PendingRequest, counters: TritonCounters) -> None:
        """Send the pending pieces of a request. A failure ends only this request."""
        if request not in self._pending:  # it has failed meanwhile
            return
        try:
            is_over = self._send_pieces(request, counters)
        except Exception as error:
            request.submission.cancel()
            self._fail(request.sender, error, counters)
            is_over = True
        if is_over:
            self._pending.discard(request)

    def _send_pieces(self, request: PendingRequest, counters: TritonCounters) -> bool:
        """Send pending pieces, joined into one response; return whether the request has finished."""
        while True:
            is_there, delta = request.submission.take_or_call(lambda: self._inbox.put(_Ready(request)))
            if not is_there:
                break
            if delta is None:
                self._send_last(request, counters)
                return True
            if delta.token_ids:
                counters.add("generation_tokens_total", len(delta.token_ids))
                if request.first is None:
                    request.first = time.perf_counter() - request.came
            request.held.append(delta)
        if (
            request.options.streams
            and not request.is_cancelled
            and request.held[-1:]
            and not request.held[-1].finish_reason
        ):
            request.sender.send(self._response(request, None))
        return False

    def _send_last(self, request: PendingRequest, counters: TritonCounters) -> None:
        output = request.submission.result()
        now = time.perf_counter() - request.came
        counters.ended(output, now if request.first is None else request.first, now)
        if output.finish_reason == "abort":
            error = self._utilities.TritonError(
                "the request was canceled" if request.is_cancelled else "the model was unloaded",
                self._utilities.TritonError.CANCELLED
                if request.is_cancelled
                else self._utilities.TritonError.UNAVAILABLE,
            )
            request.sender.send(self._utilities.InferenceResponse(error=error), flags=self._final)
        elif output.finish_reason == "timeout":
            raise EnvironmentProblem(
                f"the request timed out after {self._seconds:g} seconds",
                fix="request fewer tokens, or raise the parameter request_timeout in config.pbtxt",
            )
        else:
            request.sender.send(self._response(request, output), flags=self._final)

    def _response(self, request: PendingRequest, output: Any) -> Any:
        held, request.held = request.held, []
        options = request.options
        return self._utilities.InferenceResponse(
            output_tensors=tensors_of(
                self._utilities,
                held,
                output,
                shows_ids=options.shows_ids,
                shows_logprobs=options.params.logprobs is not None,
            )
        )

    def _fail(self, sender: Any, error: Exception, counters: TritonCounters) -> None:
        """Send an error, which ends the request."""
        counters.add("request_refused_total", 1)
        response = self._utilities.InferenceResponse(error=error_of(self._utilities, error))
        try:
            sender.send(response, flags=self._final)
        except Exception as failure:
            self._utilities.Logger.log_error(f"a response could not be sent: {failure}")

    def _cancel_disconnected(self) -> None:
        """Cancel requests whose client has gone."""
        for request in self._pending:
            if not request.is_cancelled and request.sender.is_cancelled():
                _cancel(request)

    def _stop(self, item: _StopById, counters: TritonCounters) -> None:
        found = [request for request in self._pending if item.name and request.name == item.name]
        for request in found:
            _cancel(request)
        if not found:
            problem = f"no running request has the id {item.name!r}"
            self._fail(item.sender, UsageError(problem, fix="send `stop` with the id of a running request"), counters)
            return
        tensors = tensors_of(self._utilities, [], None, shows_ids=False, shows_logprobs=False)
        item.sender.send(self._utilities.InferenceResponse(output_tensors=tensors), flags=self._final)


def _cancel(request: PendingRequest) -> None:
    request.is_cancelled = True
    request.submission.cancel()
