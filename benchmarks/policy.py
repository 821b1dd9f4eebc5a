"""Measure the adaptive K policy where drafts do not pay and where they do, beside plain decoding and fixed K.

    make bench-policy                                       # or
    python benchmarks/policy.py [--precision fp32] [--batch 1 4] [--questions 6] [--temperature 0.8] [--turns 48]
    python benchmarks/policy.py --context 4000 --heads trained --batch 1 --k 1 2 --questions 2 --tokens 256 --turns 12

SmolLM2-135M with two heads: the registry's, and one of its shape with random weights, whose drafts are never accepted.
Missing engines are built. Prompts are the bundled questions, code and prose in turn; end-of-sequence is ignored. All
methods take turns on each group of questions, so that disturbances affect all of them. A turn is a whole call, prompts
included, followed by a pause: Linux stops a real-time program that never sleeps for 50 ms of every second, and a call
hit by that takes a tenth longer. Each run of a batch size starts with an engine that was tuned just before
(`peagle-compile tune`: the costs of rounds change with the hour on a shared host) and freshly loaded, so its policy has
no history; the last line of a table is the policy over the fastest fixed K of that run. With `--control`, plain
decoding also runs as `control`: how far its ratio is from 1 is the noise of all ratios.

With `--context`, prompts are beginnings of Python's own sources. They are read once, into the prefix cache, because
reading them takes longer than the answers. Before each of its calls, the policy also answers bundled questions, which
are not timed: it then chooses K for long texts after short ones.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from cpu.engines import REAL
from safetensors.torch import load_file, save_file

import peagle.compiler.bundled as bundled
from peagle.compiler.bench.statistics import Spread
from peagle.compiler.bundled.prompts import question_ids, questions
from peagle.engines import Engine, SamplingParams

WORK = Path("build/bench-policy")
HEAD = Path(bundled.__file__).parent / "heads" / "smollm2-135m-p-eagle"
HEADS = ("random", "trained")
KEPT = ("d2t", "t2d", "norm")  # tensors that the random head shares with the trained one
REST = 0.15  # pause after a call, relative to its time
LONG = 8192  # tokens of a text in an engine for long prompts, the most that the model was trained for
PREFIXES = 8 << 30  # bytes for long prompts
Way = Mapping[str, Any]


def random_head(folder: Path) -> Path:
    """Write a head of the registry's shape; every matrix is random, with the standard deviation of the trained one."""
    out = folder / "random-head"
    if not out.is_dir():
        fresh = out.with_suffix(".part")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        torch.manual_seed(0)
        tensors = load_file(HEAD / "model.safetensors")
        for name, tensor in tensors.items():
            if not any(kept in name for kept in KEPT):
                tensors[name] = (torch.randn(tensor.shape) * tensor.float().std()).to(tensor.dtype)
        save_file(tensors, fresh / "model.safetensors")
        shutil.copy(HEAD / "config.json", fresh)
        fresh.rename(out)
    return out


