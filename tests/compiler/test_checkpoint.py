"""Checkpoints: whole ones are read exactly, and every kind of damage is a ``BuildError`` that names the file."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from peagle.compiler.checkpoint import INDEX, Checkpoint
from peagle.plugins.errors import BuildError

TENSORS = {
    "a.weight": torch.tensor([[1.5, -2.25], [0.0, 3.0]]),
    "b.weight": torch.tensor([1e-3, 65504.0]).to(torch.float16),
    "c.weight": torch.tensor([3.140625, -1e30]).to(torch.bfloat16),
    "d2t": torch.tensor([5, -7, 2**40]),
    "t2d": torch.tensor([True, False, True]),
    "scalar": torch.tensor(2.0),
    "empty": torch.zeros(0, 4),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"hidden_size": 2}')
    save_file(TENSORS, tmp_path / "model.safetensors", metadata={"format": "pt"})
    return tmp_path


@pytest.fixture
def sharded(folder: Path) -> Path:
    (folder / "model.safetensors").unlink()
    names = sorted(TENSORS)
    parts = {"one.safetensors": names[:3], "two.safetensors": names[3:]}
    for file, inside in parts.items():
        save_file({name: TENSORS[name] for name in inside}, folder / file)
    write_index(folder, {name: file for file, inside in parts.items() for name in inside})
    return folder


def write_index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def refusal(folder: Path) -> BuildError:
    with pytest.raises(BuildError) as caught:
        Checkpoint.open(folder)
    assert caught.value.exit_code == 5
    return caught.value


def with_header(header: Any, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


@pytest.mark.parametrize("layout", ["folder", "sharded"])
def test_every_tensor_is_read_exactly(layout: str, request: pytest.FixtureRequest) -> None:
    checkpoint = Checkpoint.open(request.getfixturevalue(layout))
    assert checkpoint.config == {"hidden_size": 2}
    assert checkpoint.shapes == {name: tuple(tensor.shape) for name, tensor in TENSORS.items()}
    for name, tensor in TENSORS.items():
        wanted = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        found = checkpoint.read(name)
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found, wanted)


def test_a_single_file_may_have_any_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "head.safetensors")
    assert Checkpoint.open(folder).shapes["a.weight"] == (2, 2)


def test_a_name_that_is_not_there_brings_its_neighbours(folder: Path) -> None:
    with pytest.raises(BuildError, match=r"a\.weight"):
        Checkpoint.open(folder).read("aa.weight")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(data=st.data())
def test_no_truncated_file_is_read(folder: Path, data: st.DataObject) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    kept = data.draw(st.integers(0, len(whole) - 1))
    (folder / "model.safetensors").write_bytes(whole[:kept])
    try:
        assert "model.safetensors" in refusal(folder).what
    finally:
        (folder / "model.safetensors").write_bytes(whole)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(data=st.data())
def test_damage_is_refused_or_harmless_but_never_a_crash(folder: Path, data: st.DataObject) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    at, byte = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.binary(min_size=1, max_size=3))
    (folder / "model.safetensors").write_bytes(whole[:at] + byte + whole[at + 1 :])
    try:
        with contextlib.suppress(BuildError):
            checkpoint = Checkpoint.open(folder)
            for name in checkpoint.shapes:
                checkpoint.read(name)
    finally:
        (folder / "model.safetensors").write_bytes(whole)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200))
def test_arbitrary_bytes_are_not_a_checkpoint(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    refusal(folder)


@pytest.mark.parametrize(
    ("header", "data", "complaint"),
    [
        ([], b"", "not an object"),
        (b"\xff{}", b"", "not JSON"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
        ({"a": 1}, b"", "unknown type"),
        ({"a": {"dtype": "F99", "shape": [], "data_offsets": [0, 4]}}, b"1234", "F99"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234", "impossible"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234", "impossible"),
        ({"a": {"dtype": "F32", "shape": [1 << 70, 0], "data_offsets": [0, 0]}}, b"", "impossible"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, b"1234", "impossible"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234", "does not fit its shape"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678", "does not follow"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345678", "describes"),
        (
            {n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"},
            b"1234",
            "does not follow",
        ),
    ],
)
def test_a_header_that_lies_is_refused(folder: Path, header: Any, data: bytes, complaint: str) -> None:
    (folder / "model.safetensors").write_bytes(with_header(header, data))
    assert complaint in refusal(folder).why


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"PK\x03\x04" + b"\0" * 60, "PyTorch archive"),
        (b"\x80\x04\x95" + b"\0" * 60, "pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS"),
        (b"<!DOCTYPE html><html></html>" + b" " * 60, "web page"),
    ],
)
def test_other_formats_are_recognised(folder: Path, content: bytes, complaint: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    problem = refusal(folder)
    assert complaint in problem.why
    assert "safetensors" in problem.fix


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    problem = refusal(folder)
    assert "pytorch_model.bin" in problem.why
    assert "never read" in problem.why


@pytest.mark.parametrize(("bad", "nan", "inf"), [([float("nan"), 1.0], 1, 0), ([float("inf"), float("-inf")], 0, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_named_and_counted(
    folder: Path, bad: list[float], nan: int, inf: int, dtype: torch.dtype
) -> None:
    save_file({"x.weight": torch.tensor([[*bad, 0.5]]).to(dtype)}, folder / "model.safetensors")
    with pytest.raises(BuildError, match=rf"x\.weight holds {nan} NaN and {inf} Inf of 3 values"):
        Checkpoint.open(folder).read("x.weight")


def test_a_type_that_is_not_supported_yet_is_named(folder: Path) -> None:
    save_file({"x.weight": torch.zeros(2).to(torch.float8_e4m3fn)}, folder / "model.safetensors")
    with pytest.raises(BuildError, match="stored as F8_E4M3"):
        Checkpoint.open(folder).read("x.weight")


@pytest.mark.parametrize("content", [None, "", "{", "[1]", "\ufeff"])
def test_a_folder_needs_a_config(folder: Path, content: str | None) -> None:
    if content is None:
        (folder / "config.json").unlink()
    else:
        (folder / "config.json").write_text(content)
    assert "config.json" in refusal(folder).what


def test_what_is_not_a_folder_is_refused(folder: Path) -> None:
    assert "not a folder" in refusal(folder / "config.json").what


@pytest.mark.parametrize(
    "file",
    ["../x.safetensors", "/etc/x.safetensors", "sub/x.safetensors", "sub\\x.safetensors", "x.bin", "..", 7, None],
)
def test_an_index_may_name_only_files_of_its_folder(sharded: Path, file: Any) -> None:
    write_index(sharded, {"a.weight": file})
    assert repr(file) in refusal(sharded).what


def test_shards_that_are_missing_are_listed(sharded: Path) -> None:
    (sharded / "two.safetensors").unlink()
    assert "1 of 2 weight files: two.safetensors" in refusal(sharded).what


def test_an_index_that_promises_too_much_is_refused(sharded: Path) -> None:
    write_index(sharded, {"a.weight": "one.safetensors", "z.weight": "one.safetensors"})
    assert "z.weight" in refusal(sharded).what


@pytest.mark.parametrize("weight_map", [None, {}, [], "x"])
def test_an_index_needs_a_map(sharded: Path, weight_map: Any) -> None:
    write_index(sharded, weight_map)
    assert "weight_map" in refusal(sharded).what


def test_shards_without_an_index_are_ambiguous(sharded: Path) -> None:
    (sharded / INDEX).unlink()
    assert "one.safetensors, two.safetensors" in refusal(sharded).what


def test_the_fingerprint_follows_the_content_and_nothing_else(folder: Path, tmp_path: Path) -> None:
    first = Checkpoint.open(folder).fingerprint
    moved = folder.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert Checkpoint.open(moved).fingerprint == first
    save_file(TENSORS | {"scalar": torch.tensor(3.0)}, moved / "model.safetensors")
    second = Checkpoint.open(moved).fingerprint
    (moved / "config.json").write_text('{"hidden_size": 3}')
    assert len({first, second, Checkpoint.open(moved).fingerprint}) == 3
