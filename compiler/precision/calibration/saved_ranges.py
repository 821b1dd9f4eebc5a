"""Calibrated ranges, in memory and as two files: ``scales.safetensors`` with the values and ``scales.json``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ....engines.folder.records import FileEntry
from ....graphs.targets.range_shapes import RangeShapes
from ....plugins.errors import BuildError
from ....plugins.problems import listed
from ...checkpoints.json_files import parse_json
from ...checkpoints.safetensors import read_header, read_rows
from ...store.atomic_files import flush_tree, writing
from .calibration_options import FACTS

Array = np.ndarray[Any, Any]

NUMBERS = "scales.safetensors"
FORMAT = 1
# Tensor names are group:name.
_GROUPS = ("inputs", "caches", "expert_tokens", "squares", "clipped", "peaks", "head_costs")
_LISTED = 8
_AGAIN = "calibrate the model again"


@dataclass(frozen=True)
class Facts:
    """Origin of ranges. ``fingerprint`` is the checkpoint's, ``samples`` the digest of the token sequences."""

    model: str
    architecture: str
    fingerprint: str
    method: Mapping[str, Any]
    dtype: str
    dataset: str
    samples: str
    num_samples: int
    num_tokens: int
    versions: Mapping[str, str]
    warnings: tuple[str, ...] = field(default=())
    device: str = "cpu"


@dataclass(frozen=True)
class Scales:
    """Largest magnitudes (amax, float32), not yet divided by the largest value of a type.

    ``inputs``: input of a matmul, by the graph's name of its weight: one value, or one per expert ``[E]``.
    ``caches``: ``k_cache.i`` and ``v_cache.i``, the graph's names. ``expert_tokens``: int64 ``[E]`` by module.
    ``squares``: the mean square of each input of a linear, ``[columns]`` by the name of its weight; the experts of a
    layer share one.
    ``clipped``: the share of observed values beyond a range, for inputs and caches that have any, in the range's shape.
    ``peaks``: the largest magnitude in each half of the samples, ``[..., 2]``. ``head_costs``: the costs of an LM head
    in a number format, ``[2]`` by its name (``lm_head_costs``). Earlier calibrations lack the last four.
    """

    inputs: Mapping[str, Array]
    caches: Mapping[str, Array]
    expert_tokens: Mapping[str, Array]
    facts: Facts
    squares: Mapping[str, Array] = field(default_factory=dict)
    clipped: Mapping[str, Array] = field(default_factory=dict)
    peaks: Mapping[str, Array] = field(default_factory=dict)
    head_costs: Mapping[str, Array] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[str, Array]:
        """Return the ranges of inputs and caches in one table."""
        return {**self.inputs, **self.caches}

    def check(self, shapes: RangeShapes) -> None:
        """Raise ``BuildError`` naming each range that is missing, unknown to the model, or not a positive number."""
        complaints: list[str] = []
        for ranges, expected in ((self.inputs, shapes.inputs), (self.caches, shapes.caches)):
            complaints += _misfits(ranges, expected) + [
                f"{name} {wrong}" for name, value in ranges.items() if (wrong := _not_a_range(value))
            ]
        complaints += [
            f"the mean squares of {name} are not one number of 0 or more per column"
            for name, value in self.squares.items()
            if value.ndim != 1 or not np.all(np.isfinite(value)) or np.any(value < 0)
        ]
        shaped = {name: value.shape for name, value in self.ranges.items()}
        complaints += [
            f"{noun} of {name} do not have the shape of its range"
            for noun, values, more in (("shares", self.clipped, ()), ("peaks", self.peaks, (2,)))
            for name, value in values.items()
            if value.shape != (*shaped.get(name, (0,)), *more) or not np.all(np.isfinite(value)) or np.any(value < 0)
        ]
        complaints += [
            f"the costs of an LM head in {name} are not two numbers of 0 or more"
            for name, value in self.head_costs.items()
            if value.shape != (2,) or not np.all(np.isfinite(value)) or np.any(value < 0)
        ]
        complaints += _misfits(self.expert_tokens, shapes.experts)
        complaints += [f"{n} has negative counts" for n, value in self.expert_tokens.items() if np.any(value < 0)]
        if complaints:
            raise BuildError(
                f"the calibrated ranges of {self.facts.model} cannot be used: {listed(complaints, _LISTED)}",
                why="the input of every quantized weight needs a positive, finite range",
                fix=f"{_AGAIN}, with texts that use all of its layers and experts",
            )

    def check_model(self, fingerprint: str) -> None:
        """Raise ``BuildError`` unless the ranges belong to the checkpoint with this fingerprint."""
        if self.facts.fingerprint != fingerprint:
            raise BuildError(
                f"the calibrated ranges belong to {self.facts.model}, not to these weights",
                why="ranges of other weights would clip values, or waste resolution",
                fix=f"{_AGAIN}, or use the checkpoint that was calibrated",
            )

    def save(self, folder: Path) -> None:
        """Write both files into ``folder``, creating it; each file appears atomically, the values first."""
        from safetensors.numpy import save_file

        tensors = {
            f"{group}:{name}": np.asarray(value, order="C")
            for group in _GROUPS
            for name, value in getattr(self, group).items()
        }
        with writing(folder, sum(value.nbytes for value in tensors.values())):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(prefix=".scales.", dir=folder) as scratch:
                save_file(tensors, Path(scratch, NUMBERS))
                Path(scratch, NUMBERS).chmod(0o644)  # the library makes it private
                entry = FileEntry.of(Path(scratch, NUMBERS))
                content = {"format": FORMAT, "sha256": entry.sha256, **asdict(self.facts)}
                Path(scratch, FACTS).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
                flush_tree(Path(scratch))
                for name in (NUMBERS, FACTS):
                    Path(scratch, name).rename(folder / name)
            flush_tree(folder)

    @classmethod
    def load(cls, folder: Path, shapes: RangeShapes) -> Scales:
        """Load ranges written by ``save``, and check them against the model's shapes.

        Raises ``BuildError`` for damaged files and mismatches.
        """
        facts, sha256 = _read_facts(folder / FACTS)
        groups: dict[str, dict[str, Array]] = {group: {} for group in _GROUPS}
        header = read_header(folder / NUMBERS)
        if FileEntry.of(folder / NUMBERS).sha256 != sha256:
            raise BuildError(
                f"{folder / NUMBERS} does not match {FACTS}",
                why="one of the files was changed or comes from another calibration",
                fix=f"copy both files again, or {_AGAIN}",
            )
        for key, entry in header.items():
            group, _, name = key.partition(":")
            if group not in groups or entry.dtype != ("I64" if group == "expert_tokens" else "F32"):
                raise BuildError(f"{folder / NUMBERS} has {key} in {entry.dtype}", fix=_AGAIN)
            rows = read_rows(key, entry, 0, entry.shape[0] if entry.shape else 1)
            groups[group][name] = rows.reshape(entry.shape)
        scales = cls(facts=facts, **groups)
        scales.check(shapes)
        return scales


