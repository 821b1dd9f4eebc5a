"""What is kept of TensorRT's log."""

from __future__ import annotations

from peagle.compiler.tensorrt.callbacks import Log


def test_errors_and_warnings_are_kept_and_chatter_is_not() -> None:
    log = Log()
    for severity, text in enumerate(["internal", "error", "a\n  warning", "information", "detail"]):
        log.add(severity, text)
    assert (list(log.errors), list(log.warnings)) == (["internal", "error"], ["a warning"])


def test_the_same_is_kept_once_and_the_newest_are_the_last() -> None:
    log = Log()
    for text in ("one", "two", "two", "three", "Cuda Runtime (cudaError 35: no driver)"):
        log.add(1, text)
    assert log.last(2) == "two; three"


def test_a_long_line_is_cut() -> None:
    log = Log()
    log.add(1, "x" * 10_000)
    assert len(log.last()) < 1000
