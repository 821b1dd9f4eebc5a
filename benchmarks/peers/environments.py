"""The virtual environment of a peer: its requirements clash with ours and with one another's."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent / "build" / "peers"


def python_of(peer: str) -> Path:
    """Return the interpreter of a peer's environment, which is made where it is not there yet.

    Args:
        peer: the name of a requirements file beside this one, without its ending.

    Raises:
        SystemExit: pip could not install it; what pip said is on standard error.
    """
    requirements = HERE / f"{peer}.txt"
    folder = ROOT / peer
    python = folder / "bin" / "python"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    stamp = folder / ".installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    print(f"Installing {peer} into {folder} (minutes) ...", file=sys.stderr, flush=True)
    venv.create(folder, clear=True, with_pip=True)
    # What a compiler is told for other packages (flags, a cross target) is not for this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("CMAKE_", "CFLAGS"))}
    pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check", "--no-input", "install", "-r"]
    done = subprocess.run([*pip, str(requirements)], env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{peer} could not be installed; leave it out with --peers, or see what pip says above")
    stamp.write_text(wanted)
    return python
