"""Measure time and memory of TensorRT-RTX builds of full-width layers, ahead of time and without a GPU.

    make bench-aot                                          # or, with the [export] and [rtx] extras installed:
    python benchmarks/aot_builds.py [CASE ...]

Each case is an FP16 target as `peagle-compile build --backend tensorrt-rtx --gpu sm_120` builds it, with both profiles:
all widths of the published config.json, but fewer layers and a vocabulary of 8,192. `qwen3-coder-30b-layer` and
`gpt-oss-20b-layer` are one layer with all its experts; `qwen3-coder-30b-tied` has all 48 layers, which share one set
of weights with 16 experts, so that TensorRT compiles every layer and a machine of this size can hold them. Weights
are random. Peak memory is that of the build process, including mapped pages of the weights; time is its whole run,
without tracing and writing the graph. A case over 7 GB or 3 minutes fails. Needs Linux and 4 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from peagle.compiler.checkpoints.target_and_drafter import cache_length
from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline.plan_stages import profiles
from peagle.compiler.tensorrt.build_plan import build_plan
from peagle.compiler.tensorrt.worker_protocol import PlanFacts, PlanRequest
from peagle.engines.folder.records import Speculation
from peagle.graphs.lowering import TENSORRT, Lowered, lower
from peagle.graphs.stream_weights import attach, needed_weights
from peagle.graphs.targets import family_for
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.trace import trace_target
from peagle.plugins.errors import PeagleError

MODELS = Path(__file__).resolve().parent.parent / "compiler" / "bundled" / "models"
GPU = "sm_120"
VOCAB, MAX_SEQ_LEN, MAX_K, BATCH = 8192, 2048, 8, 8
MAX_BYTES, MAX_SECONDS = 7e9, 180.0
_LAYER = re.compile(r"\blayers\.(\d+)\.")
_BLOCK = 1 << 22  # random values that are generated; a weight repeats them


@dataclass(frozen=True)
class Case:
    """A published model with other sizes; with ``tied``, every layer uses the weights of the first."""

    model: str
    layers: int
    changes: Mapping[str, int]
    tied: bool = False


CASES = {
    "qwen3-coder-30b-layer": Case("qwen3-coder-30b", 1, {}),
    "gpt-oss-20b-layer": Case("gpt-oss-20b", 1, {}),
    "qwen3-coder-30b-tied": Case("qwen3-coder-30b", 48, {"num_experts": 16}, tied=True),
}


@dataclass(frozen=True)
class Row:
    """One build: the size of its weights on disk, and the results."""

    case: str
    layers: int
    weight_bytes: int
    facts: PlanFacts

    @property
    def problems(self) -> tuple[str, ...]:
        """The limits that were exceeded."""
        peak, seconds = self.facts.peak_rss_bytes, self.facts.seconds
        over = [f"{peak / 1e9:.2f} GB, more than {MAX_BYTES / 1e9:.0f}"] if peak > MAX_BYTES else []
        over += [f"{seconds:.0f} s, more than {MAX_SECONDS:.0f}"] if seconds > MAX_SECONDS else []
        return tuple(f"{self.case}: {text}" for text in over)


def measure(name: str, folder: Path) -> Row:
    """Build one case in ``folder``. Raises ``PeagleError`` when it cannot be built."""
    case = CASES[name]
    graph = folder / f"{name}.onnx"
    weights = write_graph(case, graph)
    request = PlanRequest(
        name=name,
        graph=graph,
        product="tensorrt-rtx",
        gpus=(GPU,),
        profiles=profiles("target", BATCH, Speculation(MAX_K, MAX_K, None), MAX_SEQ_LEN),
        layers={"KV_CACHE_UPDATE": 2 * case.layers, "PLUGIN_V3": 1},
    )
    facts = build_plan(request, folder / f"{name}.plan", Quiet())
    return Row(name, case.layers, weights, facts)


def write_graph(case: Case, path: Path) -> int:
    """Write the case's target and its weights; return the bytes of the weights."""
    config = scaled_config(case)
    spec = family_for(config).describe(config).with_taps([0])
    semantic = trace_target(Skeleton(config), spec, "float16")
    shapes = needed_weights(semantic)
    lowered = lower(semantic, TENSORRT, cache_length=cache_length(MAX_SEQ_LEN, MAX_K, TENSORRT))
    if case.tied:
        lowered = tie(lowered)
    noise = np.random.default_rng(0).standard_normal(_BLOCK, np.float32)
    attach(lowered, lambda name: _values(noise, shapes[name]), path)
    return lowered.total_bytes


def scaled_config(case: Case) -> dict[str, Any]:
    """Return the published ``config.json`` at the case's sizes, without quantization."""
    config: dict[str, Any] = json.loads((MODELS / case.model / "config.json").read_text())
    config.pop("quantization_config", None)
    config |= {"num_hidden_layers": case.layers, "vocab_size": VOCAB, **case.changes}
    config = {key: value for key, value in config.items() if not key.endswith("_token_id")}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][: case.layers]
    return config


def tie(lowered: Lowered) -> Lowered:
    """Return the graph with the first layer's weights in every layer."""
    values = lowered.model.graph.initializers
    kept = []
    for weight in lowered.weights:
        first = _LAYER.sub("layers.0.", weight.name)
        if first == weight.name:
            kept.append(weight)
        else:
            values[weight.name].replace_all_uses_with(values[first])
            del values[weight.name]
    return Lowered(lowered.model, tuple(kept))


def _values(noise: np.ndarray[Any, np.dtype[np.float32]], shape: tuple[int, ...]) -> Iterator[Any]:
    """Yield a weight's values, small enough to avoid overflow."""
    scaled, left = (noise / math.sqrt(shape[-1])).astype(np.float16), math.prod(shape)
    while left:
        count = min(left, _BLOCK)
        yield scaled[:count]
        left -= count


def table(rows: list[Row]) -> str:
    """Format the results as text."""
    lines = [f"{'case':<24}{'layers':>7}{'weights GB':>12}{'plan GB':>9}{'seconds':>9}{'peak GB':>9}"]
    for row in rows:
        facts = row.facts
        lines.append(
            f"{row.case:<24}{row.layers:>7}{row.weight_bytes / 1e9:>12.2f}{facts.size / 1e9:>9.2f}"
            f"{facts.seconds:>9.1f}{facts.peak_rss_bytes / 1e9:>9.2f}"
        )
    return "\n".join(lines)


def main() -> int:
    """Run the command line; the exit status is 1 if a case exceeds a limit or cannot be built."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}; default: all")
    chosen = parser.parse_args().cases or list(CASES)
    if unknown := [name for name in chosen if name not in CASES]:
        parser.error(f"unknown case {', '.join(unknown)}; choose from {', '.join(CASES)}")
    rows: list[Row] = []
    problems: list[str] = []
    for name in chosen:
        with tempfile.TemporaryDirectory(prefix="aot-builds-") as folder:
            began = time.monotonic()
            try:
                rows.append(measure(name, Path(folder)))
                problems += rows[-1].problems
            except PeagleError as error:
                problems.append(f"{name}: {error}")
            print(f"{name}: {time.monotonic() - began:.0f} s including its graph", file=sys.stderr)
    if rows:
        versions = ", ".join(f"{name} {version}" for name, version in rows[0].facts.versions.items())
        print(f"{GPU}, FP16, {platform.machine()}; {versions}\n\n{table(rows)}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
