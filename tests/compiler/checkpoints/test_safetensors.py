"""A safetensors file written in any order is read by the format's own library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from peagle.compiler.checkpoints.safetensors import Slot, read_header, writing_shard

_DTYPES = {"F32": "<f4", "BF16": "<u2", "F8_E4M3": "u1", "I64": "<i8", "BOOL": "?", "F16": "<f2"}


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tensors=st.dictionaries(
        st.text("abc.é", min_size=1, max_size=8),
        st.tuples(st.sampled_from(sorted(_DTYPES)), st.lists(st.integers(0, 5), max_size=3)),
        min_size=1,
        max_size=6,
    ),
    cut=st.integers(0, 100),
)
def test_shard_reads_back_for_any_write_order(
    tensors: dict[str, tuple[str, list[int]]], cut: int, tmp_path: Path
) -> None:
    generator = np.random.default_rng(cut)
    values = {name: generator.integers(0, 2, shape).astype(_DTYPES[dtype]) for name, (dtype, shape) in tensors.items()}
    slots = {name: Slot(tensors[name][0], value.shape, value.nbytes) for name, value in values.items()}
    path = tmp_path / "shard.safetensors"
    with writing_shard(path, slots) as shard:
        for name in reversed(list(values)):
            flat = values[name].reshape(-1)
            shard.write(name, flat[:cut])
            shard.write(name, flat[cut:])
    for name, entry in read_header(path).items():
        width = values[name].dtype.itemsize
        assert entry.begin % width == 0
        assert path.read_bytes()[entry.begin : entry.end] == values[name].tobytes()
    plain = {n: v for n, v in values.items() if tensors[n][0] in ("F32", "F16", "I64", "BOOL")}
    if plain.keys() == values.keys():
        for name, value in load_file(path).items():
            np.testing.assert_array_equal(value, values[name])


def test_a_file_names_the_framework(tmp_path: Path) -> None:
    """transformers refuses a file that does not."""
    path = tmp_path / "one.safetensors"
    with writing_shard(path, {"x": Slot("F32", (), 4)}) as shard:
        shard.write("x", np.asarray(1.5, "<f4"))
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["__metadata__"] == {"format": "pt"}
    assert load_file(path)["x"] == 1.5
