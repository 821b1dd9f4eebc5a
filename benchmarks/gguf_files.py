"""Measure GGUF files as stored beside llama.cpp and ik_llama.cpp on the same files: prompts, decoding, windows.

    make bench-files ARGS="FILE.gguf ... --llama build/llama.cpp --ik build/ik_llama.cpp"
    python benchmarks/gguf_files.py FILE.gguf ... [--llama FOLDER] [--ik FOLDER] [--engines FOLDER]

FOLDER of a peer is one that holds its `llama-bench` (in any subfolder), compiled for this machine; a peer whose folder
is not given is left out. This project builds the file with its defaults (`--precision stored`) and a draft method
without a head, unless ENGINES already holds an engine of the file's name. In each turn, all runners measure one after
the other; a row is the median of the turns, and ratios are paired per turn. Every figure is for one request and random
tokens: with random weights, the experts of a window are as distinct as they can be.

The bytes of a token are those of the matrices that it multiplies (of the experts, those that it uses), from the file;
*bytes* are those of a window of random tokens over those of one.
*Memory* is the speed at which the same number of threads sums an array, measured in each turn; *of memory* is the speed
of reading the bytes of a token over that speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cpu.engines import build
from cpu.passes import Passes, milliseconds

from peagle.compiler.hardware.cpu_probe import memory_speed
from peagle.engines import Engine, SamplingParams

Turn = dict[str, float]  # measurement -> milliseconds
_IK = "ik_llama.cpp"
_DECODED = 32
_WARM_UP = 96  # tokens of the passes that are not counted: they touch nearly all experts


@dataclass(frozen=True)
class Settings:
    """What is measured: columns of passes, contexts of decoding, lengths of prompts, and repeats within a turn."""

    columns: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    repeats: int
    threads: int


def window_bytes(file: Path) -> Callable[[int], float]:
    """Return a function: tokens of a window -> bytes of the matrices that they multiply.

    Of stacked experts, it counts those that random tokens are expected to choose: E (1 - (1 - k / E)^n) of E for n
    tokens with k experts each.
    """
    import gguf

    reader = gguf.GGUFReader(file)
    arch = str(reader.fields["general.architecture"].contents())
    counts = [reader.fields.get(f"{arch}.{key}") for key in ("expert_used_count", "expert_count")]
    used, experts = (int(field.contents()) if field else 1 for field in counts)
    tied = all(tensor.name != "output.weight" for tensor in reader.tensors)
    dense = stacked = 0
    for tensor in reader.tensors:
        if "_exps" in tensor.name:
            stacked += int(tensor.n_bytes)
        elif tied or tensor.name != "token_embd.weight":
            dense += int(tensor.n_bytes)
    return lambda tokens: dense + stacked * (1 - (1 - used / experts) ** tokens)


def ours(engine: Path, settings: Settings) -> Turn:
    """Measure this project's engine."""
    found: Turn = {}
    graph = Passes(engine, threads=settings.threads)
    milliseconds(graph.over_random_tokens(_WARM_UP, 0), 2)
    for count in settings.columns:
        found[_columns(count)] = milliseconds(graph.over_random_tokens(count, settings.contexts[0]), settings.repeats)
    for context in settings.contexts:
        found[_decode(context)] = milliseconds(graph.over_random_tokens(1, context), _DECODED)
    del graph
    if not settings.prompts:
        return found
    with Engine.load(engine, threads=settings.threads, max_batch_size=1, prefix_cache_bytes=0) as loaded:
        random = np.random.default_rng(0)
        for length in settings.prompts:
            seconds = []
            for _ in range(1 + settings.repeats // 2):
                prompt = [int(n) for n in random.integers(0, loaded.manifest.shapes.vocab_size, length)]
                began = time.perf_counter()
                loaded.generate([prompt], SamplingParams(max_tokens=1, ignore_eos=True), num_speculative_tokens=0)
                seconds.append(time.perf_counter() - began)
            found[_prompt(length)] = statistics.median(seconds[1:] or seconds) * 1e3
    return found


def peer(command: Path, file: Path, settings: Settings, flags: Sequence[str] = ()) -> Turn:
    """Measure llama.cpp or ik_llama.cpp by its `llama-bench`. Raises ``SystemExit`` if it fails."""
    depth = "--n-depth" in subprocess.run([str(command), "--help"], capture_output=True, text=True, check=False).stdout
    common = ["-m", str(file), "-t", str(settings.threads), "-o", "json", *flags]
    prompts = ",".join(map(str, (*settings.columns, *settings.prompts)))
    runs = [[*common, "-p", prompts, "-n", "0", "-r", str(settings.repeats)]]
    if depth:
        contexts = ",".join(map(str, settings.contexts))
        runs.append([*common, "-p", "0", "-n", str(_DECODED), "-d", contexts, "-r", "2"])
    else:
        pairs = [option for context in settings.contexts for option in ("-gp", f"{context},{_DECODED}")]
        runs.append([*common, "-p", "0", "-n", "0", *pairs, "-r", "2"])
    found: Turn = {}
    for run in runs:
        done = subprocess.run([str(command), *run], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{command} failed with {done.returncode}:\n{done.stderr[-2000:]}")
        for entry in json.loads(done.stdout):
            took = statistics.median(entry["samples_ns"]) / 1e6
            prompt, decoded = int(entry["n_prompt"]), int(entry["n_gen"])
            if decoded:
                found[_decode(int(entry.get("n_depth", prompt)))] = took / decoded
            else:
                found[_columns(prompt) if prompt in settings.columns else _prompt(prompt)] = took
    return found


def measure(file: Path, arguments: argparse.Namespace) -> None:
    """Measure one file and print its table."""
    columns, contexts, prompts = map(tuple, (arguments.columns, arguments.contexts, arguments.prompts))
    settings = Settings(columns, contexts, prompts, arguments.repeats, arguments.threads)
    flags = ("--draft", "ngram", "--backend", "onnxruntime", "--max-seq-len", "8192")
    engine = build(arguments.engines / file.stem, "--model", str(file), *flags)
    peers = {name: _binary(folder) for name, folder in (("llama.cpp", arguments.llama), (_IK, arguments.ik))
             if folder}  # fmt: skip
    turns: dict[str, list[Turn]] = {}
    memory = []
    for _ in range(arguments.turns):
        memory.append(memory_speed(arguments.threads))
        turns.setdefault("peagle-compile", []).append(ours(engine, settings))
        for name, command in peers.items():
            options = arguments.ik_flags.split() if name == _IK else ()
            turns.setdefault(name, []).append(peer(command, file, settings, options))
    print("\n".join(report(file, window_bytes(file), memory, turns)), flush=True)


def report(
    file: Path, bytes_of: Callable[[int], float], memory: Sequence[float], turns: Mapping[str, Sequence[Turn]]
) -> Iterator[str]:
    """Yield the lines of a table of one file."""
    speed, read = statistics.median(memory), bytes_of(1)
    each = ", ".join(f"{value / 1e9:.1f}" for value in memory)
    yield f"{file.name}: {read / 1e6:.0f} MB a token; memory {speed / 1e9:.1f} GB/s ({each})"
    names = [*turns]
    yield f"{'':28}" + "".join(f"{name:>26}" for name in names)
    first_turns = turns[names[0]]
    one = statistics.median(turn[_columns(1)] for turn in first_turns) if _columns(1) in first_turns[0] else None
    for what in first_turns[0]:
        cells = []
        for name in names:
            values = [turn.get(what) for turn in turns[name]]
            if None in values:
                cells.append("-")
                continue
            ratio = statistics.median(
                turn[what] / own[what] for turn, own in zip(turns[name], first_turns, strict=True)
            )
            cells.append(f"{statistics.median(turn[what] for turn in turns[name]):.2f} ms ({ratio:.2f})")
        note = ""
        if what.startswith("decode"):
            shares = [read / (turn[what] / 1e3) / m for turn, m in zip(first_turns, memory, strict=True)]
            note = f"  {statistics.median(shares):.2f} of memory"
        elif what.startswith("pass") and one:
            over = statistics.median(turn[what] for turn in first_turns) / one
            note = f"  {over:.2f} of one; bytes {bytes_of(int(what.split()[2])) / read:.2f}"
        yield f"{what:28}" + "".join(f"{cell:>26}" for cell in cells) + note


def _columns(count: int) -> str:
    return f"pass over {count} column{'s' * (count > 1)}"


def _decode(context: int) -> str:
    return f"decode after {context}"


def _prompt(length: int) -> str:
    return f"prompt of {length}"


def _binary(folder: Path) -> Path:
    found = next((path for path in sorted(folder.rglob("llama-bench")) if path.is_file()), None)
    if found is None:
        raise SystemExit(f"no llama-bench below {folder}: compile it first (cmake --build FOLDER --target llama-bench)")
    return found.resolve()


def parse_arguments() -> Any:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE.gguf")
    parser.add_argument("--llama", type=Path, metavar="FOLDER", help="build folder of llama.cpp")
    parser.add_argument("--ik", type=Path, metavar="FOLDER", help="build folder of ik_llama.cpp")
    parser.add_argument("--ik-flags", default="-rtr 1", help="for its llama-bench; default: %(default)s")
    parser.add_argument("--engines", type=Path, default=Path("build/bench-files"), help="default: %(default)s")
    parser.add_argument("--columns", type=int, nargs="*", default=[1, 2, 5, 8], help="default: 1 2 5 8")
    parser.add_argument("--contexts", type=int, nargs="+", default=[155, 1500], help="default: 155 1500")
    parser.add_argument("--prompts", type=int, nargs="*", default=[512], help="default: 512")
    parser.add_argument("--repeats", type=int, default=6, help="runs of a pass within a turn; default: %(default)s")
    parser.add_argument("--turns", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=2, help="threads of every runner; default: %(default)s")
    return parser.parse_args()


def main() -> None:
    """Measure the files one after the other."""
    arguments = parse_arguments()
    for file in arguments.files:
        measure(file, arguments)


if __name__ == "__main__":
    main()
