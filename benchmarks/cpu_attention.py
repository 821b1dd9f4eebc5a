"""Measure the attention of all layers in a pass, in milliseconds: the project's CPU kernel beside ONNX Runtime's.

    python benchmarks/cpu_attention.py --columns 1,3,5,8 --contexts 128,1500 --caches float32,float16,int8
    python benchmarks/cpu_attention.py --columns 5,9,512 --windows plain,chain,tree

One model has as many attention nodes as the target has layers, each with its own caches, so that these come from memory
as in a real pass. GroupQueryAttention rotates queries and keys itself; CachedAttention gets rotated ones. For
CachedAttention, a window is plain, or has an ancestor mask: a chain, or a tree whose last eight columns are drafts that
branch in two. All variants take turns; the table shows medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from peagle.plugins.cpu.compile import compile_library
from peagle.plugins.op_spec import DOMAIN, OPSET, VERSION
from peagle.plugins.ops.cached_attention.int8_caches import codes_of

CONTRIB = "com.microsoft"
KINDS = ("float32", "float16", "int8")  # cache types of the project's kernel
WINDOWS = ("plain", "chain", "tree")
DRAFTS = 8  # at most, in a tree
REPEATS = 15


def main() -> int:
    """Print a table with a row per context and number of columns."""
    options = parse()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        library.write_bytes(compile_library().code)
        print(f"{options.layers} layers, {options.heads} heads on {options.key_heads} of {options.size}")
        ours_of = [(kind, window) for kind in options.caches for window in options.windows]
        print(
            "context  rows  columns  GroupQueryAttention",
            *(f"{kind:>7s}, {each:5s}" for kind, each in ours_of),
            "  (ms)",
        )
        for context in options.contexts:
            for columns in options.columns:
                runs = [fused_of(options, context, columns)]
                runs += [kernel_of(options, library, context, columns, *each) for each in ours_of]
                times: list[list[float]] = [[] for _ in runs]
                for _ in range(REPEATS):
                    for run, into in zip(runs, times, strict=True):
                        begin = time.perf_counter()
                        run()
                        into.append(1e3 * (time.perf_counter() - begin))
                theirs, *ours = (statistics.median(each[3:]) for each in times)
                shown = " ".join(f"{each:14.2f}" for each in ours)
                print(f"{context:7d} {options.rows:5d} {columns:8d} {theirs:20.2f} {shown}", flush=True)
    return 0


def parse() -> argparse.Namespace:
    """Parse the command line; the default model is SmolLM2-135M."""

    def numbers(text: str) -> list[int]:
        return [int(each) for each in text.split(",")]

    def names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
        def split(text: str) -> list[str]:
            if unknown := {*text.split(",")} - {*known}:
                raise argparse.ArgumentTypeError(f"{min(unknown)!r} is not one of {', '.join(known)}")
            return text.split(",")

        return split

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("layers", 30), ("heads", 9), ("key-heads", 3), ("size", 64), ("rows", 1), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--caches", type=names(KINDS), default=["float32"], help=f"cache types: {', '.join(KINDS)}")
    parser.add_argument(
        "--windows", type=names(WINDOWS), default=["plain"], help=f"of CachedAttention: {', '.join(WINDOWS)}"
    )
    parser.add_argument("--columns", type=numbers, default=[1, 2, 3, 5, 8])
    parser.add_argument("--contexts", type=numbers, default=[128, 1500])
    return parser.parse_args()


def kernel_of(
    options: argparse.Namespace, library: Path, context: int, columns: int, cache_type: str, window: str = "plain"
) -> Callable[[], Any]:
    """Return a run of the project's kernel in every layer."""
    rows, q, k = shapes(options, columns)
    start = np.full(rows, context, np.int64)
    fed = {"q": random(q), "k": random(k), "v": random(k), "start": start}
    fed |= {} if window == "plain" else {"ancestors": np.stack([ancestors_of(columns, window)] * rows)}
    last = [] if window == "plain" else ["", "ancestors"]
    nodes = [
        ("CachedAttention", ["q", "k", "v", f"k{i}", f"v{i}", "start", *last], [f"y{i}", f"k{i}_out", f"v{i}_out"])
        for i in range(options.layers)
    ]
    attributes = {"scale": 0.125, "scaled": int(cache_type == "int8")}
    return session(options, nodes, DOMAIN, attributes, fed, context + columns, library, cache_type)


