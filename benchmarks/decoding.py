"""Measure decoding speed (tokens/s) of one engine, plain and with drafts, beside other runtimes on the same weights.

    make bench                                              # or:
    python benchmarks/decoding.py demo-engine

Peers are `onnxruntime-genai`, in FP32 or as `onnxruntime-genai:int4`, with a model that its own builder makes from the
same checkpoint; for an engine built from a GGUF file also `llama.cpp` and, if named, `openvino-genai` on that file.
`+drafts` after a name enables prompt lookup. Each peer has its own virtual environment and process, and the same number
of threads. Chat models get the bundled questions in their template; others continue code prefixes. All runners take
turns prompt by prompt, so that disturbances affect all of them; waiting runners are idle. Greedy, batch 1,
end-of-sequence ignored; ratios are medians of the ratios per turn. Prompt processing is not timed.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from peers.commands import GENAI, LLAMA_CPP, command_of
from peers.process import running

from peagle.compiler.bundled.prompts import code_prompts, default_prompts
from peagle.engines import Acceptance, Engine, SamplingParams

Generate = Callable[[Sequence[int], int], tuple[list[int], float]]


@dataclass
class Runner:
    """One way to decode: ``generate(prompt, count)`` returns the tokens and the seconds after the first."""

    name: str
    generate: Generate
    speeds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)

    def turn(self, prompt: Sequence[int], count: int) -> None:
        """Decode one prompt and record the result."""
        tokens, seconds = self.generate(prompt, count)
        self.speeds.append((len(tokens) - 1) / seconds)
        self.tokens.append(tokens)


def ours(engine: Engine, k: int, draft: str | None = None) -> Runner:
    """Return this runtime with K drafts per round, from the head unless ``draft`` is ``ngram``; 0 is plain decoding."""

    def generate(prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        params = SamplingParams(max_tokens=count, ignore_eos=True)
        (output,) = engine.generate([prompt], params, num_speculative_tokens=k, draft=draft)
        runner.acceptance.add(output.acceptance)
        return list(output.token_ids), output.decode_seconds

    runner = Runner(f"{'n-gram' if draft else 'P-EAGLE'}, K = {k}" if k else "plain", generate)
    return runner


def same_text(tokens: Sequence[int], plain: Sequence[int], ends: Collection[int]) -> bool:
    """Return True if the tokens agree up to the end of the text; past it, the runtimes may differ."""
    end = next((i for i, token in enumerate(plain) if token in ends), len(plain))
    return list(tokens[:end]) == list(plain[:end])


def table(runners: Sequence[Runner], plain: Runner, ends: Collection[int]) -> str:
    """Format median tokens/s with quartiles, ratio to plain decoding, acceptance length, and text equality."""
    lines = [f"{'':24}{'tokens/s':>9}{'quartiles':>16}{'x plain':>9}{'accepted':>10}{'same text':>13}"]
    for runner in runners:
        low, _, high = statistics.quantiles(runner.speeds, n=4)
        ratio = statistics.median(a / b for a, b in zip(runner.speeds, plain.speeds, strict=True))
        accepted = f"{runner.acceptance.tokens_per_round:.2f}" if runner.acceptance.rounds else "-"
        same = sum(same_text(a, b, ends) for a, b in zip(runner.tokens, plain.tokens, strict=True))
        lines.append(
            f"{runner.name:24}{statistics.median(runner.speeds):>9.0f}{f'{low:.0f} to {high:.0f}':>16}"
            f"{ratio:>9.2f}{accepted:>10}{f'{same}/{len(plain.tokens)}':>13}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--code", action="store_true", help="use code prefixes even for a chat model")
    parser.add_argument("--rounds", type=int, default=2, help="turns per prompt")
    parser.add_argument("--threads", type=int, help="threads of every runner; default: each runtime's own")
    parser.add_argument(
        "--k", type=int, nargs="*", help="numbers of drafts to measure; default: the engine's K, and 3 5 8"
    )
    parser.add_argument("--peers", nargs="*", help="default: all that support the engine's checkpoint; none: --peers")
    arguments = parser.parse_args()
    engine = Engine.load(arguments.engine, threads=arguments.threads, prefix_cache_bytes=0)
    most = engine.manifest.speculation.max_num_speculative_tokens
    depths = arguments.k or [k for k in sorted({engine.num_speculative_tokens, 3, 5, 8}) if 0 < k <= most]
    texts = code_prompts(arguments.prompts) if arguments.code else ()
    prompts = [engine.tokenizer.encode(each.text) for each in texts] or default_prompts(engine, arguments.prompts)
    source = Path(engine.manifest.target.origin.source)
    names = [GENAI, f"{GENAI}:int4", *([LLAMA_CPP] if source.is_file() else [])]
    names = names if arguments.peers is None else arguments.peers
    with tempfile.TemporaryDirectory() as folder, ExitStack() as up:
        threads = arguments.threads or os.cpu_count() or 1
        peers = [up.enter_context(running(name, command_of(name, source, Path(folder), threads))) for name in names]
        plain = ours(engine, 0)
        runners = [plain, *(ours(engine, k) for k in depths if engine.manifest.drafter)]
        runners += [ours(engine, k, "ngram") for k in depths]
        runners += [Runner(peer.name, peer.generate) for peer in peers]
        for runner in runners:
            runner.generate(prompts[0], 8)
            runner.acceptance = Acceptance()
        for turn in range(arguments.rounds * len(prompts)):
            first = turn % len(runners)
            for runner in (*runners[first:], *runners[:first]):
                runner.turn(prompts[turn % len(prompts)], arguments.tokens)
    versions = [f"onnxruntime {version('onnxruntime')}", *(f"{peer.name} {peer.version}" for peer in peers)]
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {', '.join(versions)}")
    print(f"{len(prompts)} prompts x {arguments.rounds}, {arguments.tokens} tokens each, K of the build: "
          f"{engine.num_speculative_tokens}\n")  # fmt: skip
    print(table(runners, plain, engine.manifest.eos_token_ids))


if __name__ == "__main__":
    main()