def _misfits(ranges: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> list[str]:
    missing = [f"{name} is missing" for name in shapes if name not in ranges]
    unknown = [f"{name} is unknown to the model" for name in ranges if name not in shapes]
    wrong = [
        f"{name} has shape {list(ranges[name].shape)}, expected {list(shape)}"
        for name, shape in shapes.items()
        if name in ranges and ranges[name].shape != shape
    ]
    return missing + unknown + wrong


def _not_a_range(value: Array) -> str:
    """Describe what is wrong with a value; for experts, by number."""
    kinds = {
        "NaN": np.isnan(value), "infinite": np.isinf(value), "zero": value == 0, "negative": value < 0,
    }  # fmt: skip
    faults = []
    for problem, selected in kinds.items():
        if np.any(selected):
            experts = [str(e) for e in np.flatnonzero(selected)] if value.ndim else []
            faults.append(problem + (f" for experts {listed(experts, _LISTED)}" if experts else ""))
    return f"is {' and '.join(faults)}" if faults else ""


def _read_facts(path: Path) -> tuple[Facts, str]:
    try:
        content = parse_json(path.read_bytes())
        if content.pop("format") != FORMAT:
            raise ValueError("the file has an unsupported format version")
        sha256 = content.pop("sha256")
        facts = Facts(**content | {"warnings": tuple(content["warnings"])})
    except OSError as error:
        fix = f"check that the file exists and is readable, or {_AGAIN}"
        raise BuildError(f"cannot read {path}", why=str(error), fix=fix) from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BuildError(f"{path} is not a valid file of calibrated ranges", why=str(error), fix=_AGAIN) from None
    return facts, str(sha256)
