"""Measure the cost of calibrating a layer, compared with its matrix products alone.

    python tools/synthetic_checkpoint.py --model qwen3-coder-30b --layers 3 --vocab 1024 --out build/coder
    python benchmarks/calibration.py build/coder/target

One layer is read as in a calibration, and random sequences of 512 tokens pass through it while ranges are recorded. In
turns with it, an FP32 matrix product measures the machine's rate. CPU time of this process is counted, so that other
load has little influence: figures are per second of one core. A dry run uses the resulting share of the product's rate
to estimate the time of a calibration.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.precision.calibration.layerwise import Layerwise
from peagle.compiler.precision.calibration.observers import Watch
from peagle.compiler.precision.calibration.range_methods import Max, Method, Mse, Percentile
from peagle.graphs.names import layer_prefix

TOKENS, WIDTH, LAYER, PRODUCTS = 512, 2048, 0, 8
METHODS: dict[str, Method] = {"max": Max(), "percentile": Percentile(), "mse": Mse()}


def multiply(rows: torch.Tensor, matrix: torch.Tensor) -> None:
    """Compute the matrix products that a calibrated layer is compared with."""
    for _ in range(PRODUCTS):
        torch.mm(rows, matrix)


def core_seconds(work: Callable[..., object], *given: object) -> float:
    """Return the CPU time of ``work``, summed over all threads."""
    began = time.process_time()
    work(*given)
    return time.process_time() - began


def send(model: Layerwise, layer: torch.nn.Module, stream: torch.Tensor, watch: Watch) -> None:
    """Pass one sequence through the layer while recording ranges."""
    with watch.sample(0):
        model.run(layer, LAYER, stream, watch)


def operations(layer: torch.nn.Module, chosen: float) -> float:
    """Return the layer's matrix additions and multiplications per token; ``chosen`` is the share of experts."""
    shares = ((each.numel(), chosen if each.dim() == 3 else 1.0) for each in layer.parameters() if each.dim() > 1)
    return float(2 * sum(count * share for count, share in shares))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--samples", type=int, default=3)
    arguments = parser.parse_args()
    target = Target.open(arguments.target)
    model = Layerwise(target, "float32")
    text = target.family.text(target.config)
    experts = text.get("num_experts") or text.get("num_local_experts") or 1
    chosen = (text.get("num_experts_per_tok") or 1) / experts
    generator = torch.Generator().manual_seed(0)
    rows, matrix = torch.ones(TOKENS, WIDTH), torch.ones(WIDTH, WIDTH)
    streams = [torch.randn(1, TOKENS, target.spec.hidden_size, generator=generator) for _ in range(arguments.samples)]
    print(f"{torch.get_num_threads()} threads")
    began = time.process_time()
    with torch.no_grad(), model.layer(LAYER) as layer:
        of_token = operations(layer, chosen)
        print(f"read in {time.process_time() - began:.1f} s, {of_token / 1e6:.0f} million operations per token")
        for name, method in METHODS.items():
            watch = Watch(method)
            rates, products = [], []
            with watch.on(layer, layer_prefix(LAYER)):
                for stream in streams:
                    products.append(PRODUCTS * 2 * TOKENS * WIDTH**2 / core_seconds(partial(multiply, rows, matrix)))
                    rates.append(TOKENS / core_seconds(partial(send, model, layer, stream, watch)))
            ending = core_seconds(lambda seen: seen.clipped(seen.ranges()), watch)
            rate, product = statistics.median(rates), statistics.median(products)
            print(
                f"{name:>10}: {rate:6.1f} tokens per second ({min(rates):.1f} to {max(rates):.1f}), "
                f"{rate * of_token / product:.2f} of {product / 1e9:.0f} GFLOP/s, then {ending:.1f} s for the layer",
                flush=True,
            )


if __name__ == "__main__":
    main()
