"""Measure the routed experts of one layer on this CPU, by the number of tokens in a window.

    make bench-experts                                      # a minute; ARGS="--format q4_k --inner 768" and the like

One ``QuantizedExperts`` with random matrices runs on random tokens, each with experts of its own drawing, through ONNX
Runtime with two threads. The output has the median time, the distinct experts, the speed at which their matrices are
read, and the operations per second.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from peagle.plugins.cpu.compile import compile_library
from peagle.plugins.cpu.one_node_model import one_node_model
from peagle.plugins.ops import OPS
from peagle.plugins.ops.quantized_linear.cpu_cases import random_matrix
from peagle.plugins.ops.quantized_linear.packed_weights import FORMATS

MANY = 64  # tokens from which fewer repetitions are enough


def stack(name: str, experts: int, rows: int, columns: int) -> tuple[Any, Any]:
    """Return packed codes and scales: one random matrix for all experts, in memory of their own."""
    codes, scales = random_matrix(name, rows, columns)
    return np.repeat(codes[None], experts, axis=0), np.repeat(scales[None], experts, axis=0)


def session(options: argparse.Namespace, library: Path) -> tuple[Any, float]:
    """Return a session of the node, and the bytes of one expert."""
    inner, hidden = options.inner, options.hidden
    stacks = (
        *stack(options.format, options.experts, 2 * inner, hidden),
        *stack(options.format, options.experts, hidden, inner),
    )
    names = [operand.name for operand in OPS["QuantizedExperts"].inputs]
    inputs = dict(zip(names, ["float32", "int64", "float32", *stacks], strict=False))
    attributes = {"gate_up_format": options.format, "down_format": options.format, "inner": inner, "hidden": hidden}
    model = one_node_model("QuantizedExperts", inputs, {"y": "float32"}, attributes)
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    settings.register_custom_ops_library(str(library))
    made = onnxruntime.InferenceSession(model, settings, providers=["CPUExecutionProvider"])
    return made, sum(each.nbytes for each in stacks) / options.experts


def measure(made: Any, tokens: int, options: argparse.Namespace) -> tuple[float, float]:
    """Return the median seconds of a call, and the mean number of distinct experts."""
    rng = np.random.default_rng(tokens)
    seconds, distinct = [], []
    for _ in range(options.calls if tokens < MANY else max(options.calls // 5, 1)):
        experts = np.array([rng.permutation(options.experts)[: options.chosen] for _ in range(tokens)])
        feed = {
            "x": rng.normal(size=(tokens, options.hidden)).astype(np.float32),
            "experts": experts,
            "scores": rng.random((tokens, options.chosen), np.float32),
        }
        begin = time.perf_counter()
        made.run(None, feed)
        seconds.append(time.perf_counter() - begin)
        distinct.append(len(np.unique(experts)))
    return statistics.median(seconds), statistics.fmean(distinct)


def main() -> None:
    """Read the options, measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--format", choices=FORMATS, default="q4_0")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--chosen", type=int, default=8, help="experts per token")
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--inner", type=int, default=768)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 5, 8, 155])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--calls", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        library.write_bytes(compile_library().code)
        made, of_expert = session(options, library)
        print(f"{options.format}, {options.experts} experts of {of_expert / 1e6:.2f} MB, {options.threads} threads")
        print("tokens        ms   x one  distinct   GB/s   Gop/s")
        first = 0.0
        for tokens in options.tokens:
            seconds, distinct = measure(made, tokens, options)
            first = first or seconds
            operations = 2 * tokens * options.chosen * 3 * options.hidden * options.inner
            print(
                f"{tokens:6} {1e3 * seconds:9.3f} {seconds / first:7.2f} {distinct:9.1f} "
                f"{distinct * of_expert / seconds / 1e9:6.1f} {operations / seconds / 1e9:7.0f}"
            )


if __name__ == "__main__":
    main()
