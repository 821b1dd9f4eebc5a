"""``python -m peagle.plugins.tensorrt.library FOLDER [sm_100 ...]``: compile the plugin library into a folder."""

from __future__ import annotations

import sys
from pathlib import Path

from ...errors import EnvironmentProblem, PeagleError, UsageError
from ...kernels.sources import TARGETS
from . import LIBRARY
from .pack import write_plugin_library

_COMMAND = "python -m peagle.plugins.tensorrt.library FOLDER [sm_100 ...]"


def main() -> int:
    """Write the library for the named GPUs, or for those of the shipped kernels; return the exit status."""
    try:
        folder, *gpus = sys.argv[1:]
        sms = [int(gpu.removeprefix("sm_")) for gpu in gpus] or TARGETS
    except ValueError:
        print(UsageError("invalid arguments: expected a folder and GPUs", fix=f"run `{_COMMAND}`"), file=sys.stderr)
        return UsageError.exit_code
    try:
        library = write_plugin_library(Path(folder), sms)
    except PeagleError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(
            EnvironmentProblem(f"cannot write {folder}: {error.strerror}", fix="choose another folder"), file=sys.stderr
        )
        return EnvironmentProblem.exit_code
    targets = ", ".join(f"sm_{sm}" for sm in library.sms)
    print(
        f"{Path(folder) / LIBRARY}: {len(library.code) / 1024:.0f} KiB, with kernels for {targets}, "
        f"by {library.compiler}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
