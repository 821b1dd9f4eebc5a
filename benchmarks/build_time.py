"""How long a build for the CPU takes, phase by phase, for a pair that was never built before.

    make bench-build                                        # or
    python benchmarks/build_time.py [--precision int4] [--runs 3] [--limit 20]

The pair has the sizes of a small model and random weights: a Qwen3 target of 6 layers and 4.6 million weights in BF16,
read from safetensors, with the tokenizer of the demo pair, and a P-EAGLE head of 2 layers. Every run has an empty cache
but for the CPU kernels, which a machine compiles once; `compile kernels` says how long that took. Seconds are those of
`build_report.json`; `whole` is the command from its start to its end, imports included. With `--limit` the exit code is
1 where the median of `whole` is above it.
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
TAPS = [1, 3, 4]
COMMAND = str(Path(sys.executable).with_name("peagle-compile"))
KERNELS = ("cpu-library", "cpu-kernels")  # steps of the cache that are of the machine, and of no model


def write_pair(folder: Path, seed: int = 0) -> tuple[Path, Path]:
    """Write a target and a head that fits it into ``folder``; every seed makes a pair that no cache knows."""
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
    """Seconds of the whole command, and of its phases. Raises ``SystemExit`` where it fails; it says why itself."""
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
    """Write the pair, build it, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="int4", help="default: %(default)s")
    parser.add_argument("--runs", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--limit", type=float, help="seconds that the median run may take; default: no limit")
    arguments = parser.parse_args()
    logging.disable_progress_bar()
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, load {os.getloadavg()[0]:.1f}, {arguments.precision}")
    with tempfile.TemporaryDirectory(prefix="peagle-build-time-") as name:
        folder = Path(name)
        pair = write_pair(folder)
        _, first = build(pair, arguments.precision, folder / "cache", folder / "engine")
        print(f"{first.get('kernels', 0):8.1f} s  compile kernels, once for a machine and a source")
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
