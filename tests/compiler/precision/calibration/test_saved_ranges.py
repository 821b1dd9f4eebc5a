"""Saved ranges are read back unchanged, and unusable ranges are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from peagle.compiler.precision.calibration.calibration_options import FACTS
from peagle.compiler.precision.calibration.obtain_ranges import describe
from peagle.compiler.precision.calibration.rarely_used_experts import fill_unseen
from peagle.compiler.precision.calibration.saved_ranges import NUMBERS, Facts, Scales
from peagle.engines.folder.records import FileEntry
from peagle.graphs.targets.range_shapes import RangeShapes
from peagle.plugins.errors import BuildError

EXPERTS = "model.layers.0.mlp.experts"
WANTED = RangeShapes(
    {"lm_head.weight": (), f"{EXPERTS}.gate_up_proj": (3,), f"{EXPERTS}.down_proj": (3,)},
    {"k_cache.0": (), "v_cache.0": ()},
    {EXPERTS: (3,)},
)


def good() -> Scales:
    one, three = np.float32(2.5), np.array([1, 2, 3], np.float32)
    return Scales(
        {"lm_head.weight": np.asarray(one), f"{EXPERTS}.gate_up_proj": three, f"{EXPERTS}.down_proj": three * 2},
        {"k_cache.0": np.asarray(one), "v_cache.0": np.asarray(one * 3)},
        {EXPERTS: np.array([4, 0, 9])},
        Facts("m", "A", "f" * 64, {"name": "max"}, "float32", "d", "s", 2, 20, {"torch": "2"}, ("a warning",)),
        {"lm_head.weight": np.array([0.5, 0, 2], np.float32)},
        {f"{EXPERTS}.down_proj": np.array([0, 0.25, 0], np.float32)},
        {"k_cache.0": np.array([2.5, 2], np.float32), f"{EXPERTS}.down_proj": np.ones((3, 2), np.float32)},
    )


def test_round_trip_is_lossless(tmp_path: Path) -> None:
    good().save(tmp_path / "scales")
    back = Scales.load(tmp_path / "scales", WANTED)
    assert back.facts == good().facts
    for group in ("inputs", "caches", "expert_tokens", "squares", "clipped", "peaks"):
        ours, theirs = getattr(good(), group), getattr(back, group)
        assert {n: (v.dtype, v.shape, v.tobytes()) for n, v in ours.items()} == {
            n: (v.dtype, v.shape, v.tobytes()) for n, v in theirs.items()
        }
    assert sorted(path.name for path in (tmp_path / "scales").iterdir()) == [FACTS, NUMBERS]
    good().save(tmp_path / "scales")  # over the old ones


@pytest.mark.parametrize(("value", "said"), [(0.0, "zero"), (np.nan, "NaN"), (np.inf, "infinite"), (-1.0, "negative")])
@pytest.mark.parametrize(
    ("key", "said_where"),
    [("inputs:lm_head.weight", ""), ("caches:v_cache.0", ""), (f"inputs:{EXPERTS}.down_proj", " for experts 1")],
)
def test_invalid_range_is_rejected_by_name(value: float, said: str, key: str, said_where: str, tmp_path: Path) -> None:
    good().save(tmp_path)
    tensors = dict(load_file(tmp_path / NUMBERS))
    tensors[key] = tensors[key].copy()
    tensors[key][(1,) if tensors[key].ndim else ()] = value
    rewrite(tmp_path, tensors)
    with pytest.raises(BuildError) as refused:
        Scales.load(tmp_path, WANTED)
    assert f"{key.partition(':')[2]} is {said}{said_where}" in str(refused.value)
    assert "calibrate the model again" in str(refused.value)


def test_an_unreadable_file_is_to_be_made_readable_before_anything_is_calibrated_again(tmp_path: Path) -> None:
    (tmp_path / FACTS).mkdir()
    with pytest.raises(BuildError, match="cannot read") as refused:
        Scales.load(tmp_path, WANTED)
    assert refused.value.fix.startswith("check that the file exists and is readable, or calibrate")


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_squares_that_no_numbers_have_are_refused(value: float, tmp_path: Path) -> None:
    good().save(tmp_path)
    tensors = dict(load_file(tmp_path / NUMBERS))
    rewrite(tmp_path, tensors | {"squares:lm_head.weight": np.array([1, value], np.float32)})
    with pytest.raises(BuildError, match=r"squares of lm_head\.weight"):
        Scales.load(tmp_path, WANTED)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clipped:v_cache.0", [0.5]), ("clipped:v_cache.0", -0.5), ("clipped:lm_head.bias", 0.5),
        ("peaks:k_cache.0", [1, 2, 3]), ("peaks:k_cache.0", [1, np.inf]),
    ],
)  # fmt: skip
def test_shares_and_peaks_that_no_range_has_are_refused(key: str, value: Any, tmp_path: Path) -> None:
    good().save(tmp_path)
    rewrite(tmp_path, dict(load_file(tmp_path / NUMBERS)) | {key: np.array(value, np.float32)})
    with pytest.raises(BuildError, match=rf"of {key.partition(':')[2]} do not have the shape of its range"):
        Scales.load(tmp_path, WANTED)


def test_ranges_of_an_earlier_version_were_not_looked_at_as_closely(tmp_path: Path) -> None:
    good().save(tmp_path)
    tensors = dict(load_file(tmp_path / NUMBERS))
    rewrite(tmp_path, {n: v for n, v in tensors.items() if not n.startswith(("squares:", "clipped:", "peaks:"))})
    facts = json.loads((tmp_path / FACTS).read_text())
    del facts["device"]
    (tmp_path / FACTS).write_text(json.dumps(facts))
    old = Scales.load(tmp_path, WANTED)
    assert (old.squares, old.clipped, old.peaks, old.facts.device) == ({}, {}, {}, "cpu")
    assert "saturation" not in describe(old)


def rewrite(folder: Path, tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, folder / NUMBERS)
    facts = json.loads((folder / FACTS).read_text()) | {"sha256": FileEntry.of(folder / NUMBERS).sha256}
    (folder / FACTS).write_text(json.dumps(facts))


@pytest.mark.parametrize("key", ["inputs:lm_head.weight", "caches:k_cache.0", f"expert_tokens:{EXPERTS}"])
def test_missing_unknown_and_misshaped_ranges_are_named(key: str, tmp_path: Path) -> None:
    good().save(tmp_path)
    tensors = dict(load_file(tmp_path / NUMBERS))
    value = tensors.pop(key)
    name = key.partition(":")[2]
    for changed, said in (
        (tensors, f"{name} is missing"),
        ({**tensors, key: value, f"{key}.x": value}, f"{name}.x is unknown to the model"),
        ({**tensors, key: np.stack([value, value])}, f"{name} has shape [2"),
    ):
        rewrite(tmp_path, changed)
        with pytest.raises(BuildError) as refused:
            Scales.load(tmp_path, WANTED)
        assert said in str(refused.value)


def test_wrong_tensor_dtype_is_rejected(tmp_path: Path) -> None:
    good().save(tmp_path)
    tensors = dict(load_file(tmp_path / NUMBERS))
    for key, value in (("weights:x", np.zeros(2, np.float32)), ("inputs:lm_head.weight", np.array(1))):
        rewrite(tmp_path, tensors | {key: value})
        with pytest.raises(BuildError, match=key):
            Scales.load(tmp_path, WANTED)


def test_one_flipped_bit_is_noticed(tmp_path: Path) -> None:
    good().save(tmp_path)
    whole = (tmp_path / NUMBERS).read_bytes()
    (tmp_path / NUMBERS).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(BuildError, match=r"does not match scales\.json"):
        Scales.load(tmp_path, WANTED)


@pytest.mark.parametrize("name", [FACTS, NUMBERS])
def test_damaged_and_missing_files_are_refused(name: str, tmp_path: Path) -> None:
    good().save(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for damaged in (b"", whole[:-3], bytes([whole[0] ^ 1]) + whole[1:], b"[]"):
        (tmp_path / name).write_bytes(damaged)
        with pytest.raises(BuildError):
            Scales.load(tmp_path, WANTED)
    (tmp_path / name).unlink()
    with pytest.raises(BuildError, match=name):
        Scales.load(tmp_path, WANTED)


def test_ranges_of_other_weights_are_refused() -> None:
    good().check_model("f" * 64)
    with pytest.raises(BuildError, match="not to these weights"):
        good().check_model("0" * 64)


def test_layer_without_data_is_not_filled() -> None:
    nothing = {f"{EXPERTS}.{w}": np.zeros(3, np.float32) for w in ("gate_up_proj", "down_proj")}
    filled = fill_unseen(dict(good().inputs) | nothing, {EXPERTS: np.zeros(3, np.int64)})
    with pytest.raises(BuildError, match="is zero for experts 0, 1, 2"):
        dataclasses.replace(good(), inputs=filled).check(WANTED)
