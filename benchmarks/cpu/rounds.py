"""Break down the time of whole rounds of an engine that decodes several requests together."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from peagle.compiler.bundled.prompts import code_prompts
from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import lanes as session_lanes
from peagle.engines.backends.onnxruntime.backend import OnnxRuntimeBackend
from peagle.engines.scheduling.scheduler import Scheduler

_PROMPT = 160  # tokens
_TURNS = 3


class Clock:
    """Call counts and total seconds of some functions."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    def watch(self, owner: Any, name: str, called: Callable[..., str]) -> None:
        """Count and time calls of ``owner.name``, under the label that ``called`` derives from the arguments."""
        plain = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                self.seconds[called(*args)] += time.perf_counter() - began
                self.calls[called(*args)] += 1

        setattr(owner, name, timed)

    def clear(self) -> None:
        """Reset all counts."""
        self.seconds.clear()
        self.calls.clear()


def report_rounds(folder: Path, together: Sequence[int], k: int, threads: int, tokens: int = 128) -> None:
    """Print a round's milliseconds by function for concurrent requests, plain and with ``k`` drafts, if any."""
    engine, clock = Engine.load(folder, threads=threads, max_batch_size=max(together), prefix_cache_bytes=0), Clock()
    drafter = engine._backend._sessions.drafter  # type: ignore[attr-defined]
    clock.watch(session_lanes, "run", lambda session, _: "drafter" if session is drafter else "target")
    clock.watch(OnnxRuntimeBackend, "round", lambda *_: "round")
    clock.watch(OnnxRuntimeBackend, "prompt", lambda *_: "prompt")
    clock.watch(OnnxRuntimeBackend, "retire", lambda *_: "retire")
    clock.watch(Scheduler, "step", lambda *_: "step")
    stream = [token for prompt in code_prompts() for token in engine.tokenizer.encode(prompt.text)]
    while len(stream) < _PROMPT + max(together):
        stream += stream
    prompts = [stream[at : at + _PROMPT] for at in range(max(together))]
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    print(f"whole rounds, {_PROMPT} prompt tokens, {tokens} decoded: milliseconds per round")
    titles = ("target", "drafter", "lanes", "rest", "a round", "tokens", "prompts")
    print(f"{'requests':>8}{'K':>3}" + "".join(f"{title:>9}" for title in titles) + f"{'moves':>7}{'tokens/s':>10}")
    for drafts in dict.fromkeys((0, k)):
        for count in together:
            for turn in range(_TURNS + 1):
                clock.clear()
                began = time.perf_counter()
                outputs = engine.generate(prompts[:count], params, num_speculative_tokens=drafts)
                decoded = sum(len(output.token_ids) - 1 for output in outputs)
                print_row(clock, count, drafts, decoded, time.perf_counter() - began, shown=turn > 0)
    print()
    engine.close()


def print_row(clock: Clock, count: int, drafts: int, decoded: int, seconds: float, *, shown: bool) -> None:
    """Print one run; the first run of a kind binds arrays and is not ``shown``."""
    spent, rounds = clock.seconds, clock.calls["round"]
    rest = spent["step"] - spent["round"] - spent["prompt"] - spent["retire"]
    lanes = spent["round"] - spent["target"] - spent["drafter"]
    parts = [1e3 * part / rounds for part in (spent["target"], spent["drafter"], lanes, rest)]
    numbers = "".join(f"{part:>9.2f}" for part in (*parts, sum(parts), decoded / rounds))
    speed = decoded / (seconds - spent["prompt"])
    if shown:
        moved = 1e3 * spent["retire"]
        print(f"{count:>8}{drafts:>3}{numbers}{1e3 * spent['prompt']:>9.0f}{moved:>7.0f}{speed:>10.0f}")
