"""Convert library exceptions about a configuration to a ``BuildError`` with the file and the original message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..plugins.errors import BuildError, PeagleError
from ..plugins.problems import shown
from ..plugins.temporary_folder import temporary_folder


@contextmanager
def modelling(file: str, problem: str = "cannot be turned into a model") -> Iterator[None]:
    """Context for running the modeling code of ``transformers`` on the configuration in ``file``.

    Its exceptions, and torch's, can be of any class, because unchecked values fail wherever they are first used. A
    missing package is not reported as an error of the configuration, nor is a missing folder for temporary files.
    """
    try:
        yield
    except (PeagleError, ImportError):
        raise
    except Exception as error:
        temporary_folder()  # torch needs one: its absence is no error of the configuration either
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise BuildError(
            f"{file} {problem}",
            why=shown(f"transformers raised {type(error).__name__}: {' '.join(lines[:3])}"),
            fix="use the config.json that belongs to the weights; docs/evidence.md lists the tested models",
        ) from error