def ancestors_of(columns: int, window: str) -> Any:
    """Return the columns that each column sees, bool [S, S]; in a tree, the parent of draft i is draft (i - 1) // 2."""
    sees = np.tri(columns, k=-1, dtype=bool)
    root = columns - 1 - min(DRAFTS, columns - 1)
    for draft in range(1, columns - root if window == "tree" else 0):
        parent = root + (draft - 1) // 2
        sees[root + draft] = sees[parent]
        sees[root + draft, parent] = True
    return sees


def fused_of(options: argparse.Namespace, context: int, columns: int) -> Callable[[], Any]:
    """Return a run of ONNX Runtime's kernel in every layer; it takes one row if there are several columns."""
    rows, _, _ = shapes(options, columns)
    if rows > 1 < columns:
        return lambda: None
    end = context + columns
    fed = {"q": random((rows, columns, options.heads * options.size))}
    fed |= {name: random((rows, columns, options.key_heads * options.size)) for name in ("k", "v")}
    fed |= {"last": np.full(rows, end - 1, np.int32), "total": np.array(end, np.int32)}
    fed |= {name: random((end, options.size // 2)) for name in ("cos", "sin")}
    nodes = [
        (
            "GroupQueryAttention",
            ["q", "k", "v", f"k{i}", f"v{i}", "last", "total", "cos", "sin"],
            [f"y{i}", f"k{i}_out", f"v{i}_out"],
        )
        for i in range(options.layers)
    ]
    attributes = {"num_heads": options.heads, "kv_num_heads": options.key_heads, "do_rotary": 1, "scale": 0.125}
    return session(options, nodes, CONTRIB, attributes, fed, end, None)


def shapes(options: argparse.Namespace, columns: int) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Return the number of rows, and the shapes of queries and of new keys."""
    rows = options.rows
    return rows, (rows, options.heads, columns, options.size), (rows, options.key_heads, columns, options.size)


def random(shape: tuple[int, ...]) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def kept(numbers: Any, cache_type: str) -> Any:
    return codes_of(numbers) if cache_type == "int8" else numbers.astype(cache_type)


def aligned(array: Any) -> Any:
    """Return the array aligned to a cache line, as engines store it."""
    room = np.empty(array.nbytes + 64, np.uint8)
    first = -room.ctypes.data % 64
    copy = room[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def session(
    options: argparse.Namespace,
    nodes: list[Any],
    domain: str,
    attributes: dict[str, Any],
    fed: dict[str, Any],
    length: int,
    library: Path | None,
    cache_type: str = "float32",
) -> Callable[[], Any]:
    """Return a run of these nodes over arrays bound once, with caches updated in place."""
    import onnx
    import onnxruntime
    from onnx import helper

    def value(name: str, array: Any) -> Any:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)

    cache = (options.rows, options.key_heads, length, options.size)
    caches = {f"{name}{i}": aligned(kept(random(cache), cache_type)) for i in range(options.layers) for name in "kv"}
    results = {f"y{i}": np.empty(fed["q"].size, np.float32) for i in range(options.layers)}
    graph = helper.make_graph(
        [helper.make_node(op, names, out, domain=domain, **attributes) for op, names, out in nodes],
        "attention",
        [value(name, array) for name, array in (fed | caches).items()],
        [helper.make_tensor_value_info(name, 1, None) for name in results]
        + [value(f"{name}_out", array) for name, array in caches.items()],
    )
    opsets = [helper.make_opsetid(*each) for each in (("", OPSET), (DOMAIN, VERSION), (CONTRIB, 1))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads, settings.log_severity_level = options.threads, 4
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if library is not None:
        settings.register_custom_ops_library(str(library))
    made = onnxruntime.InferenceSession(onnx.ModelProto.SerializeToString(model), settings, ["CPUExecutionProvider"])
    binding = made.io_binding()
    for name, array in (fed | caches).items():
        binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
    for name in results:
        binding.bind_output(name)
    for name, array in caches.items():
        binding.bind_ortvalue_output(f"{name}_out", onnxruntime.OrtValue.ortvalue_from_numpy(array))
    return lambda: made.run_with_iobinding(binding)


if __name__ == "__main__":
    sys.exit(main())
