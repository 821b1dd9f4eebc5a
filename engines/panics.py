"""Panics of libraries that are written in Rust: pyo3 raises them outside of ``Exception``."""

from __future__ import annotations


def is_library_fault(error: BaseException) -> bool:
    """Whether an error is an ``Exception`` or a panic, and not a request to end, such as ``KeyboardInterrupt``."""
    return isinstance(error, Exception) or type(error).__module__ == "pyo3_runtime"


def reason_of(error: BaseException) -> str:
    """Return what a library says of its fault, in a line, with the name of the error where it says nothing."""
    said = " ".join(str(error).split())
    return said[:300] or type(error).__name__
