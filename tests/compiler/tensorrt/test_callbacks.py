"""The recorded part of TensorRT's log, and progress from the phases that it reports."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.compiler.tensorrt.callbacks import Fraction, Log


def test_errors_and_warnings_are_kept_without_chatter() -> None:
    log = Log()
    for severity, text in enumerate(["internal", "error", "a\n  warning", "information", "detail"]):
        log.add(severity, text)
    assert (list(log.errors), list(log.warnings)) == (["internal", "error"], ["a warning"])


def test_repeated_messages_are_kept_once_newest_last() -> None:
    log = Log()
    for text in ("one", "two", "two", "three", "Cuda Runtime (cudaError 35: no driver)"):
        log.add(1, text)
    assert log.last(2) == "two; three"


def test_a_long_line_is_cut() -> None:
    log = Log()
    log.add(1, "x" * 10_000)
    assert len(log.last()) < 1000


def test_nested_phase_is_one_step_of_its_parent() -> None:
    fraction = Fraction()
    assert fraction.start("build", None, 4) == 0
    fraction.start("optimise", "build", 2)
    assert fraction.step("optimise", 0) == 1 / 8
    assert fraction.finish("optimise") == 1 / 8
    assert fraction.step("build", 0) == 1 / 4
    assert fraction.finish("build") == 1


events = st.lists(
    st.tuples(st.sampled_from(["start", "step", "finish"]), st.integers(0, 3), st.integers(0, 3), st.integers(0, 9)),
    max_size=40,
)


@given(events)
@settings(max_examples=60, deadline=None)
def test_it_never_falls_and_never_leaves_0_to_1(said: list[tuple[str, int, int, int]]) -> None:
    """Any calls by TensorRT in any order: phases that never started, steps beyond the last."""
    fraction, reached = Fraction(), [0.0]
    for kind, phase, other, count in said:
        if kind == "start":
            parent = f"phase {other}" if other < phase else None
            reached.append(fraction.start(f"phase {phase}", parent, count))
        elif kind == "step":
            reached.append(fraction.step(f"phase {phase}", count))
        else:
            reached.append(fraction.finish(f"phase {phase}"))
    assert reached == sorted(reached)
    assert reached[-1] <= 1
