"""Tune an engine: measure cost and gain of its drafts on this machine and the user's prompts, and store them.

A build measures this for the machine that it runs on. An engine that runs on another machine, or for texts unlike the
bundled prompts, starts from better figures after tuning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import BUILT_IN, FILE_NAME, Manifest, in_oldest_format
from ...engines.folder.records import MeasuredRounds, Speculation
from ...engines.policy.prior import Prior, measured, tokens_by_k
from ...engines.requests.arguments import integer
from ...plugins.errors import UsageError
from ..bundled.prompts import Prompt
from ..console.progress import Progress, Quiet
from ..pipeline.batch_costs import measure_batches
from ..pipeline.check_numbers import prompts_for
from ..pipeline.choose_k import measure_k
from ..pipeline.engine_drafters import changing
from ..store.atomic_files import require_writable, writing
from .prompt_file import read_prompts
from .workloads import WORKLOADS, encode_prompts, spaced

_FIX = "use shorter prompts, or an engine with a larger --max-seq-len"  # an answer has the rest of the room


@dataclass(frozen=True)
class TuneOptions:
    """Options of ``tune``; ``peagle-compile tune --help`` describes them."""

    engine: Path
    workload: str | None = None
    prompts: Path | None = None
    num_prompts: int = 4
    max_batch_size: int = 4
    draft: str | None = None
    threads: int | None = None

    def check(self) -> None:
        """Raise ``UsageError`` for options that are invalid for every engine, or contradict each other."""
        integer("--num-prompts", self.num_prompts, 1)
        integer("--max-batch-size", self.max_batch_size, 1)
        if self.workload is not None and self.prompts is not None:
            raise UsageError("--workload and --prompts cannot be combined", fix="omit one of them")
        available = [name for name, each in WORKLOADS.items() if each.questions]
        if self.workload is not None and self.workload not in available:
            raise UsageError(f"unknown --workload {self.workload}", fix=f"use one of {', '.join(available)}")

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of requests to measure in addition to 1: powers of two, and the largest number."""
        powers = {1 << power for power in range(1, self.max_batch_size.bit_length())}
        return tuple(sorted(powers | ({self.max_batch_size} - {1})))


@dataclass(frozen=True)
class Tuned:
    """The figures of one drafter of an engine, as the engine has them now. ``notes`` list what was left out."""

    engine: Path
    drafter: str
    speculation: Speculation
    notes: tuple[str, ...] = ()

    @property
    def gains(self) -> dict[int, tuple[float, ...]]:
        """Tokens per second by K, over plain decoding of as many requests at once, by their number."""
        prior = _prior(self.speculation)
        tokens = tokens_by_k(prior.rates)
        rows = (1, *prior.batches)
        return {
            each: tuple(many / cost for many, cost in zip(tokens, prior.costs_of(each), strict=True)) for each in rows
        }

    def as_json(self) -> dict[str, Any]:
        """Return the result for programs."""
        gains = {rows: [round(each, 3) for each in of_k] for rows, of_k in self.gains.items()}
        return {
            "engine": str(self.engine),
            "drafter": self.drafter,
            "num_speculative_tokens": self.speculation.num_speculative_tokens,
            "adapts": self.speculation.adapts,
            "tokens_per_round": list(_measured(self.speculation).tokens),
            "requests": [
                {"requests": rows, "fastest": of_k.index(max(of_k)), "over_plain": of_k} for rows, of_k in gains.items()
            ],
            "notes": list(self.notes),
        }


