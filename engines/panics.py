"""Panics of Rust libraries, which pyo3 raises as exceptions outside ``Exception``."""

from __future__ import annotations


def is_library_fault(error: BaseException) -> bool:
    """Return True if an error is an ``Exception`` or a panic, not ``KeyboardInterrupt`` or the like."""
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


def reason_of(error: BaseException) -> str:
    """Return a library's error message in one line, or the type of the error if it has no message."""
    message = " ".join(str(error).split())
    return message[:300] or type(error).__name__
