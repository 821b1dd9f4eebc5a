"""The last error raised by a plugin. TensorRT replaces it with an uninformative error of its own."""

from __future__ import annotations

from ..errors import REPORT, BuildError, PeagleError

_last: PeagleError | None = None


def last() -> PeagleError | None:
    """Return the last error raised by a plugin or its creator in this process since ``clear``, if any."""
    return _last


def clear() -> None:
    """Forget the last error: call this before a parse, a build or an execution."""
    global _last
    _last = None


def record(error: Exception, location: str) -> PeagleError:
    """Keep an error for ``last``; other exception types are wrapped in a project error with ``location`` as context."""
    global _last
    if not isinstance(error, PeagleError):
        error = BuildError(f"{location} failed", why=f"{type(error).__name__}: {error}", fix=REPORT)
    _last = error
    return error
