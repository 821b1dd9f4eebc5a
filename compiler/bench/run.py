"""Run a benchmark: of engines in this process, or of a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.folder.manifest import Manifest
from ...plugins.errors import PeagleError, UsageError
from ...plugins.problems import counted
from ..bundled.prompts import Prompt
from ..console import interrupts
from ..console.exit_cleanup import defer_stops
from ..console.progress import Progress, Quiet
from .measure import Ask, Level, ModeTurn, answer_functions, groups_of, take_turns
from .modes import DecodingMode, modes_of
from .options import BenchOptions
from .origin import Rows, engine_rows, machine_rows
from .passes import MemoryFloor, pass_figures
from .peers import Peer
from .printing import requests, sampling
from .prompt_file import read_prompts
from .result import BenchResult
from .statistics import MIN_PAIRS
from .summary import figures_of
from .workloads import WORKLOADS, Prompts, digest_of, encode_prompts, spaced

if TYPE_CHECKING:
    from ...engines import Engine, SamplingParams

_STEP = "measure"


@dataclass
class BenchRun:
    """A benchmark in progress: ``result`` has the figures of the turns that are finished."""

    options: BenchOptions
    origin: Rows = field(default_factory=list)
    modes: list[DecodingMode] = field(default_factory=list)
    prompts: Sequence[Prompt] = ()
    notes: list[str] = field(default_factory=list)
    levels: list[Level] = field(default_factory=list)
    peers: dict[str, Peer] = field(default_factory=dict)
    memory: MemoryFloor | None = None
    decode: Callable[[Sequence[int]], str] | None = None

    def start(self, progress: Progress | None = None) -> BenchResult:
        """Measure everything and return the result. Raises ``UsageError`` or ``EnvironmentProblem``."""
        self.options.check()
        self.origin += machine_rows()
        progress = progress or Quiet()
        if self.options.url is None:
            self._measure_engines(progress)
        else:
            self._measure_server(self.options.url, progress)
        return self.result()

    @contextmanager
    def keeping(self, keep: Callable[[BenchResult], None]) -> Iterator[None]:
        """Pass the figures of the finished turns, if there are any, to ``keep`` after an error or a stop in the block.

        The error is raised again. A note names it.
        """
        try:
            yield
        except (PeagleError, KeyboardInterrupt, interrupts.Termination) as error:
            with defer_stops():  # else a stop would lose the figures
                if any(level.turns for level in self.levels):
                    self.notes.append(f"the measurement ended early: {_reason(error)}")
                    keep(self.result())
            raise

    def result(self) -> BenchResult:
        """Return the figures of the finished turns."""
        figures = figures_of(
            self.levels, self.modes, self.prompts, decode=self.decode, price_per_hour=self.options.price_per_hour
        )
        return BenchResult(
            command=self.options.command,
            origin=self.origin,
            notes=(*self.notes, *dict.fromkeys(self._few_pairs()), *self._losses(), *self._bursts()),
            figures=tuple(figures),
            methods={mode.title: mode.method for mode in self.modes},
            counts={mode.title: mode.k for mode in self.modes if isinstance(mode.k, int)},
            rival=next((mode.method for mode in self.modes if mode.is_autoregressive), None),
            passes=tuple(pass_figures(self.levels, self.modes, self.memory)),
            engines={mode.title: mode.engine for mode in self.modes if not mode.is_server},
        )

    def _few_pairs(self) -> Iterator[str]:
        """Yield a note on every concurrency with too few pairs for a sign test."""
        for level in self.levels:
            pairs = len({each.group for turn in level.turns for each in turn.values()})
            if self.decode is not None and 0 < pairs < MIN_PAIRS and len(self.modes) > 1:
                yield (
                    f"{requests(level.concurrency)}: the sign test has {counted(pairs, 'pair')}, and with fewer than "
                    f"{MIN_PAIRS}, p cannot be below 0.05: measure more prompts"
                )

    def _losses(self) -> Iterator[str]:
        """Yield a note on every peer that failed and was dropped."""
        for name, peer in self.peers.items():
            if peer.problem:
                turns = sum(name in turn for level in self.levels for turn in level.turns)
                yield f"{name} was dropped after {counted(turns, 'turn')}: {peer.problem}"

    def _bursts(self) -> Iterator[str]:
        """Yield a note on every server whose answers arrived in one piece."""
        for name in [mode.title for mode in self.modes if mode.is_server]:
            turns = [turn[name] for level in self.levels for turn in level.turns if name in turn]
            answers = [answer for turn in turns for answer in turn.answers if answer.tokens > 1]
            if count := sum(not answer.is_timed for answer in answers):
                yield (
                    f"{count} of {len(answers)} answers of {name} arrived in one piece, so their speed is unknown: the "
                    "server does not stream, or was too busy to send single tokens"
                )

    def _measure_engines(self, progress: Progress) -> None:
        from ...engines import Engine

        options, folders = self.options, self.options.engines
        manifests = [Manifest.read(folder) for folder in folders]
        _require_one_target(folders, manifests)
        self.notes += _differing_arithmetic(manifests)
        self.modes = modes_of(manifests, options.draft, options.num_speculative_tokens)
        servers = options.servers
        _require_other_names(servers, self.modes)
        for server in servers.values():
            _ = server.model  # a peer that is not there is named before engines are loaded
        found = self._found(progress)
        with (
            progress.step("load the engine"),
            Engine.load(folders[0], threads=options.threads, prefix_cache_bytes=0) as engine,
        ):
            prompts, max_tokens = self._encoded(engine, found)
            self.decode = _decoder(engine)
        self.prompts, ignores = [each.prompt for each in prompts.prompts], options.ignore_eos or self._ignores_end
        self.notes += prompts.notes
        self.origin += [
            *engine_rows(folders, manifests, options.threads),
            ("workload", f"{prompts.name}: {len(prompts.prompts)} prompts, digest {prompts.digest}"),
            (
                "decoding",
                f"{self._sampling(max_tokens)}, {'end of text ignored' if ignores else 'to the end of the answer'}",
            ),
        ]
        with progress.step("measure memory"):
            self.memory = MemoryFloor.measure(folders, manifests, options.threads)
        self.origin += [("memory", self.memory.in_words)] if self.memory else []
        for name, server in servers.items():
            fields = self._fields(max_tokens, ignores=ignores)
            peer = Peer.start(server, fields, prompts.prompts, options.seed, options.temperature)
            self.peers[name] = peer
            self.origin.append((f"peer {name}", peer.description))
        engine_modes = [*self.modes]
        self.modes += [DecodingMode.of_server(name, is_peer=True) for name in self.peers]

        def load(concurrency: int) -> Callable[[int], Engine]:
            return lambda index: Engine.load(
                folders[index], threads=options.threads, max_batch_size=concurrency, check="sizes", prefix_cache_bytes=0
            )

        def params(temperature: float, at: int) -> SamplingParams:
            from ...engines import SamplingParams

            return SamplingParams(
                max_tokens=max_tokens, temperature=temperature, seed=options.seed + at, ignore_eos=ignores
            )

        by_temperature = {each: partial(params, each) for each in options.temperature}
        with progress.step(_STEP, self._calls(len(prompts.prompts))) as advance:
            for concurrency in options.concurrency:
                with answer_functions(
                    load(concurrency), engine_modes, prompts.prompts, by_temperature, concurrency
                ) as ways:
                    ways |= {name: peer.answer for name, peer in self.peers.items()}
                    self._levels(concurrency, ways, len(prompts.prompts), advance)

    def _measure_server(self, url: str, progress: Progress) -> None:
        options, found = self.options, spaced(self._found(progress) or [], self.options.num_prompts)
        server = replace(options.server(url), fields=self._fields(options.max_tokens, ignores=options.ignore_eos))
        title = server.model
        self.modes = [DecodingMode.of_server(title)]
        self.prompts, texts = found, [each.text for each in found]
        self.origin += [
            ("server", f"{url}, model {title}, {server.endpoint}"),
            ("workload", f"{self._workload}: {len(found)} prompts, digest {digest_of(texts)} of their texts"),
            ("decoding", self._sampling(options.max_tokens)),
        ]

        def answer(group: Sequence[int], temperature: float) -> ModeTurn:
            return server.answer(group, texts, options.seed, temperature)

        with progress.step(_STEP, self._calls(len(found))) as advance:
            for temperature in options.temperature:
                server.warm_up(texts, options.seed, temperature)
            for concurrency in options.concurrency:
                self._levels(concurrency, {title: answer}, len(found), advance)

    def _fields(self, max_tokens: int, *, ignores: bool) -> dict[str, object]:
        """Return the fields that are the same in every request to a server."""
        return {"max_tokens": max_tokens, **({"ignore_eos": True} if ignores else {})}

    def _levels(self, concurrency: int, ways: Mapping[str, Ask], prompts: int, advance: Callable[[int], None]) -> None:
        groups = groups_of(prompts, concurrency)
        if (left := prompts - concurrency * len(groups)) > 0:
            self.notes.append(f"{left} of {prompts} prompts were skipped: they do not fill a group of {concurrency}")
        levels = [Level(concurrency, temperature=each) for each in self.options.temperature]
        self.levels += levels
        take_turns(ways, groups, self.options.repeats, levels, advance)

    def _calls(self, prompts: int) -> int:
        """Return the number of groups that are answered, over all modes and levels."""
        groups = sum(len(groups_of(prompts, concurrency)) for concurrency in self.options.concurrency)
        return groups * self.options.repeats * len(self.modes) * len(self.options.temperature)

    @property
    def _workload(self) -> str:
        return self.options.workload_name if self.options.prompts is None else self.options.prompts.name

    @property
    def _ignores_end(self) -> bool:
        return self.options.prompts is None and WORKLOADS[self.options.workload_name].ignores_end

    def _found(self, progress: Progress) -> list[Prompt] | None:
        """Return the questions; None for a workload that is made for an engine."""
        if self.options.prompts is not None:
            return read_prompts(self.options.prompts)
        questions = WORKLOADS[self.options.workload_name].questions
        return questions(progress) if questions else None

    def _encoded(self, engine: Engine, found: Sequence[Prompt] | None) -> tuple[Prompts, int]:
        """Return the prompts for an engine, and the tokens of an answer, at most half of what a request can have."""
        options = self.options
        max_tokens = max(min(options.max_tokens, engine.max_seq_len // 2), 1)
        if max_tokens < options.max_tokens:
            self.notes.append(
                f"answers are limited to {max_tokens} tokens instead of {options.max_tokens}: the engine's max_seq_len "
                f"is {engine.max_seq_len}"
            )
        room = engine.max_seq_len - max_tokens
        if found is not None:
            return encode_prompts(engine, self._workload, spaced(found, options.num_prompts), room), max_tokens
        make = WORKLOADS[options.workload_name].ids
        generated = make(engine, room) if make else []
        return Prompts(self._workload, tuple(spaced(generated, options.num_prompts))), max_tokens

    def _sampling(self, max_tokens: int) -> str:
        options = self.options
        return f"{', '.join(map(sampling, options.temperature))}, seed {options.seed}, up to {max_tokens} tokens"


def _reason(error: BaseException) -> str:
    """Return why a measurement ended early; an error after a stop is attributed to the stop."""
    if isinstance(error, PeagleError) and interrupts.requested_signal() is None:
        return error.one_line
    return "it was interrupted"


def _require_one_target(folders: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    """Raise ``UsageError`` unless all engines have the same target, whose text is compared."""
    revisions = {manifest.target.origin.revision for manifest in manifests}
    if len(revisions) > 1:
        raise UsageError(
            f"the engines {', '.join(map(str, folders))} have different targets",
            why="speeds are comparable only between engines that generate the same text",
            fix="measure each target separately",
        )


def _differing_arithmetic(manifests: Sequence[Manifest]) -> Iterator[str]:
    """Yield a note on every engine whose target computes in another way than that of the first, which decodes plain."""
    first, *others = (_arithmetic(manifest) for manifest in manifests)
    for number, other in enumerate(others, 2):
        if other != first:
            yield (
                f"the target of engine {number} has another precision or lowering than that of engine 1, so its text "
                "may differ from plain decoding with engine 1 for this reason too"
            )


def _arithmetic(manifest: Manifest) -> object:
    """Return what the values of the target's logits depend on, apart from its weights."""
    types = {name: kind for name, kind in manifest.precision.items() if name != "drafter"}
    return types, manifest.backend.name, manifest.backend.lowering


def _require_other_names(peers: Iterable[str], modes: Sequence[DecodingMode]) -> None:
    """Raise ``UsageError`` for a peer that is named like a mode of the engines."""
    for name in peers:
        if name in {mode.title for mode in modes}:
            raise UsageError(f"--peer {name} has the same name as a mode of the engines", fix="choose another name")


def _decoder(engine: Engine) -> Callable[[Sequence[int]], str]:
    """Return a function that shows a token; it must not keep the engine."""
    tokenizer = engine.tokenizer
    return lambda ids: f"{ids[0]} {tokenizer.decode(ids)!r}"
