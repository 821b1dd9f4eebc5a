"""Metrics of a model in Triton's ``/metrics``. Names match vLLM's, as in the project's own server.

Only one thread at a time creates and updates the series, and never while the model is loading, because Triton's server
crashes if two threads do so at once. Series are never released. Triton treats series with the same name and labels as
one, and frees it when the first process releases it, while other instances of the model, or its replacement, still use
it; that also crashed the server. A reloaded model therefore continues its previous counts.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ...loop import Load
from ...requests.results import RequestOutput

_SECONDS = [0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0]
_OF_DRAFTS = (
    "spec_decode_num_drafts_total", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
)  # fmt: skip
_COUNTERS = {
    "prompt_tokens_total": "Prompt tokens.",
    "generation_tokens_total": "Generated tokens.",
    "request_success_total": "Finished requests, by finish reason.",
    "request_refused_total": "Requests that failed.",
    **dict(zip(_OF_DRAFTS, ("Rounds with drafts.", "Drafted tokens.", "Accepted draft tokens."), strict=True)),
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "Time from arrival to the first token.",
    "e2e_request_latency_seconds": "Time from arrival to the last token.",
}
_GAUGES = {"num_requests_running": "Running requests.", "num_requests_waiting": "Waiting requests."}
_LABELS = {"request_success_total": "finished_reason", **dict.fromkeys(_OF_DRAFTS, "lossy")}


class TritonCounters:
    """The series of one model. Changes are buffered until ``flush``, because updating the server is slow."""

    def __init__(self, utilities: Any, labels: dict[str, str], load: Callable[[], Load]) -> None:
        """``load`` is read at each flush."""
        kinds, self._labels, self._load = utilities.MetricFamily, labels, load
        kind_of = {**dict.fromkeys(_COUNTERS, kinds.COUNTER), **dict.fromkeys(_HISTOGRAMS, kinds.HISTOGRAM)}
        self._families = {
            name: _keep_forever(kinds(name=f"vllm:{name}", description=text, kind=kind_of.get(name, kinds.GAUGE)))
            for name, text in (_COUNTERS | _HISTOGRAMS | _GAUGES).items()
        }
        self._series: dict[tuple[str, str], Any] = {}
        self._added: dict[tuple[str, str], float] = {}
        self._reported = dict.fromkeys(_GAUGES, 0)
        for name in _COUNTERS:
            if name not in _LABELS:
                self.add(name, 0)
        for name in _OF_DRAFTS:
            self.add(name, 0, "false")
        self.flush()

    def add(self, name: str, amount: float, label: str = "") -> None:
        """Add ``amount``; ``label`` is the finish reason or the ``lossy`` flag."""
        key = (name, label)
        self._added[key] = self._added.get(key, 0.0) + amount

    def ended(self, output: RequestOutput, first: float, seconds: float) -> None:
        """Count a finished request. ``first`` and ``seconds`` are its seconds to the first and to the last token."""
        acceptance = output.acceptance
        self.add("request_success_total", 1, output.finish_reason)
        self.add("prompt_tokens_total", len(output.prompt_token_ids))
        counts, lossy = (acceptance.rounds, acceptance.drafted, acceptance.accepted), str(acceptance.is_lossy).lower()
        for name, count in zip(_OF_DRAFTS, counts, strict=True):
            self.add(name, count, lossy)
        self._of("time_to_first_token_seconds").observe(first)
        self._of("e2e_request_latency_seconds").observe(seconds)

    def flush(self) -> None:
        """Send the buffered changes to the server."""
        for (name, label), amount in self._added.items():
            self._of(name, label).increment(amount)
        self._added.clear()
        load = self._load()
        self._tell_gauges(load.running, load.waiting)

    def close(self) -> None:
        """Send the remaining changes, when no request runs any more."""
        self.flush()
        self._tell_gauges(0, 0)

    def _tell_gauges(self, *values: int) -> None:
        """Add the difference to the previous value, because instances of a model share a series."""
        for name, value in zip(_GAUGES, values, strict=True):
            gauge = self._of(name)
            if value != self._reported[name]:
                gauge.increment(value - self._reported[name])
                self._reported[name] = value

    def _of(self, name: str, label: str = "") -> Any:
        key = (name, label)
        if key not in self._series:
            labels = self._labels | ({_LABELS[name]: label} if label else {})
            more = {"buckets": _SECONDS} if name in _HISTOGRAMS else {}
            self._series[key] = _keep_forever(self._families[name].Metric(labels=labels, **more))
        return self._series[key]


def _keep_forever(series: Any) -> Any:
    """Keep a reference to the object for ever, so that even the interpreter's exit does not release it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(series))
    return series
