"""The log of a command: everything in a file (``--log``), and what matters of it on standard error (``--verbose``)."""

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

OURS = __package__.split(".", maxsplit=1)[0]
_SHOWN = f"{OURS}.shown"  # what standard error has in any case
_APART = ("transformers", "huggingface_hub")  # they hand nothing on
_BEGIN = "command: "
_log = logging.getLogger(OURS)


@contextmanager
def logged(path: Path | None, *, verbose: bool = False) -> Iterator[None]:
    """Keep the log of what is done inside: at the end of the file ``path``, and on standard error when ``verbose``."""
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
        _told(f"error: {error}", error)
        raise
    except BaseException as error:
        _told(f"ended by {type(error).__name__}", error)
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
    """Log what is shown on standard error anyway."""
    logging.getLogger(_SHOWN).info(text)


class Logged:
    """Progress that is kept in the log as well, with the beginning and the end of each piece of work."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._open: list[str] = []

    @contextmanager
    def step(self, text: str, total: int | None = None) -> Iterator[Advance]:
        """One piece of work, told to both."""
        is_part = text in self._open[-1:]  # of what is called the same
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
    """Lines on whatever standard error is at that moment: bars stand in for it while they are shown."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.addFilter(lambda record: record.name.startswith(OURS) and record.name != _SHOWN and not record.exc_info)

    def emit(self, record: logging.LogRecord) -> None:
        """Print the message alone."""
        print(record.getMessage(), file=sys.stderr, flush=True)


class _InFile(logging.FileHandler):
    """Lines at the end of a file; that they cannot be written is told once, and fails nothing."""

    _is_lost = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, as long as that works."""
        if not self._is_lost:
            super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Give up."""
        error = sys.exc_info()[1]
        self._is_lost = True
        print(f"warning: the log {self.baseFilename} cannot be written: {error}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Close the file, of which the last lines may be lost."""
        with suppress(OSError):
            super().close()


def _file(path: Path) -> logging.Handler:
    try:
        if path.is_file():
            _require_log(path)
        handler = _InFile(path, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot write the log {path}", why=error.strerror or str(error), fix="name another file with --log"
        ) from None
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    return handler


def _require_log(path: Path) -> None:
    """Refuse to add to a file that is something else."""
    with path.open("rb") as file:
        first = file.readline(1000)
    if first and _BEGIN.encode() not in first:
        raise UsageError(
            f"{path} is there and is no log", why="a log is added to, and this would be spoilt", fix="name another file"
        )


def _begin() -> None:
    _log.info(f"{_BEGIN}%s", " ".join(sys.argv))
    _log.info("Python %s on %s", platform.python_version(), platform.platform())
    _log.debug("packages: %s", ", ".join(sorted(f"{each.name} {each.version}" for each in distributions())))


def _told(text: str, error: BaseException) -> None:
    _log.error(text, exc_info=error)
