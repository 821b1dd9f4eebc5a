"""The log file records phases, versions, output, other libraries' messages, and the location of errors."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import pytest

from peagle.compiler.console.logbook import Logged, logged
from peagle.compiler.console.printing import note
from peagle.compiler.console.progress import Quiet
from peagle.plugins.errors import BuildError, EnvironmentProblem, UsageError

OURS = logging.getLogger("peagle.compiler.tensorrt.build_plan")


def test_log_file_contains_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"

    def work() -> None:
        note("warning: K is large")
        OURS.debug("tensorrt: a verbose line")
        logging.getLogger("another.library").info("said elsewhere")
        warnings.warn("an overflow", RuntimeWarning, stacklevel=1)
        with Logged(Quiet()).step("trace target"):
            raise ZeroDivisionError("division by zero")

    with pytest.raises(ZeroDivisionError), logged(path):
        work()
    content = path.read_text()
    for text in (
        "command: ",
        "Python 3.",
        "onnxruntime ",
        "warning: K is large",
        "DEBUG peagle.compiler.tensorrt.build_plan: tensorrt: a verbose line",
        "said elsewhere",
        "an overflow",
        "trace target begins",
        "trace target ends after ",
        "Traceback (most recent call last)",
        "ZeroDivisionError: division by zero",
    ):
        assert text in content, text
    assert capsys.readouterr().err == "warning: K is large\n"


def test_verbose_prints_important_messages_once(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        note("warning: K is large")
        OURS.info("tensorrt: a line")
        OURS.debug("tensorrt: a verbose line")
        raise BuildError("told by whoever catches it")

    with pytest.raises(BuildError), logged(None, verbose=True):
        work()
    told = capsys.readouterr().err
    assert told.count("warning: K is large") == told.count("tensorrt: a line") == 1
    assert "Python 3." in told
    assert "verbose" not in told.replace("--verbose", "")
    assert "told by whoever" not in told


def test_log_is_appended_to_and_then_closed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    for text in ("from before", "inside"):
        with logged(path):
            OURS.info(text)
    OURS.error("outside")
    content = path.read_text()
    assert content.index("from before") < content.index("inside")
    assert "outside" not in content
    assert not logging.getLogger().handlers or all(
        not isinstance(handler, logging.FileHandler) or handler.baseFilename != str(path)
        for handler in logging.getLogger().handlers
    )


def test_non_log_file_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("{}")
    with pytest.raises(UsageError, match="is not a log file"), logged(path):
        pass
    assert path.read_text() == "{}"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_only_disables_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    with logged(Path("/dev/full")):
        OURS.info("lost")
        OURS.info("lost as well")
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "warning: the log /dev/full cannot be written: [Errno 28] No space left on device" in told


def test_a_log_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot write the log"), logged(tmp_path / "no folder" / "log"):
        pass
