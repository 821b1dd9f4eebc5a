"""What a library raises over a configuration, turned into a ``BuildError`` that names the file and what was said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..plugins.errors import BuildError, PeagleError
from ..plugins.problems import shown


@contextmanager
def modelling(file: str, what: str = "cannot be made a model of") -> Iterator[None]:
    """Run the modelling code of ``transformers`` inside, over the configuration in ``file``.

    Its own errors, and torch's, are of any class: values that nobody checks fail wherever they are first used. A
    missing package is no fault of the configuration.
    """
    try:
        yield
    except (PeagleError, ImportError):
        raise
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise BuildError(
            f"{file} {what}",
            why=shown(f"transformers says: {type(error).__name__}: {' '.join(lines[:3])}"),
            fix="use the config.json that belongs to the weights; see docs/evidence.md for the models that were tested",
        ) from error
