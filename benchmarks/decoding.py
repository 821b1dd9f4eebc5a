"""Decode tokens/s of one engine, plain and with P-EAGLE, beside onnxruntime-genai on the same weights.

    make bench                                              # or, with the [bench] extra installed:
    python benchmarks/decoding.py demo-engine

All runners live in one process and take turns prompt by prompt, so that a slow moment of the machine falls on all. The
same greedy tokens are decoded by all (batch 1, FP32, end-of-sequence ignored); ratios are medians of the ratios within
one turn. The prompt's pass is not timed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

import numpy as np

from peagle.compiler.bundled.prompts import code_prompts
from peagle.engines import Acceptance, Engine, SamplingParams

PEER = "onnxruntime-genai"
Generate = Callable[[Sequence[int], int], tuple[list[int], float]]


@dataclass
class Runner:
    """One way to decode: ``generate(prompt, count)`` gives the tokens and the seconds after the first."""

    name: str
    generate: Generate
    speeds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)

    def turn(self, prompt: Sequence[int], count: int) -> None:
        """Decode one prompt and remember how it went."""
        tokens, seconds = self.generate(prompt, count)
        self.speeds.append((len(tokens) - 1) / seconds)
        self.tokens.append(tokens)


def ours(engine: Engine, k: int) -> Runner:
    """Our runtime with K drafts per round; 0 is plain decoding."""

    def generate(prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        (output,) = engine.generate([prompt], params, num_speculative_tokens=k)
        runner.acceptance.add(output.acceptance)
        return list(output.token_ids), output.decode_seconds

    runner = Runner(f"P-EAGLE, K = {k}" if k else "plain", generate)
    return runner


def genai(checkpoint: str, folder: Path, threads: int | None) -> Runner:
    """onnxruntime-genai on a model that its own builder makes from the same checkpoint."""
    import onnxruntime_genai as og

    command = [sys.executable, "-m", "onnxruntime_genai.models.builder", "-i", checkpoint, "-o", str(folder)]
    subprocess.run([*command, "-p", "fp32", "-e", "cpu"], check=True, capture_output=True)
    if threads:
        path = folder / "genai_config.json"
        config = json.loads(path.read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = threads
        path.write_text(json.dumps(config))
    model = og.Model(str(folder))

    def generate(prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        params = og.GeneratorParams(model)
        length = len(prompt) + count
        params.set_search_options(max_length=length, min_length=length, do_sample=False)
        generator = og.Generator(model, params)
        generator.append_tokens(np.array([prompt], np.int32))
        generator.generate_next_token()
        began = time.perf_counter()
        for _ in range(count - 1):
            generator.generate_next_token()
        seconds = time.perf_counter() - began
        return [int(t) for t in generator.get_sequence(0)[len(prompt) :]], seconds

    return Runner(PEER, generate)


def same_text(tokens: Sequence[int], plain: Sequence[int], ends: Collection[int]) -> bool:
    """Whether they agree up to the end of the text; past it the peer, which may not say the end, goes another way."""
    end = next((i for i, token in enumerate(plain) if token in ends), len(plain))
    return list(tokens[:end]) == list(plain[:end])


def table(runners: Sequence[Runner], plain: Runner, ends: Collection[int]) -> str:
    """Median tokens/s with quartiles, ratio to our plain decoding, acceptance length, same text or not."""
    lines = [f"{'':20}{'tokens/s':>9}{'quartiles':>16}{'x plain':>9}{'accepted':>10}{'same text':>13}"]
    for runner in runners:
        low, _, high = statistics.quantiles(runner.speeds, n=4)
        ratio = statistics.median(a / b for a, b in zip(runner.speeds, plain.speeds, strict=True))
        accepted = f"{runner.acceptance.acceptance_length:.2f}" if runner.acceptance.rounds else "-"
        same = sum(same_text(a, b, ends) for a, b in zip(runner.tokens, plain.tokens, strict=True))
        lines.append(
            f"{runner.name:20}{statistics.median(runner.speeds):>9.0f}{f'{low:.0f} to {high:.0f}':>16}"
            f"{ratio:>9.2f}{accepted:>10}{f'{same}/{len(plain.tokens)}':>13}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=4, help="turns on every prompt")
    parser.add_argument("--threads", type=int, help="for all runners; default: what each runtime chooses")
    parser.add_argument(
        "--k", type=int, nargs="*", help="numbers of drafts to measure; default: the engine's, and 3 5 8"
    )
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    engine = Engine.load(arguments.engine, threads=arguments.threads)
    depths = arguments.k or (sorted({engine.num_speculative_tokens, 3, 5, 8}) if engine.manifest.drafter else [])
    prompts = [engine.tokenizer.encode(p.text) for p in code_prompts(arguments.prompts)]
    with tempfile.TemporaryDirectory() as folder:
        plain = ours(engine, 0)
        runners = [plain, *(ours(engine, k) for k in depths)]
        if not arguments.no_peer:
            runners.append(genai(engine.manifest.target.origin.source, Path(folder), arguments.threads))
        for runner in runners:
            runner.generate(prompts[0], 8)
            runner.acceptance = Acceptance()
        for turn in range(arguments.rounds * len(prompts)):
            first = turn % len(runners)
            for runner in (*runners[first:], *runners[:first]):
                runner.turn(prompts[turn % len(prompts)], arguments.tokens)
    load = os.getloadavg()[0]
    names = ["onnxruntime", *([] if arguments.no_peer else [PEER])]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f}, "
        + ", ".join(f"{n} {version(n)}" for n in names)
    )
    print(f"{len(prompts)} prompts x {arguments.rounds}, {arguments.tokens} tokens each, K of the build: "
          f"{engine.num_speculative_tokens}\n")  # fmt: skip
    print(table(runners, plain, engine.manifest.eos_token_ids))


if __name__ == "__main__":
    main()
