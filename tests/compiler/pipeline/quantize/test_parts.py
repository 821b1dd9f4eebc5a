"""The parts of ``quantize`` that have an invariant: numbers, files, lists of modules."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file

from peagle.compiler.checkpoints.safetensors import Slot, read_header, writing_shard
from peagle.compiler.pipeline.quantize.modelopt import listed_modules
from peagle.compiler.pipeline.quantize.write import magnitude, scale_for
from peagle.compiler.precision.exclude import excluded
from peagle.plugins.numbers import to_e4m3

_FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
_DTYPES = {"F32": "<f4", "BF16": "<u2", "F8_E4M3": "u1", "I64": "<i8", "BOOL": "?", "F16": "<f2"}


@settings(deadline=None, max_examples=60)
@given(values=hnp.arrays(np.float32, st.integers(1, 40), elements=_FINITE), cut=st.integers(0, 40))
def test_codes_are_those_of_ml_dtypes_and_no_number_is_lost(values: np.ndarray, cut: int) -> None:
    scale = scale_for(magnitude([values[:cut], values[cut:]]))
    assert scale > 0
    found, expected = to_e4m3(values / scale), (values / scale).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(found, expected.view(np.uint8))
    assert np.isfinite(expected.astype(np.float32)).all()


@pytest.mark.parametrize(("amax", "scale"), [(448.0, 1.0), (0.0, 1.0), (1e-36, 1.0), (896.0, 2.0)])
def test_a_scale_is_a_positive_number(amax: float, scale: float) -> None:
    assert scale_for(amax) == np.float32(scale)


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
def test_a_shard_reads_back_whatever_order_it_is_filled_in(
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


_MODULES = st.sets(
    st.tuples(st.integers(0, 12), st.sampled_from(["mlp", "attn"]), st.sampled_from(["up", "down", "up2"])).map(
        lambda parts: "model.layers.{}.{}.{}".format(*parts)
    ),
    min_size=1,
)


@settings(deadline=None, max_examples=80)
@given(modules=_MODULES, data=st.data())
def test_the_list_of_wide_modules_matches_all_of_them_and_no_other(modules: set[str], data: st.DataObject) -> None:
    wide = data.draw(st.sets(st.sampled_from(sorted(modules)))) | {"lm_head"}
    patterns = listed_modules(wide, modules - wide)
    assert patterns == sorted(set(patterns))
    assert {m for m in modules | wide if any(fnmatchcase(m, p) for p in patterns)} == wide


def test_the_list_is_as_short_as_modelopts() -> None:
    layers = [f"model.layers.{i}.mlp.{name}" for i in range(12) for name in ("up", "down")]
    wide = ["lm_head", *layers[:4], "model.vision_tower.a.b", "model.vision_tower.c"]
    found = listed_modules(wide, set(layers) - set(wide))
    assert found == ["lm_head", "model.layers.0*", "model.layers.1.*", "model.vision_tower*"]


def test_patterns_name_modules_by_either_name() -> None:
    modules = {f"model.language_model.layers.{i}.mlp.up": f"model.layers.{i}.mlp.up" for i in range(11)}
    first = "model.language_model.layers.1.mlp.up"
    for pattern in ("layers.1.*", "model.layers.1.*", "layers.1", "language_model.layers.1.*", first, "*.1.mlp.up"):
        assert excluded(modules, [pattern]) == {first}, pattern
    assert excluded(modules, []) == set()
    assert excluded(modules, ["*"]) == set(modules)


def test_a_file_names_the_framework(tmp_path: Path) -> None:
    """transformers refuses a file that does not."""
    path = tmp_path / "one.safetensors"
    with writing_shard(path, {"x": Slot("F32", (), 4)}) as shard:
        shard.write("x", np.asarray(1.5, "<f4"))
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert header["__metadata__"] == {"format": "pt"}
    assert load_file(path)["x"] == 1.5
