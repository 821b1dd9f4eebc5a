"""Measure the cost of a target pass by its columns: one is plain decoding, K + 1 verify K drafts.

    chrt -f 10 python benchmarks/target_columns.py demo-engine other-engine

Engines are measured side by side: a round runs every engine once at every width; results are medians of the rounds.
Batch 1, random tokens, 128 in the cache by default, and the engine's default threads. ``--apart`` also measures each
engine with its fused regions split into separate nodes, if it has any (``--lowering cpu``). ``--mapped`` also measures
each engine with its weights mapped from its files by ONNX Runtime, in the system's usual pages. ``--kernels OTHER``
also measures each engine with the kernels of another engine, over the same memory: where weights lie in memory can
matter more than the kernels.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from peagle.engines.backends.onnxruntime.kernels import library_of
from peagle.engines.backends.onnxruntime.loaded_graphs import bind, default_threads, open_session, run, tensors_of
from peagle.engines.backends.onnxruntime.weights import Weights
from peagle.engines.folder.manifest import Manifest

CONTEXT = 128


def passes(
    engine: Path,
    widths: list[int],
    context: int,
    weights: Weights | None = None,
    graph: Path | None = None,
    kernels: Path | None = None,
) -> tuple[Any, dict[int, Any]]:
    """Return the session of an engine's target and the bindings for each width.

    ``graph`` is another graph, and ``kernels`` another engine whose kernels run it.
    """
    manifest, other = Manifest.read(engine), kernels or engine
    file = graph or engine / manifest.target.file
    session = open_session(file, default_threads(manifest), library_of(other, Manifest.read(other)), weights=weights)
    vocabulary = manifest.shapes.vocab_size
    return session, {width: _bound(session, width, context, vocabulary) for width in widths}


def apart(engine: Path, folder: Path) -> Path:
    """Write the target's graph without fused regions, over the same weights, by lowering the semantic graph again."""
    import onnx_ir as ir

    from peagle.graphs.graph_files import load
    from peagle.graphs.lowering import lower, lowering_named

    manifest = Manifest.read(engine)
    file = engine / manifest.target.file
    stored = {name: value.const_value for name, value in ir.load(file).graph.initializers.items()}
    semantic = load(file.parent / "semantic.onnx")
    model = lower(
        semantic, lowering_named(str(manifest.backend.lowering)), cache_length=manifest.shapes.cache_length
    ).model
    for name, value in model.graph.initializers.items():
        value.const_value = stored[name]
    os.link(file.parent / "model.onnx.data", folder / "model.onnx.data")
    ir.save(model, folder / file.name)
    return folder / file.name


def _bound(session: Any, width: int, context: int, vocabulary: int) -> Any:
    dims, (types, _) = {"B": 1, "S": width, "E": width}, tensors_of(session)
    arrays = {  # zeros that are written: all pages of a new np.zeros are one, which never leaves the processor's cache
        given.name: np.full([dims.get(dim, dim) for dim in given.shape], 0, types[given.name].dtype)
        for given in session.get_inputs()
    }
    arrays["input_ids"][:] = np.random.default_rng(width).integers(0, vocabulary, (1, width))
    arrays["start"][:], arrays["window_len"][:], arrays["draft_len"][:] = context, width, width - 1
    sizes = {"tokens": np.int32, "num_tokens": np.int32}
    outputs = {}
    for value in session.get_outputs():
        if "_cache." in value.name:
            outputs[value.name] = arrays[value.name.removesuffix(".out")]
        elif value.name != "logits":
            shape = [dims.get(dim, dim) for dim in value.shape]
            outputs[value.name] = np.zeros(shape, sizes.get(value.name, np.float32))
    return bind(session, arrays, outputs)


def main() -> None:
    """Print a line for every engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", type=Path, nargs="+")
    parser.add_argument("--columns", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6, 8])
    parser.add_argument("--context", type=int, default=CONTEXT, help="tokens in the cache; default: %(default)s")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--apart", action="store_true")
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--kernels", type=Path, metavar="OTHER")
    arguments = parser.parse_args()
    names = [engine.name[:23] for engine in arguments.engines]
    columns, context = arguments.columns, arguments.context
    weights = {engine: Weights() for engine in arguments.engines}
    loaded = [passes(engine, columns, context, weights[engine]) for engine in arguments.engines]
    for engine in arguments.engines if arguments.mapped else ():
        names.append(f"{engine.name[:15]}, mapped")
        loaded.append(passes(engine, columns, context, Weights(large_page=0)))
    for engine in arguments.engines if arguments.kernels else ():
        names.append(f"{engine.name[:11]}, kernels")
        loaded.append(passes(engine, columns, context, weights[engine], kernels=arguments.kernels))
    for engine in arguments.engines if arguments.apart else ():
        names.append(f"{engine.name[:16]}, apart")
        with tempfile.TemporaryDirectory(dir=engine.parent) as folder:
            loaded.append(passes(engine, columns, context, graph=apart(engine, Path(folder))))
    seconds: dict[tuple[int, int], list[float]] = {}
    for _ in range(arguments.rounds + 2):
        for at, (session, bound) in enumerate(loaded):
            for width, binding in bound.items():
                began = time.perf_counter()
                run(session, binding)
                seconds.setdefault((at, width), []).append(time.perf_counter() - began)
    print(f"{'ms by columns':24}" + "".join(f"{width:>8}" for width in arguments.columns))
    for at, name in enumerate(names):
        medians = [statistics.median(seconds[at, width][2:]) * 1e3 for width in arguments.columns]
        print(f"{name:24}" + "".join(f"{median:8.1f}" for median in medians))


if __name__ == "__main__":
    main()
