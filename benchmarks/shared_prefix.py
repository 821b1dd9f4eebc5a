"""Measure the time to first token of a prompt and of one that begins alike, over HTTP, by a server with its defaults.

    python benchmarks/shared_prefix.py ENGINE_DIR [--system-words 1400] [--turns 10] [-- FLAG ...]

Each turn sends two streamed chats with one new system prompt and different questions, one after the other. The time
ends with the first piece of text. The flags after ``--`` go to ``peagle-compile serve``. The client and the server are
processes of this machine; real-time priority (`chrt -f 10`) holds for both.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import statistics
import string
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

QUESTIONS = ("Name three of these rules.", "Which rule matters most to a reader?")
SECONDS = 120


@dataclass
class Firsts:
    """Seconds to the first token of the first and the second chat of each turn, and how the second was read."""

    new: list[float] = field(default_factory=list)
    like: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the report."""
        shares = [like / new for like, new in zip(self.like, self.new, strict=True)]
        hits = statistics.median(part / whole for part, whole in zip(self.cached, self.tokens, strict=True))
        return [
            f"prompt of the second chat: {statistics.median(self.tokens):.0f} tokens, {hits:.1%} from the prefix cache",
            f"first token of the first chat: {spread([1000 * each for each in self.new])} ms",
            f"first token of the second chat: {spread([1000 * each for each in self.like])} ms",
            f"second by first, each turn: {spread([100 * each for each in shares])} %",
        ]


def spread(values: Sequence[float]) -> str:
    """Return the median and the range."""
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def system_prompt(words: int, chance: random.Random) -> str:
    """Return letters, each of them a token in most vocabularies, in an order of their own from the first one on."""
    return " ".join([f"{chance.randrange(10**6)}:", *chance.choices(string.ascii_lowercase, k=words)])


@contextmanager
def serving(engine: Path, flags: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Start a server; yield its address."""
    command = [sys.executable, "-m", "peagle", "serve", str(engine), "--port", "0", "--served-model-name", "m", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            line = process.stdout.readline() if process.stdout else ""
            if not line.startswith("http://"):
                raise SystemExit(f"the server does not start: {' '.join(command)}")
            host, _, port = line.split()[0].removeprefix("http://").partition(":")
            yield host, int(port)
        finally:
            process.terminate()


def ask(address: tuple[str, int], system: str, question: str) -> tuple[float, int, int]:
    """Send a chat; return the seconds to its first token, the tokens of the prompt, and those from the cache."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    body = {"model": "m", "messages": messages, "max_tokens": 8, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    connection = http.client.HTTPConnection(*address, timeout=SECONDS)
    began, first = time.perf_counter(), 0.0
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    usage: dict[str, Any] = {}
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line.removeprefix(b"data: "))
        if not first and any(choice["delta"].get("content") for choice in chunk["choices"]):
            first = time.perf_counter() - began
        usage = chunk.get("usage") or usage
    connection.close()
    return first, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def measure(address: tuple[str, int], prompts: Sequence[str]) -> Firsts:
    """Ask two questions after each system prompt."""
    firsts = Firsts()
    for system in prompts:
        firsts.new.append(ask(address, system, QUESTIONS[0])[0])
        seconds, tokens, cached = ask(address, system, QUESTIONS[1])
        firsts.like.append(seconds)
        firsts.tokens.append(tokens)
        firsts.cached.append(cached)
    return firsts


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure first tokens of prompts that begin alike.")
    parser.add_argument("engine", type=Path, help="folder made by `peagle-compile build`")
    parser.add_argument("--system-words", type=int, default=1400)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("flags", nargs="*", help="further flags of `peagle-compile serve`")
    arguments = parser.parse_args()
    chance = random.Random(7)
    prompts = [system_prompt(arguments.system_words, chance) for _ in range(arguments.turns + 1)]
    with serving(arguments.engine, arguments.flags) as address:
        measure(address, prompts[:1])  # caches of the rows get their memory
        print("\n".join(measure(address, prompts[1:]).lines()))


if __name__ == "__main__":
    main()
