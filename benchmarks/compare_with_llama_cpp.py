"""Compare EAGLE-3 with llama.cpp's: the same target, head and prompts, with weights and caches in FP32.

    make compare-llama                                      # or, with more prompts:
    python benchmarks/compare_with_llama_cpp.py --prompts 40

The target is SmolLM2-135M-Instruct with its EAGLE-3 head. llama.cpp's own converter makes GGUF files in F32 of both.
Its server, compiled as for `benchmarks/llama_server.py`, decodes the same ids of HumanEval prompts, greedily, and
counts rounds, drafts and accepted drafts by position per request, not per round.

Two rules of llama.cpp for the end of a text are applied to the counts here: a round drafts at most one token less than
`--tokens` has left, and accepts no draft after the end-of-text token, nor this token itself before the last draft.

llama.cpp adds in an order of its own, so that tokens with nearly the same logit can change places. The exit status is 1
if fewer than `--equal` of the prompts have the same text, rounds, drafts and accepted drafts by position, or if the
acceptance lengths of all prompts differ by more than `--tolerance`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cpu.engines import MAX_DRAFTS, REAL, build
from llama_server import built
from peers.commands import checkpoint_folder
from peers.environments import ROOT
from peers.llama_cpp_source import convert, requirement
from rounds import Answer, accepted_by_position, prompts_for

from peagle.engines import Engine

WORK = Path("build/compare")
FILES = {"target": "target-f32.gguf", "head": "eagle3-f32.gguf"}
START_SECONDS = 120
_SAMPLE = re.compile(r"^llamacpp:spec_decode_num_(\w+)_total(?:\{position=\"(\d+)\"\})? (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Counts:
    """The ids of a greedy answer, and the sums over its rounds with drafts."""

    tokens: tuple[int, ...]
    rounds: int
    drafted: int
    positions: tuple[int, ...]

    @classmethod
    def of(cls, answer: Answer, k: int, most: int, ends: Collection[int]) -> Counts:
        """Return the counts of an engine's answer of at most ``most`` tokens, by llama.cpp's rules for its end."""
        at = 1  # the prompt's pass emits one token
        drafted, accepted = [], []
        for drafts, right in zip(answer.drafted, answer.accepted, strict=True):
            made = min(drafts, most - at - 1)
            if made < 1:
                break
            kept = min(right, made)
            if answer.tokens[-1] in ends:
                before = len(answer.tokens) - 1 - at  # drafts of this round that the end-of-text token is after
                kept = min(kept, before) if before + 1 < made else kept
            drafted.append(made)
            accepted.append(kept)
            at += right + 1
        rounds = Answer(answer.tokens, tuple(drafted), tuple(accepted))
        return cls(answer.tokens, len(drafted), sum(drafted), accepted_by_position([rounds], k))

    @property
    def acceptance_length(self) -> float:
        """Mean tokens of a round; 1 if there are none."""
        return 1 + sum(self.positions) / self.rounds if self.rounds else 1.0

    def cells(self) -> str:
        """Return the figures as cells of a table."""
        positions = " ".join(f"{count:,}" for count in self.positions)
        return f"{len(self.tokens):,} | {self.rounds:,} | {self.drafted:,} | {positions} | {self.acceptance_length:.3f}"


def total(several: Sequence[Counts]) -> Counts:
    """Return the sums over several prompts; the tokens are all of them in a row."""
    positions = tuple(sum(column) for column in zip(*(each.positions for each in several), strict=True))
    tokens = tuple(token for each in several for token in each.tokens)
    return Counts(tokens, sum(each.rounds for each in several), sum(each.drafted for each in several), positions)


def verdict(a: Counts, b: Counts) -> str:
    """Return in words whether two answers are equal."""
    if a == b:
        return "equal"
    pairs = enumerate(zip_longest(a.tokens, b.tokens))
    place = next((at for at, (ours, theirs) in pairs if ours != theirs), None)
    return "same text, other rounds" if place is None else f"other text from token {place}"


def counters(metrics: str) -> Counter[str]:
    """Return the sums over all rounds so far from the text of `/metrics`: `drafts`, `draft_tokens`, and by position."""
    return Counter({name + position: int(value) for name, position, value in _SAMPLE.findall(metrics)})


def problems(ours: Sequence[Counts], theirs: Sequence[Counts], share: float, tolerance: float) -> list[str]:
    """Return in which respects the answers differ more than allowed; ``share`` of them must be equal."""
    found = []
    equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
    if equal < share * len(ours):
        found.append(f"{equal} of {len(ours)} answers are equal, fewer than {share:.0%}")
    lengths = [total(each).acceptance_length for each in (ours, theirs)]
    if abs(lengths[0] / lengths[1] - 1) > tolerance:
        found.append(f"acceptance lengths {lengths[0]:.3f} and {lengths[1]:.3f} differ by more than {tolerance:.0%}")
    return found


@dataclass(frozen=True)
class Server:
    """A running llama.cpp server with one slot."""

    url: str

    def answer(self, prompt: Sequence[int], count: int, k: int) -> Counts:
        """Return the greedy answer of at most ``count`` tokens."""
        before = counters(self._text("/metrics"))
        question = {"prompt": list(prompt), "n_predict": count, "temperature": 0, "return_tokens": True}
        tokens = json.loads(self._text("/completion", question))["tokens"]
        spent = counters(self._text("/metrics")) - before
        positions = tuple(spent[f"accepted_tokens_per_pos{at}"] for at in range(k))
        return Counts(tuple(tokens), spent["drafts"], spent["draft_tokens"], positions)

    def is_ready(self) -> bool:
        """Return whether the server answers."""
        try:
            self._text("/health")
        except (urllib.error.URLError, ConnectionError):
            return False
        return True

    def _text(self, path: str, question: dict[str, Any] | None = None) -> str:
        body = None if question is None else json.dumps(question).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            text: str = response.read().decode()
        return text


@contextmanager
def serving(program: Path, files: Path, k: int, context: int, threads: int) -> Iterator[Server]:
    """Run the server on the two GGUF files in ``files`` while the block lasts. Raises ``SystemExit`` if it ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [str(program), "-m", str(files / FILES["target"]), "-md", str(files / FILES["head"]),
               "--spec-type", "draft-eagle3", "--spec-draft-n-max", str(k), "--spec-draft-p-min", "0",
               "--cache-type-k", "f32", "--cache-type-v", "f32", "--cache-type-k-draft", "f32",
               "--cache-type-v-draft", "f32", "--flash-attn", "off", "--ctx-size", str(context), "--parallel", "1",
               "--no-cache-prompt", "--metrics", "--threads", str(threads), "--port", str(port)]  # fmt: skip
    server = Server(f"http://127.0.0.1:{port}")
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            late = time.monotonic() + START_SECONDS
            while not server.is_ready():
                if process.poll() is not None or time.monotonic() > late:
                    log.seek(0)
                    raise SystemExit(f"llama.cpp's server did not start:\n{log.read()[-2000:]}")
                time.sleep(0.2)
            yield server
        finally:
            process.kill()


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=4, help="prompts of HumanEval, of 164; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer; default: %(default)s")
    parser.add_argument("--k", type=int, nargs="+", default=[4, 6], choices=range(1, MAX_DRAFTS + 1), metavar="K",
                        help="drafts per round; default: 4 6")  # fmt: skip
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both; default: %(default)s")
    parser.add_argument("--equal", type=float, default=0.9, help="least share of equal answers; default: %(default)s")
    parser.add_argument("--tolerance", type=float, default=0.01, help="largest relative difference of the acceptance "
                        "lengths of all prompts; default: %(default)s")  # fmt: skip
    return parser.parse_args()


