"""Errors of a running engine: full queue, prompt too long, closed engine, failed pass."""

from __future__ import annotations

import os

from ..plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ..plugins.problems import counted


class QueueFull(EnvironmentProblem):
    """The queue is full. ``limit`` is the maximum number of requests, running ones included."""

    def __init__(self, limit: int, slots: int) -> None:
        self.limit = limit
        super().__init__(
            f"the queue is full: the engine already has {counted(limit, 'request')}",
            why=f"{counted(slots, 'request')} can run at once, and {limit - slots} can wait",
            fix="retry when a request has finished, or load the engine with a larger max_queue_size",
        )


class PromptTooLong(UsageError):
    """A prompt does not fit the context. ``max_seq_len`` is the context length in tokens, new tokens included.

    ``length`` counts ``unit``s of the prompt: "tokens", or "characters" if those alone show that it cannot fit.
    """

    def __init__(self, name: str, length: int, max_seq_len: int, *, unit: str = "tokens") -> None:
        self.length, self.unit, self.max_seq_len = length, unit, max_seq_len
        super().__init__(
            f"{name} has {length} {unit}, but this model's maximum context length is {max_seq_len} tokens",
            why=f"{max_seq_len - 1} tokens cannot encode that many characters"
            if unit == "characters"
            else "the context must hold the prompt and at least one new token",
            fix=f"shorten the input to {max_seq_len - 1} tokens, or allow longer inputs (--max-seq-len of the build, "
            "--max-model-len of a server)",
        )


class EngineClosed(UsageError):
    """The engine was closed and accepts no requests."""

    def __init__(self) -> None:
        super().__init__("the engine is closed", why="close() was called", fix="load the engine again")


class EngineFailed(EnvironmentProblem):
    """A pass failed, which ended all requests. ``usable`` is True if the engine accepts new requests."""

    def __init__(self, cause: BaseException, *, usable: bool) -> None:
        self.usable = usable
        if isinstance(cause, PeagleError):
            super().__init__(cause.what, why=cause.why, fix=cause.fix)
        else:
            fix = "retry the request" if usable else "load the engine again"
            super().__init__("the engine failed during a pass", why=f"{type(cause).__name__}: {cause}", fix=fix)
        self.__cause__ = cause


def require_process(pid: int) -> None:
    """Raise ``UsageError`` in a fork of process ``pid``, which loaded the engine: threads are not copied."""
    if os.getpid() != pid:
        raise UsageError(
            "this engine was loaded before the process was forked",
            why=f"the engine's threads belong to process {pid}; a fork does not copy threads",
            fix="load the engine in each process, after the fork",
        )
