"""A pack of CPU kernels is read back as written, and a damaged one is refused with a typed error."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from peagle.plugins.cpu import INDEX, LIBRARY
from peagle.plugins.cpu.compile import CpuLibrary
from peagle.plugins.cpu.pack import MAX_INDEX_BYTES, read_pack, write_pack
from peagle.plugins.errors import EnvironmentProblem

KERNELS = CpuLibrary("linux-x86_64", "a" * 64, b"machine code", "some compiler 1.0")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    write_pack(tmp_path / "packed", KERNELS)
    return tmp_path / "packed"


def edit(folder: Path, **changes: Any) -> None:
    content = json.loads((folder / INDEX).read_text()) | changes
    (folder / INDEX).write_text(json.dumps({name: value for name, value in content.items() if value is not ...}))


def test_pack_round_trips_deterministically(packed: Path, tmp_path: Path) -> None:
    assert read_pack(packed) == KERNELS
    write_pack(tmp_path / "other", KERNELS)
    files = {path.name: path.read_bytes() for path in packed.iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    assert {*files} == {INDEX, LIBRARY}


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no index": lambda folder: (folder / INDEX).unlink(),
    "no code": lambda folder: (folder / LIBRARY).unlink(),
    "a folder for code": lambda folder: ((folder / LIBRARY).unlink(), (folder / LIBRARY).mkdir()),
    "a pipe for code": lambda folder: ((folder / LIBRARY).unlink(), os.mkfifo(folder / LIBRARY)),
    "cut code": lambda folder: (folder / LIBRARY).write_bytes(b"machine"),
    "other code": lambda folder: (folder / LIBRARY).write_bytes(b"machine c0de"),
    "empty index": lambda folder: (folder / INDEX).write_bytes(b""),
    "cut index": lambda folder: (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:90]),
    "no text": lambda folder: (folder / INDEX).write_bytes(b"\xff\xfe\x00"),
    "other JSON": lambda folder: (folder / INDEX).write_text("[1, 2]"),
    "deep JSON": lambda folder: (folder / INDEX).write_text("[" * 60_000),
    "large index": lambda folder: (folder / INDEX).write_bytes(b" " * (MAX_INDEX_BYTES + 1)),
    "other format": lambda folder: edit(folder, format=2),
    "no machine": lambda folder: edit(folder, machine=...),
    "a machine that is none": lambda folder: edit(folder, machine="../x"),
    "a machine of a wrong type": lambda folder: edit(folder, machine=7),
    "a hash of a wrong form": lambda folder: edit(folder, source_sha256="1"),
    "a compiler of a wrong type": lambda folder: edit(folder, compiler=None),
    "a size of a wrong type": lambda folder: edit(folder, bytes="12"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_pack_raises_a_project_error(packed: Path, damage: str) -> None:
    DAMAGES[damage](packed)
    with pytest.raises(EnvironmentProblem) as caught:
        read_pack(packed)
    assert str(packed) in caught.value.what
    assert caught.value.why
    assert caught.value.fix
