"""Weights in large pages are the numbers of their files, in memory once, and freed with the last session."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import backend, weights
from peagle.engines.backends.onnxruntime.weights import Weights, large_page_bytes
from peagle.plugins.errors import EnvironmentProblem

PAGE = mmap.PAGESIZE
NUMBERS = np.arange(3 * PAGE, dtype=np.float32)

pytestmark = pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has large pages for a process")


def write(folder: Path, *, location: str = "weights", offset: int = 0, name: str = "model.onnx") -> Path:
    """Write a model with one tensor of all ``NUMBERS`` from ``offset`` on, stored in ``location``."""
    tensor = TensorProto(name="w", dims=[3, PAGE], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, "offset": str(offset)}.items():
        tensor.external_data.add(key=key, value=value)
    x, y = (helper.make_tensor_value_info(each, TensorProto.FLOAT, [3, PAGE]) for each in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [tensor])
    (folder / name).write_bytes(helper.make_model(graph).SerializeToString())
    (folder / "weights").write_bytes(NUMBERS.tobytes())
    return folder / name


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "free_memory", lambda: 2 * NUMBERS.nbytes - 1)


def no_address_space(monkeypatch: pytest.MonkeyPatch) -> None:
    class Limited(mmap.mmap):
        def __new__(cls, file: int, *args: Any, **options: Any) -> Limited:
            if file == -1:
                raise OSError(12, "Cannot allocate memory")
            return super().__new__(cls, file, *args, **options)

    monkeypatch.setattr(mmap, "mmap", Limited)


def test_copies_begin_with_a_large_page(tmp_path: Path) -> None:
    found = Weights(2 * PAGE).of(write(tmp_path))["w"]
    assert np.array_equal(found, NUMBERS.reshape(3, PAGE))
    assert found.ctypes.data % (2 * PAGE) == 0
    assert found.flags.writeable  # not the file


@pytest.mark.parametrize("limit", [no_memory, no_address_space])
def test_files_are_mapped_if_a_copy_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Callable[[pytest.MonkeyPatch], None]
) -> None:
    limit(monkeypatch)
    found = Weights(PAGE).of(write(tmp_path))["w"]
    assert np.array_equal(found, NUMBERS.reshape(3, PAGE))
    assert not found.flags.writeable


def test_graphs_share_a_file_until_the_last_one_is_closed(tmp_path: Path) -> None:
    loaded = Weights(PAGE)
    first, second = (loaded.of(write(tmp_path, name=name)) for name in ("a.onnx", "b.onnx"))
    os.utime(tmp_path / "weights", ns=(0, 0))
    third, fourth = (loaded.of(tmp_path / name) for name in ("a.onnx", "b.onnx"))
    assert not np.shares_memory(first["w"], third["w"])  # the file was replaced
    assert np.shares_memory(third["w"], fourth["w"])
    del first, second, third
    gc.collect()
    assert len(loaded._files) == 1
    del fourth
    gc.collect()
    assert not loaded._files


@pytest.mark.parametrize("page", [0, NUMBERS.nbytes + PAGE], ids=["no-large-pages", "a-smaller-file"])
def test_other_files_are_left_to_onnx_runtime(tmp_path: Path, page: int) -> None:
    assert Weights(page).of(write(tmp_path)) == {}


@pytest.mark.parametrize("location", ["../weights", "/etc/passwd", "", "..", "a\0b"])
def test_files_of_other_folders_are_not_opened(tmp_path: Path, location: str) -> None:
    (tmp_path / "engine").mkdir()
    write(tmp_path)
    assert Weights(PAGE).of(write(tmp_path / "engine", location=location)) == {}


@pytest.mark.parametrize("offset", [4, 2, -4, 2**70])
def test_tensors_that_lie_outside_of_their_file_are_left_out(tmp_path: Path, offset: int) -> None:
    assert Weights(PAGE).of(write(tmp_path, offset=offset)) == {}


def test_a_file_that_is_no_model_is_left_to_onnx_runtime(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"\xff" * 40)
    assert Weights(PAGE).of(tmp_path / "model.onnx") == {}


def test_a_file_that_is_truncated_while_it_is_read_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path)
    monkeypatch.setattr(os, "preadv", lambda *_: 0)
    with pytest.raises(EnvironmentProblem, match=r"cannot read the weights of .*model\.onnx") as caught:
        Weights(PAGE).of(path)
    assert caught.value.why == "the file became shorter while it was read"


@pytest.mark.parametrize(
    ("enabled", "size", "expected"),
    [
        ("always [madvise] never", "2097152", 2 << 20),
        ("[always] madvise never", "2097152", 2 << 20),
        ("always madvise [never]", "2097152", 0),
        (None, None, 0),
        ("[always] madvise never", "", 0),
    ],
)
def test_the_system_says_whether_it_has_large_pages(
    tmp_path: Path, enabled: str | None, size: str | None, expected: int
) -> None:
    if enabled is not None and size is not None:
        (tmp_path / "enabled").write_text(f"{enabled}\n")
        (tmp_path / "hpage_pmd_size").write_text(f"{size}\n")
    assert large_page_bytes(tmp_path) == expected


def test_drafters_come_and_go_with_their_weights(drafters_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Weights] = []

    def texts(page: int) -> tuple[list[list[tuple[int, ...]]], list[int]]:
        """Return the texts with each drafter, and the number of files in memory before, with and after it."""
        monkeypatch.setattr(backend, "Weights", lambda: made.append(Weights(page)) or made[-1])
        found, files = [], []
        with Engine.load(drafters_folder, threads=1, check="sizes") as engine:
            files.append(len(made[-1]._files))
            for name in ("twin", "noisy"):
                engine.load_drafter(name)
                files.append(len(made[-1]._files))
                out = engine.generate([[5, 6, 7]] * 2, SamplingParams(max_tokens=24), draft=name)
                found.append([each.token_ids for each in out])
                engine.unload_drafter(name)
                gc.collect()
                files.append(len(made[-1]._files))
        return found, files

    copied, mapped = texts(PAGE), texts(0)
    assert copied[0] == mapped[0]
    assert copied[1] == [2, 3, 2, 3, 2]  # the target's file, which drafters read too, and one of each drafter
    gc.collect()
    assert not made[0]._files