def built(head: str, precision: str, folder: Path, *, is_long: bool = False) -> Path:
    """Return the engine with that head. Raises ``SystemExit`` if its build fails, which it reports."""
    out = folder / f"{head}-{precision}{'-long' if is_long else ''}"
    if not (out / "engine.json").is_file():
        print(f"Building the engine with the {head} head ...", file=sys.stderr, flush=True)
        command = [str(Path(sys.executable).with_name("peagle-compile")), "build", *REAL, "--precision", precision]
        command += ["--draft", str(random_head(folder))] if head == "random" else []
        command += ["--max-seq-len", str(LONG)] if is_long else []
        done = subprocess.run([*command, "--out", str(out)], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise SystemExit(done.returncode)
    return out


def tune(engine: Path) -> None:
    """Measure what the rounds of an engine cost now. Raises ``SystemExit`` if that fails, which it reports."""
    command = [str(Path(sys.executable).with_name("peagle-compile")), "tune", str(engine)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def long_prompts(engine: Engine, tokens: int, count: int) -> list[list[int]]:
    """Return the first ``tokens`` of sources of Python's library, and read them, so that they are in the prefix cache.

    Raises ``SystemExit`` if fewer than ``count`` sources are so long.
    """
    found: list[list[int]] = []
    for source in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        ids = engine.tokenizer.encode(source.read_text(encoding="utf-8"))[:tokens]
        if len(ids) == tokens and len(found) < count:
            found.append(ids)
    if len(found) < count:
        raise SystemExit(f"only {len(found)} of Python's sources have {tokens} tokens; use fewer --questions")
    for ids in found:
        print(f"Reading {tokens} tokens ...", file=sys.stderr, flush=True)
        engine.generate([ids], SamplingParams(max_tokens=4, ignore_eos=True), num_speculative_tokens=1)
    return found


def measure(
    engine: Engine,
    ways: Mapping[str, Way],
    groups: Sequence[list[list[int]]],
    params: SamplingParams,
    turns: int,
    between: Sequence[list[list[int]]] = (),
) -> list[Turn]:
    """Return tokens per second of every method, group by group, in the orders of ``orders``.

    Groups are repeated for at least so many ``turns``, and until every order was used equally often. The policy answers
    the groups ``between`` too, one before each of its calls, untimed.
    """
    names, measured, every = [*ways], list[Turn](), orders(len(ways))
    for name in (each for each in names if each != "auto"):  # warm-up; the policy starts without history
        engine.generate(groups[0], SamplingParams(max_tokens=4, ignore_eos=True), **ways[name])
    total = math.ceil(max(turns, len(groups)) / len(every)) * len(every)
    for at, group in zip(range(total), cycle(groups), strict=False):
        turn, texts = dict[str, tuple[int, float, float]](), set[tuple[tuple[int, ...], ...]]()
        for name in (names[each] for each in every[at % len(every)]):
            if between and name == "auto":
                engine.generate(between[at % len(between)], params, **ways[name])
            began = time.perf_counter()
            outputs = engine.generate(group, params, **ways[name])
            seconds = time.perf_counter() - began
            time.sleep(REST * seconds)
            rounds = sum(each.acceptance.tokens_per_round for each in outputs) / len(outputs)
            turn[name] = sum(len(each.token_ids) for each in outputs), seconds, rounds
            texts.add(tuple(each.token_ids for each in outputs))
        if len(texts) > 1:
            raise SystemExit("the output changed with drafts")
        measured.append(turn)
        print(f"{at + 1} of {total} turns", file=sys.stderr, flush=True)
    return measured


Turn = dict[str, tuple[int, float, float]]  # tokens, seconds and tokens per round, by method


def orders(count: int) -> list[list[int]]:
    """Return orders of ``count`` methods in which each has every place, and every other before it, equally often.

    A call may take longer after some methods than after others, and in a rotating order, every method always follows
    the same one. Williams, Aust. J. Sci. Res. A 2 (1949), 149.
    """
    first = [0, *((each + 1) // 2 if each % 2 else count - each // 2 for each in range(1, count))]
    square = [[(each + shift) % count for each in first] for shift in range(count)]
    return square if count % 2 == 0 else [*square, *(order[::-1] for order in square)]


def table(title: str, turns: Sequence[Turn]) -> str:
    """Format a line per method: medians with quartiles of speeds, and of ratios of speeds.

    On some machines, the place in the order matters more than the method. A speed is therefore that of as many
    successive turns as there are orders, in which every method had every place.
    """
    names = [*turns[0]]
    size = len(orders(len(names)))
    cycles = [turns[at : at + size] for at in range(0, len(turns), size)]
    speeds = {name: [_speed(name, each) for each in cycles] for name in names}
    lines = [f"{title}; {len(turns)} turns", f"  {'':8}{'tokens/s':>22}{'x plain':>22}{'tokens/round':>14}"]
    for name in names:
        speed, rounds = Spread.of(speeds[name]), Spread.of([turn[name][2] for turn in turns])
        gain = _ratio(speeds[name], speeds["plain"])
        lines.append(f"  {name:8}{f'{speed.median:.0f} ({speed.low:.0f} to {speed.high:.0f})':>22}{gain:>22}"
                     f"{rounds.median:>14.2f}")  # fmt: skip
    fixed = [name for name in names if name.startswith("K = ")]
    if fixed:
        best = max(fixed, key=lambda name: Spread.of(speeds[name]).median)
        lines.append(f"  auto over {best}: {_ratio(speeds['auto'], speeds[best])}")
    return "\n".join(lines)


def _speed(name: str, turns: Sequence[Turn]) -> float:
    return sum(turn[name][0] for turn in turns) / sum(turn[name][1] for turn in turns)


def _ratio(speeds: Sequence[float], others: Sequence[float]) -> str:
    ratio = Spread.of([speed / other for speed, other in zip(speeds, others, strict=True)])
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def in_groups(prompts: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """Return the prompts in groups; those that do not fill a group are left out."""
    return [[*prompts[at : at + size]] for at in range(0, len(prompts) - size + 1, size)]


def main() -> None:
    """Build what is missing, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--precision", default="int4", help="default: %(default)s")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 4], help="default: 1 4")
    parser.add_argument("--heads", nargs="+", choices=HEADS, default=[*HEADS], help="default: both")
    parser.add_argument("--k", type=int, nargs="*", help="fixed K to compare with; default: the build's, and 2")
    parser.add_argument("--questions", type=int, default=8, help="questions of each kind; default: %(default)s")
    parser.add_argument("--context", type=int, default=0, help="tokens of long prompts; default: bundled questions")
    parser.add_argument("--tokens", type=int, default=96, help="tokens per answer; default: %(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, help="default: greedy")
    parser.add_argument("--turns", type=int, default=0, help="at least; default: every question once")
    parser.add_argument("--control", action="store_true", help="measure plain decoding twice, to show the noise")
    parser.add_argument("--runs", type=int, default=1, help="runs of each batch size; default: %(default)s")
    arguments = parser.parse_args()
    if arguments.context + arguments.tokens > LONG:
        parser.error(f"--context and --tokens: at most {LONG} in total")
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {arguments.precision}, "
          f"{arguments.tokens} tokens per answer")  # fmt: skip
    params = SamplingParams(max_tokens=arguments.tokens, ignore_eos=True, temperature=arguments.temperature, seed=1)
    kind = f"temperature {arguments.temperature:g}" if arguments.temperature else "greedy"
    for head in arguments.heads:
        folder = built(head, arguments.precision, WORK, is_long=arguments.context > 0)
        for batch in arguments.batch * arguments.runs:
            tune(folder)
            kept = PREFIXES if arguments.context else 0
            engine = Engine.load(folder, max_batch_size=batch, check="sizes", prefix_cache_bytes=kept)
            depths = sorted({2, engine.num_speculative_tokens} if arguments.k is None else {*arguments.k})
            ways: dict[str, Way] = {"plain": {"draft": "none"}, "auto": {"num_speculative_tokens": "auto"}}
            ways |= {"control": ways["plain"]} if arguments.control else {}
            ways |= {f"K = {k}": {"num_speculative_tokens": k} for k in depths}
            sorts = [[each for each in questions() if each.kind == sort] for sort in ("code", "prose")]
            chosen = [each for pair in zip(*sorts, strict=False) for each in pair][: 2 * arguments.questions]
            ids = [question_ids(engine, each) for each in chosen]
            groups, between = in_groups(ids, batch), list[list[list[int]]]()
            with engine:
                if arguments.context:
                    between, groups = groups, in_groups(long_prompts(engine, arguments.context, len(ids)), batch)
                turns = measure(engine, ways, groups, params, arguments.turns, between)
            after = f", after {arguments.context} tokens" if arguments.context else ""
            print("\n" + table(f"{head} head, {kind}, batch {batch}{after}", turns), flush=True)


if __name__ == "__main__":
    main()
