"""Errors of a running engine: a full queue, a prompt that is too long, a closed engine, a pass that failed."""

from __future__ import annotations

import os

from ..plugins.errors import EnvironmentProblem, PeagleError, UsageError


class QueueFull(EnvironmentProblem):
    """The engine has as many requests as it was loaded for; ``limit`` is how many, those that run included."""

    def __init__(self, limit: int, slots: int) -> None:
        self.limit = limit
        super().__init__(
            f"the engine has {limit} requests, and takes no more",
            why=f"{slots} run at once, and {limit - slots} may wait",
            fix="submit again when one has ended, or load the engine with a larger max_queue_size",
        )


class PromptTooLong(UsageError):
    """A prompt does not fit the model's context; ``max_seq_len`` is its length in tokens, new ones included.

    ``length`` counts ``unit``s of the prompt: "tokens", or "characters" where those alone show that it cannot fit.
    """

    def __init__(self, name: str, length: int, max_seq_len: int, *, unit: str = "tokens") -> None:
        self.length, self.unit, self.max_seq_len = length, unit, max_seq_len
        super().__init__(
            f"{name} has {length} {unit}, and this model's maximum context length is {max_seq_len} tokens",
            why=f"{max_seq_len - 1} tokens cannot hold so much text"
            if unit == "characters"
            else "the context holds the prompt and at least one new token",
            fix=f"shorten it to {max_seq_len - 1} tokens, or rebuild with a larger --max-seq-len",
        )


class EngineClosed(UsageError):
    """The engine was closed, and takes no requests."""

    def __init__(self) -> None:
        super().__init__("the engine is closed", why="close() ends it for good", fix="load it again")


class EngineFailed(EnvironmentProblem):
    """A pass failed, and ended every request there was; ``usable`` says whether the engine takes new ones."""

    def __init__(self, cause: BaseException, *, usable: bool) -> None:
        self.usable = usable
        if isinstance(cause, PeagleError):
            super().__init__(cause.what, why=cause.why, fix=cause.fix)
        else:
            fix = "submit the request again" if usable else "load the engine again"
            super().__init__("a pass of the engine failed", why=f"{type(cause).__name__}: {cause}", fix=fix)
        self.__cause__ = cause


def require_process(pid: int) -> None:
    """Raise ``UsageError`` in a process that is a fork of ``pid``, which loaded the engine: threads are not copied."""
    if os.getpid() != pid:
        raise UsageError(
            "this engine was loaded before the process was forked",
            why=f"its threads are those of process {pid}, and a fork has none of them",
            fix="load the engine in each process, after the fork",
        )
