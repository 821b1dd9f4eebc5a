"""The virtual environment of a peer, whose requirements conflict with the project's and with other peers'."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent / "build" / "peers"
# GCC 12 discards writes to the configuration of AMX tiles as dead, and llama.cpp then crashes.
CXXFLAGS = "-fno-tree-dse -fno-dse"


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment, creating it if needed.

    Args:
        peer: the name of a requirements file in this folder, without its extension. A second file whose name ends in
            ``.alone.txt`` lists packages to install without what they require.

    Raises:
        SystemExit: pip could not install it; its output is on standard error.
    """
    files = [file for file in (HERE / f"{peer}.txt", HERE / f"{peer}.alone.txt") if file.is_file()]
    folder = ROOT / peer
    python = folder / "bin" / "python"
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    stamp = folder / ".installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"Installing {peer} into {folder} (minutes) ...", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    # Compiler settings of other packages (flags, a cross target) must not affect this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CMAKE_", "CFLAGS"))}
    environment["CXXFLAGS"] = CXXFLAGS
    pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "--no-input", "install"]
    for file in files:
        alone = ["--no-deps"] if file.name.endswith(".alone.txt") else []
        if subprocess.run([*pip, *alone, "-r", str(file)], env=environment, check=False).returncode:
            raise SystemExit(f"could not install {peer}; see the output of pip above, or leave it out with --peers")
    stamp.write_text(wanted)
    return python
