"""Install Triton Inference Server and this project into a folder, on a machine with neither containers nor a GPU.

python tools/triton_server.py build/triton      installs; then run `build/triton/tritonserver --help`
                                                (`make triton-server` does this)

The server and its Python backend come from the wheel of nvidia-pytriton, whose Python code is not used. The models run
in their own virtual environment, because that server only supports NumPy 1. Existing parts are kept.
"""

from __future__ import annotations

import ctypes.util
import platform
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PINS = Path(__file__).with_suffix(".lock")
SERVER = "nvidia-pytriton==0.7.0"  # tritonserver 2.51.0
NEWEST = (3, 12)  # the last Python that NumPy 1 has wheels for

_LAUNCHER = """#!/bin/sh
# Written by tools/triton_server.py: tritonserver, whose models run in the virtual environment beside it.
here=$(dirname "$(readlink -f "$0")")
unset PYTHONPATH PYTHONHOME
export PATH="$here/venv/bin:$PATH"
{library}
server="$here/server/pytriton/tritonserver"
exec "$server/bin/tritonserver" --backend-directory "$server/backends" --cache-directory "$server/caches" "$@"
"""


def missing() -> str | None:
    """Return why the server cannot run here, or None."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the wheel of Triton's server is for Linux on x86-64, this is {platform.system()} {platform.machine()}"
    libc, version = platform.libc_ver()
    if libc != "glibc" or tuple(map(int, version.split(".")[:2])) < (2, 35):
        return f"the wheel of Triton's server needs glibc 2.35 or newer, this is {libc} {version}"
    if sys.version_info[:2] > NEWEST:
        return f"that server takes NumPy 1, which has no wheels for Python {sys.version_info[0]}.{sys.version_info[1]}"
    if library_folder() is None:
        return f"there is no {_library()}, which the server runs models with (Debian: libpython3.x)"
    return None


def library_folder() -> str | None:
    """Return the folder of this Python's shared library: "" if the system finds it by itself, None if there is none."""
    folder = sysconfig.get_config_var("LIBDIR")
    if folder and Path(folder, _library()).is_file():
        return str(folder)
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return "" if ctypes.util.find_library(name) else None


def make(folder: Path) -> Path:
    """Create the folder unless it is complete and has the same pins; return its launcher."""
    launcher, stamp = folder / "tritonserver", folder / "made-of"
    wanted = f"{ROOT}\n{sys.version}\n{SERVER}\n{PINS.read_text()}"
    if launcher.is_file() and stamp.is_file() and stamp.read_text() == wanted:
        return launcher
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    pip = [str(python), "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input", "install", "--no-deps"]
    subprocess.run([*pip, "--target", str(folder / "server"), SERVER], check=True)
    subprocess.run([*pip, "-r", str(PINS)], check=True)
    subprocess.run([*pip, "--no-build-isolation", "-e", str(ROOT)], check=True)
    server = folder / "server" / "pytriton" / "tritonserver"
    stub = f"{sys.version_info[0]}.{sys.version_info[1]}/triton_python_backend_stub"
    shutil.copy(server / "python_backend_stubs" / stub, server / "backends" / "python")
    library = library_folder()
    search = f'export LD_LIBRARY_PATH="{library}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"' if library else ""
    launcher.write_text(_LAUNCHER.format(library=search))
    launcher.chmod(0o755)
    stamp.write_text(wanted)
    return launcher


def _library() -> str:
    return f"libpython{sys.version_info[0]}.{sys.version_info[1]}.so.1.0"


def main() -> None:
    """Create the folder named on the command line."""
    if reason := missing():
        sys.exit(reason)
    print(f"{make(Path(sys.argv[1] if len(sys.argv) > 1 else 'build/triton'))} starts the server")


if __name__ == "__main__":
    main()
