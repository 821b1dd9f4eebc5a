"""The verbosity flags ``--quiet``, ``--verbose`` and ``--log`` of all long-running verbs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from ....plugins.errors import UsageError
from ...console.progress import Progress, show_progress
from .shared_flags import Log, Quiet, Verbose

_FLAGS = {"quiet": (Quiet, False), "verbose": (Verbose, False), "log": (Log, None)}


@dataclass(frozen=True)
class Verbosity:
    """The verbosity that the user chose; long work happens within ``work``."""

    quiet: bool = False
    log: Path | None = None

    @contextmanager
    def work(self) -> Iterator[Progress]:
        """Show progress of the work inside the block."""
        with show_progress(quiet=self.quiet) as progress:
            if self.log is None:
                yield progress
                return
            from ...console.logbook import Logged

            yield Logged(progress)


def with_verbosity(verb: Callable[..., None]) -> Callable[..., None]:
    """Give a verb that takes a ``verbosity`` the verbosity flags, after its own."""
    hints = get_type_hints(verb, include_extras=True)
    parameters = [
        p.replace(annotation=hints[name])
        for name, p in inspect.signature(verb).parameters.items()
        if name != "verbosity"
    ]
    flags = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in _FLAGS.items()
    ]

    @functools.wraps(verb)
    def command(*arguments: Any, **values: Any) -> None:
        quiet, verbose, log = (values.pop(name, default) for name, (_, default) in _FLAGS.items())
        if quiet and verbose:
            raise UsageError("--quiet and --verbose cannot be combined", fix="omit one of them")
        verbosity = Verbosity(quiet, log)
        if not verbose and log is None:
            verb(*arguments, verbosity=verbosity, **values)
            return
        from ...console.logbook import logged

        with logged(log, verbose=verbose):
            verb(*arguments, verbosity=verbosity, **values)

    command.__signature__ = inspect.Signature([*parameters, *flags])  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*parameters, *flags)}
    return command
