"""``python -m peagle.plugins.cpu [FOLDER]``: compile the CPU kernels for this machine, test them, and save them."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from ..errors import PeagleError
from ..temporary_folder import temporary_folder
from .compile import compile_library
from .self_test import try_library


def main() -> int:
    """Compile into a folder (default: a temporary one) and print the instruction set in use; return the exit status."""
    try:
        began = time.monotonic()
        library = compile_library()
        seconds = time.monotonic() - began
        with tempfile.TemporaryDirectory(prefix="peagle-cpu-", dir=temporary_folder()) as temporary:
            path = Path(sys.argv[1] if len(sys.argv) > 1 else temporary) / "kernels.so"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(library.code)
            instructions = try_library(path)
    except PeagleError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    size = len(library.code) / 1024
    print(f"{size:.0f} KiB for {library.machine}, in {seconds:.0f} s by {library.compiler}")
    print(f"the self-test passed with {instructions}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
