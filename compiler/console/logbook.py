"""The log of a command: everything goes to a file (``--log``), selected records to standard error (``--verbose``)."""

from __future__ import annotations

import logging
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import distributions
from pathlib import Path

from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError
from .progress import Advance, Progress

PACKAGE = __package__.split(".", maxsplit=1)[0]
_SHOWN = f"{PACKAGE}.shown"  # records that are printed on standard error anyway
_APART = ("transformers", "huggingface_hub")  # their loggers do not propagate
_BEGIN = "command: "
_log = logging.getLogger(PACKAGE)


@contextmanager
def logged(path: Path | None, *, verbose: bool = False) -> Iterator[None]:
    """Log the block: append to the file ``path``, and print on standard error if ``verbose``."""
    handlers: list[logging.Handler] = [_file(path)] if path else []
    if verbose:
        handlers.append(_OnStandardError())
    loggers = [logging.getLogger(name) for name in ("", *_APART)]
    was, captured = _log.level, logging.getLogger().level
    _log.setLevel(logging.DEBUG if path else logging.INFO if verbose else was)
    for handler in handlers:
        for logger in loggers:
            logger.addHandler(handler)
    logging.captureWarnings(bool(path))
    if path:
        logging.getLogger().setLevel(min(captured, logging.INFO))
    try:
        if handlers:
            _begin()
        yield
    except PeagleError as error:
        _log_error(f"error: {error}", error)
        raise
    except BaseException as error:
        _log_error(f"ended by {type(error).__name__}", error)
        raise
    finally:
        logging.captureWarnings(False)
        _log.setLevel(was)
        logging.getLogger().setLevel(captured)
        for handler in handlers:
            for logger in loggers:
                logger.removeHandler(handler)
            handler.close()


def shown(text: str) -> None:
    """Log a line that is printed on standard error anyway."""
    logging.getLogger(_SHOWN).info(text)


class Logged:
    """Progress that also logs the start and the end of each step."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: list[str] = []

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        """Report a step to the wrapped progress and to the log."""
        is_part = text in self._open[-1:]  # of a step of the same name
        self._open.append(text)
        started = time.monotonic()
        if not is_part:
            shown(f"{text} begins")
        try:
            with self._progress.step(text, total) as advance:
                yield advance
        finally:
            self._open.pop()
            if not is_part:
                shown(f"{text} ends after {time.monotonic() - started:.3f} s")


class _OnStandardError(logging.Handler):
    """A handler for the current standard error, which progress bars replace while they are shown."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(lambda record: record.name.startswith(PACKAGE) and record.name != _SHOWN and not record.exc_info)

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message alone."""
        print(record.getMessage(), file=sys.stderr, flush=True)


class _InFile(logging.FileHandler):
    """A file handler that reports a write error once and then stays silent."""

    _is_lost = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, unless an earlier one failed."""
        if not self._is_lost:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Report the error and stop logging."""
        error = sys.exc_info()[1]
        self._is_lost = True
        print(f"warning: the log {self.baseFilename} cannot be written: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file; its last lines may be lost."""
        with suppress(OSError):
            super().close()


def _file(path: Path) -> logging.Handler:
    try:
        if path.is_file():
            _require_log(path)
        handler = _InFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write the log {path}", why=error.strerror or str(error), fix="choose another file with --log"
        ) from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def _require_log(path: Path) -> None:
    """Raise ``UsageError`` for an existing file that is not a log."""
    with path.open("rb") as file:
        first = file.readline(1000)
    if first and _BEGIN.encode() not in first:
        raise UsageError(
            f"{path} exists and is not a log file",
            why="--log appends to a log file, and would damage any other file",
            fix="choose another file",
        )


def _begin() -> None:
    _log.info(f"{_BEGIN}%s", " ".join(sys.argv))
    _log.info("Python %s on %s", platform.python_version(), platform.platform())
    _log.debug("packages: %s", ", ".join(sorted(f"{each.name} {each.version}" for each in distributions())))


def _log_error(text: str, error: BaseException) -> None:
    _log.error(text, exc_info=error)
