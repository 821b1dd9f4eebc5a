"""Packs of compiled kernels are read back as written, damaged ones are refused, and suitable kernels are found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.kernels import pack as packing
from peagle.plugins.kernels.compile import Cubin, Usage
from peagle.plugins.kernels.pack import INDEX, Pack, obtain, read_pack, write_pack
from peagle.plugins.kernels.sources import TARGETS, digest
from peagle.plugins.ops import OPS

OP = OPS["NumbersAt"]
USAGE = {"numbers_at": Usage(registers=32, spill_bytes=0, shared_bytes=0)}


def cubin_for(sm: int, *, op: str = "NumbersAt", source: str | None = None) -> Cubin:
    code = f"machine code of {op} for {sm}".encode()
    return Cubin(op, sm, source or digest(OPS[op]), code, USAGE, "nvcc 13.0")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    folder = tmp_path / "packed"
    write_pack(folder, [cubin_for(sm) for sm in TARGETS])
    return folder


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the index as JSON."""
    content = json.loads((folder / INDEX).read_text())
    change(content)
    (folder / INDEX).write_text(json.dumps(content))


def test_pack_round_trips(packed: Path) -> None:
    assert read_pack(packed) == Pack(tuple(cubin_for(sm) for sm in sorted(TARGETS)))


def test_an_empty_pack_is_a_pack(tmp_path: Path) -> None:
    write_pack(tmp_path, [])
    assert read_pack(tmp_path).cubins == ()


def test_cubin_order_does_not_change_the_bytes(packed: Path, tmp_path: Path) -> None:
    write_pack(tmp_path / "other", [cubin_for(sm) for sm in reversed(TARGETS)])
    files = {path.name: path.read_bytes() for path in packed.iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "other").iterdir()}
    assert len(files) == len(TARGETS) + 1


def test_rewritten_pack_is_replaced(packed: Path) -> None:
    write_pack(packed, [cubin_for(90, source="0" * 64)])
    assert [cubin.digest for cubin in read_pack(packed).cubins] == ["0" * 64]


def name_code(content: dict[str, Any], name: Any) -> None:
    content["kernels"][0]["file"] = name


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "no index": lambda folder: (folder / INDEX).unlink(),
    "no code": lambda folder: (folder / "numbers_at.sm_90.cubin").unlink(),
    "cut code": lambda folder: (folder / "numbers_at.sm_90.cubin").write_bytes(b"machine"),
    "other code": lambda folder: (folder / "numbers_at.sm_90.cubin").write_bytes(cubin_for(89).code),
    "empty index": lambda folder: (folder / INDEX).write_bytes(b""),
    "cut index": lambda folder: (folder / INDEX).write_bytes((folder / INDEX).read_bytes()[:200]),
    "no text": lambda folder: (folder / INDEX).write_bytes(b"\xff\xfe\x00"),
    "other JSON": lambda folder: (folder / INDEX).write_text("[1, 2]"),
    "deep JSON": lambda folder: (folder / INDEX).write_text("[" * 100_000),
    "large index": lambda folder: (folder / INDEX).write_bytes(b" " * (packing.MAX_INDEX_BYTES + 1)),
    "other format": lambda folder: edit(folder, lambda content: content.update(format=2)),
    "no list": lambda folder: edit(folder, lambda content: content.update(kernels=7)),
    "no rows": lambda folder: edit(folder, lambda content: content.update(kernels=["row"])),
    "missing key": lambda folder: edit(folder, lambda content: content["kernels"][0].pop("sha256")),
    "SM of a wrong type": lambda folder: edit(folder, lambda content: content["kernels"][0].update(sm="89")),
    "usage of a wrong type": lambda folder: edit(folder, lambda content: content["kernels"][0].update(usage=[1])),
    "usage in letters": lambda folder: edit(
        folder, lambda content: content["kernels"][0]["usage"]["numbers_at"].update(registers="many")
    ),
    "hash of a wrong form": lambda folder: edit(folder, lambda content: content["kernels"][0].update(sha256="1")),
    "no name": lambda folder: edit(folder, lambda content: name_code(content, None)),
    "a name that leads out": lambda folder: edit(
        folder, lambda content: name_code(content, "../packed/numbers_at.sm_89.cubin")
    ),
    "an absolute name": lambda folder: edit(
        folder, lambda content: name_code(content, str(folder / "numbers_at.sm_89.cubin"))
    ),
    "a name with a line end": lambda folder: edit(
        folder, lambda content: name_code(content, "numbers_at.sm_89.cubin\n")
    ),
    "a folder for code": lambda folder: (
        (folder / "numbers_at.sm_89.cubin").unlink(),
        (folder / "numbers_at.sm_89.cubin").mkdir(),
    ),
    "twice": lambda folder: edit(folder, lambda content: content["kernels"].append(content["kernels"][0])),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_pack_raises_a_project_error(packed: Path, damage: str) -> None:
    DAMAGES[damage](packed)
    with pytest.raises(EnvironmentProblem) as caught:
        read_pack(packed)
    assert str(packed) in caught.value.what
    assert caught.value.why
    assert caught.value.fix


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([75, 80, 86, 89, 90, 100, 103, 120, 121]), unique=True), st.integers(70, 130))
def test_cubin_fits_its_major_and_later_minors(compiled: list[int], sm: int) -> None:
    cubin = Pack(tuple(cubin_for(target) for target in compiled)).find(OP, sm)
    fitting = [target for target in compiled if target // 10 == sm // 10 and target <= sm]
    assert (cubin.sm if cubin else None) == max(fitting, default=None)


def test_cubin_of_another_source_or_op_is_not_found() -> None:
    pack = Pack((cubin_for(90, source="0" * 64), cubin_for(90, op="PlaceholderDraft")))
    assert pack.find(OP, 90) is None
    assert pack.find(OPS["PlaceholderDraft"], 90) is not None


def test_first_matching_pack_is_used_before_nvrtc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "shipped", lambda: Pack((cubin_for(120),)))
    ours = cubin_for(90)
    assert obtain(OP, 90, [Pack(()), Pack((ours,))]) is ours
    assert obtain(OP, 120).code == cubin_for(120).code
    compiled = obtain(OP, 100, [Pack((ours,))])
    assert compiled.compiler.startswith("NVRTC")
    assert compiled.sm == 100
    assert obtain(OP, 100) is compiled, "compiled once a process"
