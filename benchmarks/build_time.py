"""Measure the time of a CPU build, phase by phase, for a pair that was never built before.

    make bench-build                                        # or
    python benchmarks/build_time.py [--precision int4] [--runs 3] [--limit 20]

The pair has random weights and the sizes of a small model: a Qwen3 target with 6 layers and 4.6 million weights in
BF16, read from safetensors, with the tokenizer of the demo pair, and a P-EAGLE head with 2 layers. Every run starts
with a cache that holds only the CPU kernels, which are compiled once per machine; `compile kernels` shows that time.
Phases come from `build_report.json`; `whole` is the complete command, imports included. With `--limit`, the exit code
is 1 if the median of `whole` exceeds it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

import peagle.compiler.bundled as bundled

DEMO = Path(bundled.__file__).parent / "demo"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
LAYERS, INNER = 6, 1024
TAPS = [2, 3, 4]
COMMAND = str(Path(sys.executable).with_name("peagle-compile"))
KERNELS = ("cpu-library", "cpu-kernels")  # cache steps that depend on the machine, not on a model


def write_pair(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Write a target and a matching head into ``folder``; every seed makes a pair that is in no cache."""
    target, head = folder / "target", folder / "head"
    config = Qwen3Config.from_pretrained(DEMO / "target")
    config.num_hidden_layers, config.intermediate_size = LAYERS, INNER
    config.layer_types = config.layer_types[:LAYERS]
    torch.manual_seed(seed)
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(target)
    for name in TOKENIZER:
        shutil.copy(DEMO / "target" / name, target)
    shutil.copytree(DEMO / "drafter", head)
    own = json.loads((head / "config.json").read_text())
    own["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = TAPS
    (head / "config.json").write_text(json.dumps(own))
    return target, head


def build(pair: tuple[Path, Path], precision: str, cache: Path, out: Path) -> tuple[float, dict[str, float]]:
    """Return the seconds of the whole command and of its phases.

    Raises ``SystemExit`` if it fails, which it reports.
    """
    shutil.rmtree(out, ignore_errors=True)
    for path in cache.iterdir() if cache.is_dir() else ():
        if path.is_dir() and path.name not in KERNELS:
            shutil.rmtree(path)
    command = [COMMAND, "build", "--model", str(pair[0]), "--draft", str(pair[1]), "--backend", "onnxruntime"]
    began = time.perf_counter()
    done = subprocess.run(
        [*command, "--precision", precision, "--out", str(out), "--quiet"],
        env={**os.environ, "PEAGLE_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
        check=False,
    )
    whole = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(done.returncode)
    phases = json.loads((out / "build_report.json").read_text())["phases"]
    return whole, {each["phase"]: each["seconds"] for each in phases}


def main() -> None:
    """Write the pair, build it, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="int4", help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--limit", type=float, help="limit in seconds for the median run; default: none")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, load {os.getloadavg()[0]:.1f}, {arguments.precision}")
    with tempfile.TemporaryDirectory(prefix="peagle-build-time-") as name:
        folder = Path(name)
        pair = write_pair(folder)
        _, first = build(pair, arguments.precision, folder / "cache", folder / "engine")
        print(f"{first.get('kernels', 0):8.1f} s  compile kernels, once per machine and source")
        runs = [
            build(pair, arguments.precision, folder / "cache", folder / "engine") for _ in range(max(arguments.runs, 1))
        ]
    whole = statistics.median(seconds for seconds, _ in runs)
    for phase in runs[0][1]:
        print(f"{statistics.median(phases[phase] for _, phases in runs):8.1f} s  {phase}")
    print(f"{whole:8.1f} s  whole ({min(runs)[0]:.1f} to {max(runs)[0]:.1f} in {len(runs)} runs)")
    if arguments.limit and whole > arguments.limit:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