def main() -> None:
    """Compare at every K, print the sums, and set the exit status."""
    options = parse_arguments()
    flags = (*REAL, "--backend", "onnxruntime", "--precision", "fp32", "--num-speculative-tokens", str(MAX_DRAFTS))
    folder = build(WORK / "eagle3", *flags, "--draft", "eagle3")
    name = "llama.cpp of " + requirement().replace("==", " ")
    columns = "tokens | rounds | drafted | accepted at position 1 to K | acceptance length |"
    sums, wrong = [], []
    with Engine.load(folder, prefix_cache_bytes=0, threads=options.threads) as engine:
        manifest = engine.manifest
        if manifest.drafter is None:
            raise SystemExit(f"{folder} has no drafter; remove it and run the same command again")
        target = checkpoint_folder(Path(manifest.target.origin.source), WORK / "target")
        head = manifest.drafter.origin.source
        convert({WORK / FILES["target"]: (str(target),),
                 WORK / FILES["head"]: (head, "--target-model-dir", str(target))})  # fmt: skip
        program = built(ROOT)
        print(f"| prompt | runtime | {columns} llama.cpp |\n|---|---|---|---|---|---|---|---|", flush=True)
        for k in options.k:
            ours: list[Counts] = []
            theirs: list[Counts] = []
            with serving(program, WORK, k, engine.max_seq_len, options.threads) as server:
                for each in prompts_for(engine, options.prompts, options.tokens):
                    answer = Answer.of(engine, each.input.ids, options.tokens, "eagle3", k)
                    ours.append(Counts.of(answer, k, options.tokens, manifest.eos_token_ids))
                    theirs.append(server.answer(each.input.ids, options.tokens, k))
                    a, b = ours[-1], theirs[-1]
                    print(f"| K = {k}, {each.prompt.id} | peagle-compile | {a.cells()} | {verdict(a, b)} |")
                    print(f"| | llama.cpp | {b.cells()} | |", flush=True)
            equal = sum(a == b for a, b in zip(ours, theirs, strict=True))
            sums.append(f"| K = {k} | peagle-compile | {total(ours).cells()} | {equal} of {len(ours)} equal |")
            sums.append(f"| | {name} | {total(theirs).cells()} | |")
            wrong += [f"K = {k}: {text}" for text in problems(ours, theirs, options.equal, options.tolerance)]
    print(f"\n| | runtime | {columns} answers |\n|---|---|---|---|---|---|---|---|")
    print("\n".join([*sums, *wrong]))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
