"""What a model counts, for Triton's ``/metrics``; names as vLLM has them, as our own server does.

One thread at a time makes and changes them, and nothing else is told to the server meanwhile as the model is loaded:
Triton's server ends by a signal where two threads do so at once. Series are never dropped: those of one name and the
same labels are one to the server, which frees it with the first process that drops it, while other instances of the
model, or what was loaded in its place meanwhile, still count in it; it ended by a signal then, too. So a model that is
loaded again goes on counting where it was.
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
    "prompt_tokens_total": "Tokens of prompts.",
    "generation_tokens_total": "Tokens that were written.",
    "request_success_total": "Requests that ended, by how.",
    "request_refused_total": "Requests that were answered with an error.",
    **dict(
        zip(_OF_DRAFTS, ("Rounds with drafts.", "Tokens that were drafted.", "Drafts that were accepted."), strict=True)
    ),
}
_HISTOGRAMS = {
    "time_to_first_token_seconds": "From arrival to the first token.",
    "e2e_request_latency_seconds": "From arrival to the last token.",
}
_GAUGES = {"num_requests_running": "Requests running.", "num_requests_waiting": "Requests waiting."}
_LABELS = {"request_success_total": "finished_reason", **dict.fromkeys(_OF_DRAFTS, "lossy")}


class TritonCounters:
    """The series of one model. Changes are kept here until ``flush``, since telling the server takes a while."""

    def __init__(self, utilities: Any, labels: dict[str, str], load: Callable[[], Load]) -> None:
        """``load`` is asked at each flush."""
        kinds, self._labels, self._load = utilities.MetricFamily, labels, load
        kind_of = {**dict.fromkeys(_COUNTERS, kinds.COUNTER), **dict.fromkeys(_HISTOGRAMS, kinds.HISTOGRAM)}
        self._families = {
            name: _kept(kinds(name=f"vllm:{name}", description=text, kind=kind_of.get(name, kinds.GAUGE)))
            for name, text in (_COUNTERS | _HISTOGRAMS | _GAUGES).items()
        }
        self._series: dict[tuple[str, str], Any] = {}
        self._added: dict[tuple[str, str], float] = {}
        self._told = dict.fromkeys(_GAUGES, 0)
        for name in _COUNTERS:
            if name not in _LABELS:
                self.add(name, 0)
        for name in _OF_DRAFTS:
            self.add(name, 0, "false")
        self.flush()

    def add(self, name: str, amount: float, label: str = "") -> None:
        """Count ``amount`` more; ``label`` is how a request ended, or whether a tolerance let drafts through."""
        key = (name, label)
        self._added[key] = self._added.get(key, 0.0) + amount

    def ended(self, output: RequestOutput, first: float, whole: float) -> None:
        """A request has ended: ``first`` and ``whole`` are its seconds to the first token and to the last."""
        acceptance = output.acceptance
        self.add("request_success_total", 1, output.finish_reason)
        self.add("prompt_tokens_total", len(output.prompt_token_ids))
        counts, lossy = (acceptance.rounds, acceptance.drafted, acceptance.accepted), str(acceptance.is_lossy).lower()
        for name, count in zip(_OF_DRAFTS, counts, strict=True):
            self.add(name, count, lossy)
        self._of("time_to_first_token_seconds").observe(first)
        self._of("e2e_request_latency_seconds").observe(whole)

    def flush(self) -> None:
        """Tell the server what has changed."""
        for (name, label), amount in self._added.items():
            self._of(name, label).increment(amount)
        self._added.clear()
        load = self._load()
        self._tell_gauges(load.running, load.waiting)

    def close(self) -> None:
        """Tell what is left; nothing runs any more."""
        self.flush()
        self._tell_gauges(0, 0)

    def _tell_gauges(self, *values: int) -> None:
        """Add what changed, since instances of a model share a series."""
        for name, value in zip(_GAUGES, values, strict=True):
            gauge = self._of(name)
            if value != self._told[name]:
                gauge.increment(value - self._told[name])
                self._told[name] = value

    def _of(self, name: str, label: str = "") -> Any:
        key = (name, label)
        if key not in self._series:
            labels = self._labels | ({_LABELS[name]: label} if label else {})
            more = {"buckets": _SECONDS} if name in _HISTOGRAMS else {}
            self._series[key] = _kept(self._families[name].Metric(labels=labels, **more))
        return self._series[key]


def _kept(series: Any) -> Any:
    """Keep an object for ever: not even the end of the interpreter is to drop it."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(series))
    return series
