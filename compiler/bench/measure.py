"""Measure modes in turns: every mode answers a group of prompts before the next group begins."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING

from ...engines.requests.results import Acceptance
from ..console.progress import Advance
from .modes import DecodingMode
from .workloads import EncodedPrompt

if TYPE_CHECKING:
    from ...engines import Engine, SamplingParams, Submission

    Params = Callable[[int], SamplingParams]  # of a prompt by its index

_WARM_TOKENS = 4  # of the first calls, which allocate and are not counted


@dataclass(frozen=True)
class TimedAnswer:
    """One answered request, as its reader saw it.

    ``pieces`` are the pieces of the stream after the first: seconds since the one before, and number of tokens.
    ``decode_seconds`` is the time after the first token. ``acceptance`` is None if the server does not report it, and a
    server tells no ``token_ids``.
    """

    prompt: int
    text: str
    token_ids: tuple[int, ...]
    tokens: int
    first_seconds: float
    decode_seconds: float
    pieces: tuple[tuple[float, int], ...]
    acceptance: Acceptance | None

    @property
    def is_timed(self) -> bool:
        """Return True if tokens came after the first piece, so that there is a speed."""
        return self.tokens > 1 and self.decode_seconds > 0


@dataclass(frozen=True)
class ModeTurn:
    """The answers of one mode to one group of prompts, which ran at the same time, and the seconds of the group."""

    answers: tuple[TimedAnswer, ...]
    seconds: float

    @property
    def group(self) -> tuple[int, ...]:
        """The prompts, by index."""
        return tuple(answer.prompt for answer in self.answers)

    @property
    def user_speed(self) -> float:
        """Tokens per second of one user after the first token; 0 if none came after it."""
        timed = [answer for answer in self.answers if answer.is_timed]
        seconds = sum(answer.decode_seconds for answer in timed)
        return sum(answer.tokens - 1 for answer in timed) / seconds if timed else 0.0

    @property
    def total_speed(self) -> float:
        """Tokens per second of the whole group, prompts included."""
        return sum(answer.tokens for answer in self.answers) / max(self.seconds, 1e-9)


Turn = Mapping[str, ModeTurn]  # by title of the mode
# A group of prompts by index, and the temperature; None from a peer that has left.
Ask = Callable[[Sequence[int], float], ModeTurn | None]


@dataclass
class Level:
    """The finished turns of all modes at one concurrency and temperature."""

    concurrency: int
    turns: list[Turn] = field(default_factory=list)
    temperature: float = 0.0


def named_temperature(level: Level, levels: Sequence[Level]) -> float | None:
    """Return the temperature of a level; None if all levels have the same, so that figures need not name it."""
    return level.temperature if len({each.temperature for each in levels}) > 1 else None


def groups_of(count: int, concurrency: int) -> list[tuple[int, ...]]:
    """Return groups of ``concurrency`` prompts, by index, of ``count`` prompts; too few are asked more than once."""
    return [
        tuple((first * concurrency + each) % count for each in range(concurrency))
        for first in range(max(count // concurrency, 1))
    ]


def take_turns(
    modes: Mapping[str, Ask], groups: Sequence[Sequence[int]], repeats: int, levels: Sequence[Level], advance: Advance
) -> None:
    """Answer every group in every mode at the temperature of every level, and append finished turns to the levels.

    Each turn begins with another mode and temperature, and lacks the peers that have left.
    """
    places = [(level.temperature, name) for level in levels for name in modes]
    for at in range(repeats * len(groups)):
        first = at % len(places)
        done = {}
        for temperature, name in (*places[first:], *places[:first]):
            answered = modes[name](groups[at % len(groups)], temperature)
            if answered is not None:
                done[temperature, name] = answered
            advance(1)
        for level in levels:
            own = {name: done.get((level.temperature, name)) for name in modes}
            level.turns.append({name: answered for name, answered in own.items() if answered is not None})


@contextmanager
def answer_functions(
    load: Callable[[int], AbstractContextManager[Engine]],
    modes: Sequence[DecodingMode],
    prompts: Sequence[EncodedPrompt],
    params: Mapping[float, Params],
    concurrency: int = 1,
) -> Iterator[dict[str, Ask]]:
    """Load the engines of the modes and yield what answers groups of prompts, after an uncounted group of each.

    ``params`` are the sampling parameters by temperature, and ``concurrency`` is the size of the groups.
    """
    warming = {temperature: partial(_warming, of_prompt) for temperature, of_prompt in params.items()}
    with ExitStack() as up:
        engines = {index: up.enter_context(load(index)) for index in dict.fromkeys(mode.engine for mode in modes)}
        for mode in modes:
            group = groups_of(len(prompts), concurrency)[0]
            for temperature in params:
                _answers(engines[mode.engine], mode, prompts, warming, group, temperature)
        yield {mode.title: partial(_answers, engines[mode.engine], mode, prompts, params) for mode in modes}


def _warming(params: Params, at: int) -> SamplingParams:
    return replace(params(at), max_tokens=_WARM_TOKENS, ignore_eos=True)


def _answers(
    engine: Engine,
    mode: DecodingMode,
    prompts: Sequence[EncodedPrompt],
    params: Mapping[float, Params],
    group: Sequence[int],
    temperature: float,
) -> ModeTurn:
    """Submit a group of prompts at once and read the pieces as they arrive."""
    of_prompt = params[temperature]
    started = time.perf_counter()
    running = [
        engine.submit(prompts[at].input, of_prompt(at), draft=mode.draft, num_speculative_tokens=mode.k) for at in group
    ]
    pieces = _arrivals(running)
    seconds = time.perf_counter() - started
    answers = []
    for at, submission, arrived in zip(group, running, pieces, strict=True):
        output = submission.result()
        answers.append(
            TimedAnswer(
                prompt=at,
                text=output.text,
                token_ids=output.token_ids,
                tokens=len(output.token_ids),
                first_seconds=output.time_to_first_token,
                decode_seconds=output.decode_seconds,
                pieces=gaps(arrived),
                acceptance=output.acceptance,
            )
        )
    return ModeTurn(tuple(answers), seconds)


def _arrivals(running: Sequence[Submission]) -> list[list[tuple[float, int]]]:
    """Return the times and numbers of tokens of all pieces; one thread reads all of them as they come."""
    pieces: list[list[tuple[float, int]]] = [[] for _ in running]
    ready: SimpleQueue[int] = SimpleQueue()
    for at in range(len(running)):
        ready.put(at)
    remaining = len(running)
    while remaining:
        at = ready.get()
        while True:
            is_there, delta = running[at].take_or_call(partial(ready.put, at))
            if not is_there:
                break
            if delta is None:
                remaining -= 1
                break
            pieces[at].append((time.perf_counter(), len(delta.token_ids)))
    return pieces


def gaps(arrived: Sequence[tuple[float, int]]) -> tuple[tuple[float, int], ...]:
    """Return the seconds between pieces that have tokens, with the tokens of the later one."""
    full = [piece for piece in arrived if piece[1]]
    return tuple((time - before, tokens) for (before, _), (time, tokens) in itertools.pairwise(full))