def tune(options: TuneOptions, progress: Progress | None = None) -> Tuned:
    """Measure rounds of one and of several requests at every K, and write the figures into the engine's manifest.

    The text of the engine does not change. Raises ``UsageError`` for an engine that cannot draft and for a drafter that
    it lacks, and ``EnvironmentProblem`` for an engine that this machine cannot run. The engine is unchanged then, and
    after Ctrl-C.
    """
    from ...engines.engine import Engine

    options.check()
    progress = progress or Quiet()
    manifest, drafter = _using(options)
    require_writable(options.engine / FILE_NAME)
    max_drafts = manifest.speculation.max_num_speculative_tokens
    found, draft = _questions(options, progress), drafter or None
    with progress.step("load the engine"):
        engine = Engine.load(options.engine, threads=options.threads, prefix_cache_bytes=0, draft=draft)
    with engine:
        ids, notes = prompts_for(engine, options.num_prompts), tuple[str, ...]()
        if found:
            name = str(options.prompts or options.workload)
            encoded = encode_prompts(engine, name, found, max(engine.max_seq_len // 2, 1), fix=_FIX)
            ids, notes = [list(each.input.ids) for each in encoded.prompts], encoded.notes
        choice = measure_k(engine, ids, max_drafts, progress)
    batches = measure_batches(
        options.engine, manifest, options.rows, choice, progress, draft=draft, prompts=ids, threads=options.threads
    )
    rounds = replace(choice.measured, batches=batches)
    with writing(options.engine, 0), changing(options.engine, progress):
        speculation = _store(options.engine, drafter, rounds, manifest)
    return Tuned(options.engine, drafter, speculation, notes)


def _using(options: TuneOptions) -> tuple[Manifest, str]:
    """Return the manifest of the engine with the drafter to tune, and the name of that, empty without a head."""
    manifest = Manifest.read(options.engine)
    drafter = options.draft or manifest.drafter_name
    if options.draft is not None and options.draft not in {manifest.drafter_name, *manifest.drafters} - {""}:
        known = ", ".join(name for name in (manifest.drafter_name, *manifest.drafters) if name) or "none"
        raise UsageError(
            f"{options.engine} has no drafter named {options.draft}",
            why=f"the drafters of the engine are: {known}",
            fix="name one of them, or add a drafter with `peagle-compile drafter add`",
        )
    used = manifest.using(drafter) if drafter else manifest
    if not used.speculation.max_num_speculative_tokens:
        raise UsageError(
            f"{options.engine} cannot be tuned",
            why="the engine was built for plain decoding, so there is no K to choose",
            fix="build the engine with a drafter (`--draft`)",
        )
    return used, drafter


def _questions(options: TuneOptions, progress: Progress) -> list[Prompt]:
    """Return the prompts that the options name; none if they name none."""
    if options.prompts is not None:
        return spaced(read_prompts(options.prompts), options.num_prompts)
    questions = WORKLOADS[options.workload].questions if options.workload else None
    return spaced(questions(progress), options.num_prompts) if questions else []


def _store(engine: Path, drafter: str, rounds: MeasuredRounds, measured_with: Manifest) -> Speculation:
    """Write the figures of a drafter into the manifest as it is now.

    Raises ``UsageError`` if the engine was replaced in the meantime.
    """
    now = Manifest.read(engine)
    its = now.using(drafter) if not drafter or drafter == BUILT_IN or drafter in now.drafters else None
    if its is None or its.target != measured_with.target or its.drafter != measured_with.drafter:
        raise UsageError(
            f"{engine} was changed while it was being measured",
            why="the measured figures belong to files that no longer exist",
            fix="run the same command again",
        )
    k = _prior_of(rounds, its.speculation).best
    speculation = replace(its.speculation, measured=rounds)
    if speculation.adapts:
        speculation = replace(speculation, num_speculative_tokens=max(k, 1))
    if drafter in now.drafters:
        added = {**now.drafters, drafter: replace(now.drafters[drafter], speculation=speculation)}
        now = replace(now, drafters=added)
    else:
        now = replace(now, speculation=speculation)
    in_oldest_format(now).write(engine)
    return speculation


def _measured(speculation: Speculation) -> MeasuredRounds:
    return speculation.measured or MeasuredRounds((1.0,), (1.0,))


def _prior(speculation: Speculation) -> Prior:
    return _prior_of(_measured(speculation), speculation)


def _prior_of(rounds: MeasuredRounds, speculation: Speculation) -> Prior:
    max_drafts = speculation.max_num_speculative_tokens
    return measured(rounds.tokens, rounds.costs, max_drafts, {each.rows: each.costs for each in rounds.batches})
