"""What decides a runtime's speed beside plain decoding: prompts, windows of drafts, the weights' quality and bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from peers.commands import Name
from peers.process import Peer

from peagle.compiler.hardware.cpu_probe import memory_speed
from peagle.engines import SamplingParams

from .aims import MEMORY, PROMPTS, SIZES, WEIGHTS, WINDOWS
from .engines import build
from .parts import ROOT, WORK, Bench
from .passes import Passes, milliseconds
from .record import Record

OURS = "blocks, plain"
PROMPT, CONTEXT, COLUMNS = 512, 155, (1, 5, 8)
_TURNS, _REPEATS = 3, 5
_TOOL = ROOT / "tools" / "evaluate_precision.py"


def prompts(bench: Bench, record: Record) -> None:
    """Prompts of 512 random tokens: tokens per second until the first token."""
    if record.done(PROMPTS) == _TURNS:
        return
    engine = bench.engine("blocks")
    params = SamplingParams(max_tokens=1, ignore_eos=True)

    def ours(prompt: Sequence[int]) -> float:
        began = time.perf_counter()
        engine.generate([prompt], params, num_speculative_tokens=0)
        return time.perf_counter() - began

    runners = {OURS: ours} | {name: peer.prefill for name, peer in _plain(bench).items()}
    random = np.random.default_rng(0)
    for seconds in runners.values():
        seconds(_tokens(random, bench, PROMPT))
    for _ in range(record.done(PROMPTS), _TURNS):
        prompt = _tokens(random, bench, PROMPT)  # a new one: some runtimes keep the cache of an earlier one
        record.add(PROMPTS, {name: PROMPT / seconds(prompt) for name, seconds in runners.items()})


def windows(bench: Bench, record: Record) -> None:
    """Passes over 1, 5 and 8 tokens after 155, in milliseconds, beside the speed of memory."""
    if record.done(WINDOWS) == _TURNS:
        return
    graph, random = Passes(bench.folder("blocks"), threads=bench.options.threads), np.random.default_rng(1)
    peers = _plain(bench)
    for _ in range(record.done(WINDOWS), _TURNS):
        found = {}
        for columns in COLUMNS:
            found[_window(OURS, columns)] = milliseconds(graph.pass_over(columns, CONTEXT), _REPEATS)
            for name, peer in peers.items():
                context, tokens = _tokens(random, bench, CONTEXT), _tokens(random, bench, columns)
                times = [peer.window(context, tokens) for _ in range(1 + _REPEATS)][1:]
                known = [1e3 * each for each in times if each is not None]
                if known:
                    found[_window(name, columns)] = float(np.median(known))
        record.add(WINDOWS, found)
        record.add(MEMORY, {"GB/s": memory_speed(bench.options.threads) / 1e9})


def weights(bench: Bench, record: Record) -> None:
    """The perplexity of every runtime's weights, in FP32 but for the project's own, and their megabytes."""
    if record.done(WEIGHTS):
        return
    source, work = bench.source("blocks"), WORK / "peers-blocks"
    peers = _plain(bench)
    files = {name: Name.parse(name).weights(source, work / name) for name in peers}
    engines = {None: bench.folder("blocks")} | {
        file: build(WORK / "engines" / f"fp32-of-{file.stem}", "--model", str(file), "--precision", "fp32",
                    "--lowering", "cpu", "--draft", "none", "--backend", "onnxruntime")
        for file in {*files.values()} if file
    }  # fmt: skip
    by_engine = perplexities([*engines.values()], 2 if bench.options.quick else 8)
    found = {OURS: by_engine[engines[None].name]}
    found |= {name: by_engine[engines[file].name] for name, file in files.items() if file}
    sizes = {OURS: Passes(bench.folder("blocks"), threads=1).bytes_read(0)}
    sizes |= {name: peer.bytes() for name, peer in peers.items()}
    record.add(SIZES, {name: size / 1e6 for name, size in sizes.items()})
    record.add(WEIGHTS, found)


COSTS: dict[str, Callable[[Bench, Record], None]] = {PROMPTS: prompts, WINDOWS: windows, WEIGHTS: weights}


def perplexities(engines: Sequence[Path], count: int) -> Mapping[str, float]:
    """Return the perplexity of code by engine folder. Raises ``SystemExit`` if the tool fails, which it reports."""
    out = WORK / "perplexities.json"
    command = [sys.executable, str(_TOOL), *map(str, engines), "--texts", "code", "--windows", str(count)]
    if subprocess.run([*command, "--json", str(out)], stdout=sys.stderr, check=False).returncode:
        raise SystemExit("the perplexity of the weights was not measured; see the error above")
    return {row["engine"]: row["perplexity"] for row in json.loads(out.read_text())}


def _plain(bench: Bench) -> dict[str, Peer]:
    """Return the peers without drafts: with them, prompts and windows cost the same or cannot be told apart."""
    names = [name for name in bench.options.peers if not Name.parse(name).method]
    return bench.peers(names, "blocks", bench.options.threads)


def _tokens(random: np.random.Generator, bench: Bench, count: int) -> list[int]:
    return [int(token) for token in random.integers(100, bench.engine("blocks").manifest.shapes.vocab_size, count)]


def _window(name: str, columns: int) -> str:
    return f"{name}, {columns} column{'s' * (columns > 1)}"
