"""CPU kernel packs: a folder with the library and its index ``cpu_kernels.json``, which records type and hashes.

An ONNX Runtime engine with packed matrices carries one, for the machine that built it.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from ..errors import EnvironmentProblem
from ..regular_files import read_recorded, read_regular
from . import INDEX, LIBRARY
from .compile import CpuLibrary

FORMAT = 1

MAX_INDEX_BYTES = 1 << 16
MAX_CODE_BYTES = 1 << 26

_DIGEST = re.compile(r"[0-9a-f]{64}")
_MACHINE = re.compile(r"[a-z0-9_-]{1,64}")


def write_pack(folder: Path, library: CpuLibrary) -> None:
    """Write the library, then its index. The same library gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIBRARY).write_bytes(library.code)
    index = {
        "format": FORMAT,
        "machine": library.machine,
        "bytes": len(library.code),
        "sha256": hashlib.sha256(library.code).hexdigest(),
        "source_sha256": library.digest,
        "compiler": library.compiler,
    }
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def read_pack(folder: Path) -> CpuLibrary:
    """Read and check a pack. Raises ``EnvironmentProblem`` naming the file that is missing, damaged or invalid."""
    path = folder / INDEX
    try:
        content = json.loads(read_regular(path, MAX_INDEX_BYTES))
        if content["format"] != FORMAT:
            raise ValueError(f"the record has format {content['format']!r}, but this version reads format {FORMAT}")
        machine, source, compiler = content["machine"], content["source_sha256"], content["compiler"]
        if not _MACHINE.fullmatch(machine) or not _DIGEST.fullmatch(source) or not isinstance(compiler, str):
            raise ValueError("machine, source or compiler is invalid")
        size, sha256 = content["bytes"], content["sha256"]
        path = folder / LIBRARY
        code = read_recorded(path, size, sha256, MAX_CODE_BYTES)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise EnvironmentProblem(
            f"{path} is missing or damaged",
            why=f"{type(error).__name__}: {error}",
            fix="copy the whole engine again, or rebuild it",
        ) from error
    return CpuLibrary(machine, source, code, compiler)
