"""Checkpoints are read exactly, and every kind of damage is a ``BuildError`` that names the file."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.weight_files import INDEX
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


def test_single_file_accepts_any_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "head.safetensors")
    assert Checkpoint.open(folder).shapes["a.weight"] == (2, 2)


def test_duplicate_layouts_of_the_weights_are_ignored(folder: Path, sharded: Path) -> None:
    save_file({"tok_embeddings.weight": torch.zeros(1)}, folder / "consolidated.safetensors")
    (folder / "original").mkdir()
    save_file({"tok_embeddings.weight": torch.zeros(1)}, folder / "original" / "model.safetensors")
    assert Checkpoint.open(folder).shapes.keys() == TENSORS.keys()
    for file in (INDEX, "one.safetensors"):
        (folder / file).unlink()
    (folder / "two.safetensors").rename(folder / "head.safetensors")
    assert "scalar" in Checkpoint.open(folder).shapes


def test_tensor_offset_beyond_gigabytes_is_read(folder: Path) -> None:
    ends = {"large": [0, 1 << 32], "after": [1 << 32, (1 << 32) + 4], "last": [(1 << 32) + 4, (1 << 32) + 8]}
    header = {
        name: {"dtype": "F32", "shape": [(end - begin) // 4], "data_offsets": [begin, end]}
        for name, (begin, end) in ends.items()
    }
    path = folder / "model.safetensors"
    path.write_bytes(with_header(header))
    os.truncate(path, path.stat().st_size + ends["last"][1])  # sparse: takes no disk
    assert Checkpoint.open(folder).read("last").tolist() == [0]


def test_a_large_header_is_read_fast(folder: Path) -> None:
    count = 40_000
    item = '"{}": {{"dtype": "BF16", "shape": [1], "data_offsets": [{}, {}]}}'
    items = (item.format(f"{'x' * 200}.{i}.weight", 2 * i, 2 * i + 2) for i in range(count))
    content = with_header(f"{{{', '.join(items)}}}".encode(), bytes(2 * count))
    assert len(content) > 10_000_000
    (folder / "model.safetensors").write_bytes(content)
    start = time.thread_time()
    assert len(Checkpoint.open(folder).shapes) == count
    assert time.thread_time() - start < 10


@pytest.mark.parametrize("filling", [b"[],", b"{},", b"0,", b"[[],[]],"])
def test_a_header_of_endless_items_is_refused(folder: Path, filling: bytes) -> None:
    header = b'{"a": [' + filling * (30_000_000 // len(filling)) + b"0]}"
    (folder / "model.safetensors").write_bytes(with_header(header))
    start = time.thread_time()
    assert "items" in refusal(folder).why
    assert time.thread_time() - start < 2


def test_missing_name_suggests_similar_ones(folder: Path) -> None:
    with pytest.raises(BuildError, match=r"a\.weight"):
        Checkpoint.open(folder).read("aa.weight")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(data=st.data())
def test_no_truncated_file_is_read(folder: Path, data: st.DataObject) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    kept = data.draw(st.integers(0, len(whole) - 1))
    (folder / "model.safetensors").write_bytes(whole[:kept])
    try:
        assert "model.safetensors" in refusal(folder).what
    finally:
        (folder / "model.safetensors").write_bytes(whole)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
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
        ([], b"", "not a JSON object"),
        (b"\xff{}", b"", "not valid JSON"),
        (b'{"a": 1, "a": 2}', b"", "twice"),
        ({"a": 1}, b"", "unknown type"),
        ({"a": {"dtype": "F99", "shape": [], "data_offsets": [0, 4]}}, b"1234", "F99"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234", "invalid shape"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234", "invalid shape"),
        ({"a": {"dtype": "F32", "shape": [1 << 70, 0], "data_offsets": [0, 0]}}, b"", "invalid shape"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, b"1234", "invalid shape"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234", "does not match its shape"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, b"12345678", "does not directly follow"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"12345678", "describes"),
        (
            {n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"},
            b"1234",
            "does not directly follow",
        ),
    ],
)
def test_inconsistent_header_is_rejected(folder: Path, header: Any, data: bytes, complaint: str) -> None:
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
def test_other_formats_are_recognized(folder: Path, content: bytes, complaint: str) -> None:
    (folder / "model.safetensors").write_bytes(content)
    problem = refusal(folder)
    assert complaint in problem.why
    assert "safetensors" in problem.fix


def test_pickled_weights_are_not_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    problem = refusal(folder)
    assert "pytorch_model.bin" in problem.why
    assert "never loaded" in problem.why


@pytest.mark.parametrize(("bad", "nan", "inf"), [([float("nan"), 1.0], 1, 0), ([float("inf"), float("-inf")], 0, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_named_and_counted(
    folder: Path, bad: list[float], nan: int, inf: int, dtype: torch.dtype
) -> None:
    save_file({"x.weight": torch.tensor([[*bad, 0.5]]).to(dtype)}, folder / "model.safetensors")
    with pytest.raises(BuildError, match=rf"x\.weight has {nan} NaN and {inf} Inf among 3 values"):
        Checkpoint.open(folder).read("x.weight")


def test_unsupported_dtype_is_named(folder: Path) -> None:
    save_file({"x.weight": torch.zeros(2).to(torch.float8_e4m3fn)}, folder / "model.safetensors")
    with pytest.raises(BuildError, match="stored as F8_E4M3"):
        Checkpoint.open(folder).read("x.weight")


HOSTILE = ["", "a\0b", "a\x1b[2Jb", "a\nb", "n" * 1025, "\ud800"]


@pytest.mark.parametrize("name", HOSTILE)
def test_impossible_names_are_refused_and_harmless_to_print(folder: Path, name: str) -> None:
    header = {name: {"dtype": "I32", "shape": [1], "data_offsets": [0, 4]}}
    (folder / "model.safetensors").write_bytes(with_header(header, b"1234"))
    problem = refusal(folder)
    assert "invalid name" in problem.what
    assert problem.what.isprintable()
    assert len(problem.what) < 1000
    header[name]["dtype"] = "F99"
    (folder / "model.safetensors").write_bytes(with_header(header, b"1234"))
    assert str(refusal(folder)).replace("\n", "").isprintable()


def test_a_strange_name_is_only_a_name(folder: Path) -> None:
    save_file({"../{x}%s": torch.ones(1)}, folder / "model.safetensors")
    assert Checkpoint.open(folder).read("../{x}%s").tolist() == [1]


@pytest.mark.parametrize("content", [None, "", "{", "[1]", "\ufeff"])
def test_a_folder_needs_a_config(folder: Path, content: str | None) -> None:
    if content is None:
        (folder / "config.json").unlink()
    else:
        (folder / "config.json").write_text(content)
    assert "config.json" in refusal(folder).what


def test_path_without_folder_is_rejected(folder: Path) -> None:
    assert "not a folder" in refusal(folder / "config.json").what


@pytest.mark.parametrize(
    "file",
    [
        "../x.safetensors",
        "/etc/x.safetensors",
        "sub/x.safetensors",
        "sub\\x.safetensors",
        "x.bin",
        "..",
        7,
        None,
        "x\0.safetensors",
        "x\x1b.safetensors",
        "\ud800.safetensors",
    ],
)
def test_index_can_only_name_files_of_its_folder(sharded: Path, file: Any) -> None:
    write_index(sharded, dict.fromkeys(sorted(TENSORS)[1:3], "one.safetensors") | {"a.weight": file})
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


def test_fingerprint_depends_on_content_only(folder: Path, tmp_path: Path) -> None:
    first = Checkpoint.open(folder).fingerprint
    moved = folder.rename(tmp_path.parent / f"{tmp_path.name}-moved")
    assert Checkpoint.open(moved).fingerprint == first
    save_file(TENSORS | {"scalar": torch.tensor(3.0)}, moved / "model.safetensors")
    second = Checkpoint.open(moved).fingerprint
    (moved / "config.json").write_text('{"hidden_size": 3}')
    assert len({first, second, Checkpoint.open(moved).fingerprint}) == 3


@pytest.mark.parametrize("layout", ["folder", "sharded"])
def test_weights_that_are_written_again_are_noticed(layout: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(layout)
    read = Checkpoint.open(folder)
    read.require_unchanged()
    file = sorted(folder.glob("*.safetensors"))[-1]
    content, found = file.read_bytes(), file.stat()
    file.write_bytes(content)
    os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 1_000_000_000))  # the clock may not have ticked
    with pytest.raises(BuildError, match=f"{file.name} changed while it was read"):
        read.require_unchanged()
    Checkpoint.open(folder).require_unchanged()
    file.unlink()
    with pytest.raises(BuildError, match="changed while it was read"):
        read.require_unchanged()


def test_fingerprint_includes_modelopt_config(folder: Path) -> None:
    first = Checkpoint.open(folder).fingerprint
    (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": null}}')
    assert Checkpoint.open(folder).fingerprint != first


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(places=st.lists(st.sampled_from(["x", "y", "z"]), min_size=len(TENSORS), max_size=len(TENSORS)))
def test_how_tensors_are_spread_over_files_does_not_matter(tmp_path: Path, places: list[str]) -> None:
    spread = dict(zip(TENSORS, places, strict=True))
    (tmp_path / "config.json").write_text("{}")
    for file in set(places):
        save_file({name: TENSORS[name] for name in TENSORS if spread[name] == file}, tmp_path / f"{file}.safetensors")
    write_index(tmp_path, {name: f"{file}.safetensors" for name, file in spread.items()})
    checkpoint = Checkpoint.open(tmp_path)
    assert checkpoint.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        wanted = tensor.float().numpy() if tensor.is_floating_point() else tensor.numpy()
        np.testing.assert_array_equal(checkpoint.read(name), wanted)
        assert Path(checkpoint.position(name)[0]).stem == spread[name]


FILES = [f"{letter}.safetensors" for letter in "abcd"]
TEST_NAMES = [f"t{i}" for i in range(8)]
WRONGS = st.sampled_from(["missing", "moved", "duplicated", "unnamed", "unsafe"])


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    wrongs=st.dictionaries(st.sampled_from(TEST_NAMES), WRONGS, max_size=4),
    damage=st.dictionaries(st.sampled_from(FILES), st.sampled_from(["lost", "cut"]), max_size=2),
    shift=st.integers(1, 3),
)
def test_all_problems_are_reported_together(
    tmp_path: Path, wrongs: dict[str, str], damage: dict[str, str], shift: int
) -> None:
    placed = {f"anchor.{file}": file for file in FILES} | {n: FILES[i % 4] for i, n in enumerate(TEST_NAMES)}
    stored = {file: {n: torch.ones(3) for n, where in placed.items() if where == file} for file in FILES}
    expected = list(damage)
    for name, wrong in wrongs.items():
        home = placed[name]
        other = FILES[(FILES.index(home) + shift) % 4]
        if wrong in ("missing", "moved"):
            del stored[home][name]
        if wrong in ("moved", "duplicated"):
            stored[other][name] = torch.zeros(3)
        if wrong == "unnamed":
            del placed[name]
        if wrong == "unsafe":
            placed[name] = f"../{name}.safetensors"
        if wrong == "unsafe" or not damage.keys() & ({home, other} if wrong == "duplicated" else {home}):
            expected.append(name)
    (tmp_path / "config.json").write_text("{}")
    write_index(tmp_path, placed)
    for file, tensors in stored.items():
        save_file(tensors, tmp_path / file)
        if damage.get(file) == "cut":
            os.truncate(tmp_path / file, (tmp_path / file).stat().st_size - 1)
        if damage.get(file) == "lost":
            (tmp_path / file).unlink()
    if expected:
        text = str(refusal(tmp_path))
        assert [item for item in expected if item not in text] == []
    elif not wrongs:
        assert Checkpoint.open(tmp_path).shapes == dict.fromkeys(placed, (3,))


def test_many_problems_are_counted_and_not_all_listed(sharded: Path) -> None:
    weight_map = {f"absent.{i:03d}": "one.safetensors" for i in range(100)} | {"a.weight": "one.safetensors"}
    write_index(sharded, weight_map | {f"lost.{i}": f"lost-{i:03d}.safetensors" for i in range(100)})
    problem = refusal(sharded)
    assert "absent.019 and 80 more" in problem.what
    assert "lacks 100 of 101 weight files" in problem.what
    assert "absent.020" not in problem.what
    for i in range(100):
        (sharded / f"lost-{i:03d}.safetensors").write_bytes(b"<html>")
    assert "and 80 more of this kind" in refusal(sharded).what
    assert "cannot be used (10" in refusal(sharded).what


def test_missing_config_does_not_hide_other_problems(sharded: Path) -> None:
    (sharded / "config.json").unlink()
    (sharded / "one.safetensors").unlink()
    (sharded / "two.safetensors").write_bytes(b"PK\x03\x04" + b"\0" * 60)
    problem = refusal(sharded)
    for words in ("config.json", "lacks 1 of 2", "PyTorch archive", "(3 problems)"):
        assert words in problem.what
    assert "complete the download" in problem.fix
