"""Packs of compiled kernels: a folder of cubins and its index ``kernels.json``, with metadata and hashes.

An installed wheel carries one (``packed/``), and so does every TensorRT engine for the GPUs it was built for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..errors import EnvironmentProblem
from ..op_spec import OpSpec
from ..ops import OPS
from ..regular_files import read_recorded, read_regular
from .compile import Cubin, Usage, compile_nvrtc, nvrtc_identity
from .sources import digest

INDEX = "kernels.json"
FORMAT = 1

MAX_INDEX_BYTES = 1 << 20
MAX_CODE_BYTES = 1 << 26

_FILE = re.compile(r"[a-z0-9_]{1,64}\.sm_[0-9]{2,3}\.cubin")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Pack:
    """The cubins of one folder, checked against their hashes."""

    cubins: tuple[Cubin, ...]

    def find(self, op: OpSpec, sm: int) -> Cubin | None:
        """Return the cubin for compute capability ``sm``: same major, no later minor, current source."""
        source = digest(op)
        fitting = [
            cubin
            for cubin in self.cubins
            if cubin.op == op.name and cubin.digest == source and cubin.sm // 10 == sm // 10 and cubin.sm <= sm
        ]
        return max(fitting, key=lambda cubin: cubin.sm, default=None)


def write_pack(folder: Path, cubins: Sequence[Cubin]) -> None:
    """Write the cubins, then their index; create the folder if needed. The same cubins give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for cubin in sorted(cubins, key=lambda cubin: (cubin.op, cubin.sm)):
        name = f"{OPS[cubin.op].folder}.sm_{cubin.sm}.cubin"
        _replace(folder / name, cubin.code)
        rows.append(
            {
                "op": cubin.op,
                "sm": cubin.sm,
                "file": name,
                "bytes": len(cubin.code),
                "sha256": hashlib.sha256(cubin.code).hexdigest(),
                "source_sha256": cubin.digest,
                "compiler": cubin.compiler,
                "usage": {entry: asdict(usage) for entry, usage in cubin.usage.items()},
            }
        )
    text = json.dumps({"format": FORMAT, "kernels": rows}, indent=1) + "\n"
    _replace(folder / INDEX, text.encode())


def _replace(path: Path, content: bytes) -> None:
    """Replace the file atomically: a reader sees the old one or the new one."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(path)


def read_pack(folder: Path) -> Pack:
    """Read and check a pack. Raises ``EnvironmentProblem`` naming the file that is missing, damaged or invalid."""
    path = folder / INDEX
    try:
        content = json.loads(read_regular(path, MAX_INDEX_BYTES))
        if content["format"] != FORMAT:
            raise ValueError(f"the record has format {content['format']!r}, but this version reads format {FORMAT}")
        cubins = tuple(_cubin(folder, row) for row in content["kernels"])
        if len({(cubin.op, cubin.sm) for cubin in cubins}) < len(cubins):
            raise ValueError("the record lists a kernel twice")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise EnvironmentProblem(
            f"the compiled kernels in {folder} are missing or damaged",
            why=f"{type(error).__name__}: {error}",
            fix="rebuild the engine; if the kernels are those of an installed package, reinstall it; in a checkout, "
            "run `make kernels`",
        ) from error
    return Pack(cubins)


def _cubin(folder: Path, row: dict[str, Any]) -> Cubin:
    """Read one row of the index and its file. Raises ``OSError``, ``ValueError``, ``TypeError`` or similar."""
    op, sm, file, sha256 = row["op"], row["sm"], row["file"], row["sha256"]
    if not isinstance(op, str) or type(sm) is not int or type(row["bytes"]) is not int:
        raise TypeError("op, sm or bytes has the wrong type")
    # A name from the index must not lead out of the folder.
    if not _FILE.fullmatch(file) or not _DIGEST.fullmatch(sha256) or not _DIGEST.fullmatch(row["source_sha256"]):
        raise ValueError(f"{op}: invalid file name or hash")
    try:
        code = read_recorded(folder / file, row["bytes"], sha256, MAX_CODE_BYTES)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error
    return Cubin(op, sm, row["source_sha256"], code, _usage(row["usage"]), str(row["compiler"]))


def _usage(rows: dict[str, dict[str, Any]]) -> dict[str, Usage]:
    for entry, row in rows.items():
        if any(type(value) is not int for value in row.values()):
            raise TypeError(f"{entry}: usage values must be integers")
    return {entry: Usage(**row) for entry, row in rows.items()}


@functools.cache
def shipped() -> Pack:
    """Return the pack shipped with this installation; empty if none was compiled (``make kernels`` compiles it)."""
    folder = Path(__file__).resolve().with_name("packed")
    return read_pack(folder) if (folder / INDEX).exists() else Pack(())


def obtain(op: OpSpec, sm: int, packs: Sequence[Pack] = ()) -> Cubin:
    """Return the op's kernel for a GPU: from the packs, the shipped pack, or compiled by NVRTC (once per process).

    Raises ``EnvironmentProblem`` if no pack has it and NVRTC is missing or does not support the GPU.
    """
    for pack in (*packs, shipped()):
        if cubin := pack.find(op, sm):
            return cubin
    return _compiled(op.name, sm)


def identity(op: OpSpec, sm: int) -> str:
    """Return what identifies the machine code that ``obtain`` gives beside its source, without compiling.

    It is the hash of a shipped kernel, or the version of the compiler. Raises ``EnvironmentProblem`` like ``obtain``.
    """
    cubin = shipped().find(op, sm)
    return hashlib.sha256(cubin.code).hexdigest() if cubin else nvrtc_identity()


@functools.cache
def _compiled(name: str, sm: int) -> Cubin:
    return compile_nvrtc(OPS[name], sm)
