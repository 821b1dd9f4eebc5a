"""The folder for temporary files, which a machine may lack."""

from __future__ import annotations

import tempfile

from .errors import EnvironmentProblem


def temporary_folder() -> str:
    """Return the folder for temporary files. Raises ``EnvironmentProblem`` if no file can be written to any of them."""
    try:
        return tempfile.gettempdir()
    except OSError as error:
        raise EnvironmentProblem(
            "there is no folder for temporary files",
            why=error.strerror or str(error),
            fix="set TMPDIR to a folder that is writable and on a disk with free space",
        ) from error
