"""Measure the speed of this machine's CPU with the engine's own kernels, in about two seconds.

The probe is one fused node: transformer layers without attention, with random weights in the widths and the number
format of a target. Its weights have as many bytes as a pass of the target, up to a limit that exceeds every cache.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...plugins.cpu.one_node_model import one_node_model
from ...plugins.number_formats import kernels_of
from ...plugins.ops.quantized_linear.packed_formats import PACKED_FORMATS
from ...plugins.ops.quantized_linear.packed_weights import code_shape, columns_multiple, scale_dtype, scale_shape
from ...plugins.ops.wide_linear.packed_matrix import packed_shape
from ...plugins.temporary_folder import temporary_folder
from ..store.stages import StageStore
from .cpu_in_use import measured_on

LARGE = 256 * 2**20  # bytes
_MAX_BYTES = 128 * 2**20
_SECONDS, _MIN_TURNS = 0.6, 5
_MIN_SHARE = 0.01  # of the time of one column: what further columns take at least, so that noise gives no rate of 0
_EPSILON = "#3727c5ac"  # 1e-5


@dataclass(frozen=True)
class ProbeShape:
    """The layers to measure: ``bytes`` of weights in the number format ``kind``, with the widths of a target."""

    kind: str
    hidden: int
    queries: int
    keys: int
    inner: int
    bytes: int
    columns: int  # the larger of the two numbers of columns to measure


@dataclass(frozen=True)
class CpuSpeed:
    """Measured rates of one machine.

    ``weight_rate``: bytes of weights per second in a pass over one column. ``operation_rate``: operations per second of
    further columns. ``read_rate``: bytes per second when ``threads`` threads sum an array as large as the weights.
    """

    weight_rate: float
    operation_rate: float
    read_rate: float
    threads: int


def measure_cpu(shape: ProbeShape, library: Path, threads: int) -> CpuSpeed:
    """Measure with the kernels of ``library`` on ``threads`` threads; 0 means one per physical core."""
    from ...engines.backends.onnxruntime.loaded_graphs import open_session

    packed = packed_name(shape.kind)
    count = max(round(min(shape.bytes, _MAX_BYTES) / _layer_bytes(packed, shape)), 1)
    layers = [_Layer(packed, shape) for _ in range(count)]
    with tempfile.TemporaryDirectory(dir=temporary_folder()) as folder:
        path = Path(folder) / "probe.onnx"
        path.write_bytes(_model(layers, shape))
        session = open_session(path, threads, library)
    size, values = sum(layer.bytes for layer in layers), sum(layer.values for layer in layers)
    workers = threads or len(_cores())
    one, more = _seconds(*(_run(session, columns, layers[0].hidden) for columns in (1, shape.columns)))
    (read,) = _seconds(_reading(size, workers))  # not in turn with the others: it empties the processor's cache
    return CpuSpeed(
        weight_rate=size / one,
        operation_rate=2.0 * values * (shape.columns - 1) / max(more - one, _MIN_SHARE * one),
        read_rate=size / read,
        threads=workers,
    )


def kept_cpu_speed(store: StageStore, shape: ProbeShape, library: Path, digest: str, threads: int) -> CpuSpeed:
    """Return the speed with the kernels of ``library``, measured once for each shape, ``digest`` of it and machine."""

    def make(stage: Path) -> None:
        (stage / "speed.json").write_text(json.dumps(asdict(measure_cpu(shape, library, threads))))

    cached = store.run("cpu-speed", [digest, asdict(shape), threads, *measured_on()], make)
    return CpuSpeed(**json.loads((cached.path / "speed.json").read_bytes()))


def memory_speed(threads: int, size: int = LARGE) -> float:
    """Return the most bytes per second that ``threads`` threads read when they sum an array of ``size`` bytes.

    0 threads mean one per physical core; by default, the array is larger than caches are.
    """
    (times,) = _times(_reading(size, threads or len(_cores())))
    return size / min(times)


def packed_name(kind: str) -> str:
    """Return the packed format of the matrices of a number format; empty for float32."""
    if kind in PACKED_FORMATS:
        return kind
    kernels = kernels_of(kind)
    return kernels.packed.packed if kernels else ""


class _Layer:
    """Random weights of one layer: three matrices for attention and MLP each two."""

    def __init__(self, packed: str, shape: ProbeShape) -> None:
        multiple = columns_multiple(packed) if packed else 1
        self.hidden, self.inner, self.queries = (
            -(-width // multiple) * multiple for width in (shape.hidden, shape.inner, shape.queries)
        )
        self.keys = shape.keys
        sizes = [
            (self.queries + 2 * self.keys, self.hidden), (self.hidden, self.queries), (2 * self.inner, self.hidden),
            (self.hidden, self.inner),
        ]  # fmt: skip
        self.rows = [rows for rows, _ in sizes]
        self.matrices = [list(_matrix(packed, *size)) for size in sizes]
        self.values = sum(rows * columns for rows, columns in sizes)
        self.bytes = sum(array.nbytes for arrays in self.matrices for array in arrays)


def _layer_bytes(packed: str, shape: ProbeShape) -> int:
    bits = PACKED_FORMATS[packed].bits if packed else 32
    values = shape.hidden * (2 * shape.queries + 2 * shape.keys + 3 * shape.inner)
    return values * bits // 8


def _matrix(packed: str, rows: int, columns: int) -> Iterator[Any]:
    rng = np.random.default_rng(0)
    if not packed:
        yield rng.random(packed_shape(rows, columns), np.float32) / columns
        return
    yield rng.integers(0, 256, code_shape(packed, rows, columns), dtype=np.uint8)
    dtype = np.dtype(scale_dtype(packed))
    scales = np.zeros(scale_shape(packed, rows, columns), dtype)
    yield scales if dtype == np.uint8 else scales + dtype.type(1e-3)


def _model(layers: list[_Layer], shape: ProbeShape) -> bytes:
    """Return a model of one fused node: norm, projections, a gated MLP, and the two sums of each layer."""
    packed = packed_name(shape.kind)
    op, form = ("QuantizedLinear", f" format={packed}") if packed else ("WideLinear", "")
    norm = np.ones(layers[0].hidden, np.float32)
    inputs: dict[str, Any] = {"x": "float32", "norm": norm}
    inputs |= {
        f"weight.{number}.{at}.{part}": array
        for number, layer in enumerate(layers)
        for at, arrays in enumerate(layer.matrices)
        for part, array in enumerate(arrays)
    }
    names = {name: at for at, name in enumerate(inputs)}
    lines: list[str] = []
    num_values = len(inputs)

    def step(kind: str, input_name: str, results: int, attributes: str = "") -> list[int]:
        nonlocal num_values
        ids = [*range(num_values, num_values + results)]
        num_values += results
        lines.append(f"{kind} {input_name} > {','.join(map(str, ids))} {attributes}".rstrip())
        return ids

    def linear(x: int, number: int, at: int) -> int:
        layer = layers[number]
        weights = [names[f"weight.{number}.{at}.{part}"] for part in range(len(layer.matrices[at]))]
        return step(op, ",".join(map(str, [x, *weights])), 1, f"{form} rows={layer.rows[at]}".strip())[0]

    x = 0
    for number, layer in enumerate(layers):
        (normed,) = step("RMSNormalization", f"{x},1", 1, f"epsilon={_EPSILON}")
        widths = f"{layer.queries},{layer.keys},{layer.keys}"
        heads, *_ = step("Split", str(linear(normed, number, 0)), 3, f"sizes={widths}")
        (x,) = step("Add", f"{x},{linear(heads, number, 1)}", 1)
        (normed,) = step("RMSNormalization", f"{x},1", 1, f"epsilon={_EPSILON}")
        gate, up = step("Split", str(linear(normed, number, 2)), 2, f"sizes={layer.inner},{layer.inner}")
        (open_gate,) = step("Sigmoid", str(gate), 1)
        (silu,) = step("Mul", f"{gate},{open_gate}", 1)
        (product,) = step("Mul", f"{silu},{up}", 1)
        (x,) = step("Add", f"{x},{linear(product, number, 3)}", 1)
    program = "\n".join([*lines, f"outputs {x}"])
    return one_node_model("FusedRegion", inputs, {"y": "float32"}, {"program": program, "inputs": len(inputs)})


def _run(session: Any, columns: int, width: int) -> Callable[[], object]:
    fed = {"x": np.ones((1, columns, width), np.float32)}
    return lambda: session.run(None, fed)


def _seconds(*runs: Callable[[], object]) -> list[float]:
    """Return the median seconds of each run."""
    return [float(np.median(each)) for each in _times(*runs)]


def _times(*runs: Callable[[], object]) -> list[list[float]]:
    """Return the seconds of each run, taken in turn, so that a slow moment of the machine affects them all."""
    times: list[list[float]] = [[] for _ in runs]
    spent, turns = 0.0, -1  # the first turn is not counted
    while turns < _MIN_TURNS or spent < _SECONDS:
        turns += 1
        for each, run in zip(times, runs, strict=True):
            started = time.perf_counter()
            run()
            each.append(time.perf_counter() - started)
            spent += each[-1]
    return [each[1:] for each in times]


def _reading(size: int, threads: int) -> Callable[[], object]:
    """Return a function that sums an array of ``size`` bytes on ``threads`` threads."""
    parts = np.array_split(np.ones(max(size // 8, threads), np.int64), threads)
    pool = ThreadPoolExecutor(threads)
    return lambda: list(pool.map(np.sum, parts))


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
