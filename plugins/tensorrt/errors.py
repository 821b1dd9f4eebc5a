"""The error that a plugin raised last. TensorRT turns it into one of its own that says nothing."""

from __future__ import annotations

from ..errors import BuildError, PeagleError

_last: PeagleError | None = None


def last() -> PeagleError | None:
    """The error that a plugin or its creator raised last in this process, if any since ``clear``."""
    return _last


def clear() -> None:
    """Forget the last error: call this before a parse, a build or an execution."""
    global _last
    _last = None


def record(error: Exception, where: str) -> PeagleError:
    """Keep an error for ``last``; one that is none of ours is wrapped. ``where`` is said of those."""
    global _last
    if not isinstance(error, PeagleError):
        error = BuildError(f"{where} failed", why=f"{type(error).__name__}: {error}")
    _last = error
    return error
