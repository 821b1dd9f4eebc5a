"""Choose K, the number of drafts per round: measure which K decodes the most tokens per second on this machine."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.folder.manifest import Manifest, in_oldest_format
from ...engines.folder.records import BatchCosts, MeasuredRounds
from ...engines.policy.sweep import MeasuredK, near_fastest
from ...engines.text.template_files import read_templates
from ..console.progress import Advance, Progress
from ..console.progress_lines import Tokens
from ..hardware.cpu_in_use import measured_on
from ..store.stages import Stage
from .check_numbers import Ids, prompts_for, require_numbers
from .shared_steps import PipelineRun

if TYPE_CHECKING:
    from ...engines.engine import Engine

_PROMPTS, _SECONDS = 8, 9.0
_SWEEPS, _ANSWERS, _TOKENS = 3, 4, 48
_BEHIND = 0.8  # of the fastest: a K that is slower than this in every turn is dropped after two turns
_PATIENCE = 3  # times the time budget, until every prompt was decoded once
_MIN_SPEEDUP = 1.1  # speedup over the K of the plans that justifies rebuilding them


@dataclass(frozen=True)
class Decoded:
    """Measurement of decoding after a prompt's prefill; the last round may accept more tokens than are counted."""

    tokens: int
    seconds: float
    rounds: int
    accepted: int


Decode = Callable[[Any, int], Decoded]  # (prompt, K); K = 0 is plain decoding


@dataclass(frozen=True)
class Rate:
    """Decoding speed at one K in tokens per second: median and extremes over its ``turns``. K = 0 is plain decoding.

    ``tokens_per_round`` is the mean of all rounds; ``round_cost`` is the cost relative to a round of plain decoding,
    the median of paired ratios. A turn is an answer, or a few rounds of every K within one.
    """

    k: int
    tokens_per_second: float
    slowest: float
    fastest: float
    tokens_per_round: float
    round_cost: float
    turns: int


@dataclass(frozen=True)
class KChoice:
    """The fastest K, and the rates of every K."""

    k: int
    rates: tuple[Rate, ...]

    @property
    def speedup(self) -> float:
        """Return the speedup over plain decoding in the same run."""
        return self.gain_over(0)

    def gain_over(self, k: int) -> float:
        """Return the speedup over another K in the same run."""
        by_k = {rate.k: rate.tokens_per_second for rate in self.rates}
        return by_k[self.k] / by_k[k]

    def should_rebuild(self, k: int) -> bool:
        """Return True if plans that were made for ``k`` should be rebuilt for the fastest K."""
        return self.k != k and self.gain_over(k) >= _MIN_SPEEDUP

    @property
    def near_fastest(self) -> set[int]:
        """Return 0, and the K that are not far behind the fastest."""
        return near_fastest({rate.k: rate.tokens_per_round / rate.round_cost for rate in self.rates})

    @property
    def measured(self) -> MeasuredRounds:
        """Return the tokens and the cost of a round at every K, for the policy to start from."""
        tokens = tuple(round(rate.tokens_per_round, 3) for rate in self.rates)
        return MeasuredRounds(tokens, tuple(round(rate.round_cost, 3) for rate in self.rates))


def choose_k(
    decode: Decode,
    prompts: Sequence[Any],
    max_drafts: int,
    *,
    sweeps: int = 3,
    seconds: float = 30.0,
    advance: Advance = lambda _: None,
) -> KChoice:
    """Measure K = 0..``max_drafts`` in turn on each prompt, so that a slow moment of the machine affects every K.

    A K that is far behind in two turns is dropped: the others get its time, and the backend frees its resources.
    Measuring ends early, after a whole turn, when ``seconds`` of decoding are spent and every prompt was decoded, or
    when three times as many are spent. Setup for a K and prefill are not counted. ``advance`` gets the tokens of each
    decoding.
    """
    running = list(range(max_drafts + 1))
    measured: dict[int, list[Decoded]] = {k: [] for k in running}
    for k in (0, max_drafts):  # first calls allocate
        advance(decode(prompts[0], k).tokens)
    spent = 0.0
    for turn in range(sweeps * len(prompts)):
        rotation = turn % len(running)
        for k in (*running[rotation:], *running[:rotation]):
            measured[k].append(decode(prompts[turn % len(prompts)], k))
            spent += measured[k][-1].seconds
            advance(measured[k][-1].tokens)
        advance(sum(measured[k][-1].tokens for k in measured.keys() - {*running}))  # the share of those dropped
        if spent > seconds * (1 if turn + 1 >= len(prompts) else _PATIENCE):
            break
        if turn:
            running = [k for k in running if not k or not _is_behind(k, {k: measured[k] for k in running if k})]
    rates = tuple(_rate(k, turns, measured[0]) for k, turns in measured.items())
    fastest = max((rate for rate in rates if rate.k in running and rate.k), key=lambda rate: rate.tokens_per_second)
    return KChoice(fastest.k, rates)


def measure_k(engine: Engine, prompts: Sequence[Ids], max_drafts: int, progress: Progress) -> KChoice:
    """Measure K = 0..``max_drafts`` with an engine and its default drafter.

    All K take turns within each answer if every round can verify K drafts, and rounds of a new K need no preparation.
    Otherwise they take turns on whole answers.
    """
    with progress.step(f"choose K among 1..{max_drafts}"):
        prepares = bool(engine.manifest.backend.gpus)
        measured = {} if prepares else engine.measure_rounds(prompts, counts=range(max_drafts + 1), seconds=_SECONDS)
        return of_rounds(measured) if measured else _measure_answers(engine, prompts, max_drafts, progress)


def of_rounds(measured: Mapping[int, MeasuredK]) -> KChoice:
    """Return the choice among K whose rounds were measured."""
    plain, rates = statistics.median(measured[0].seconds), list[Rate]()
    for k, each in measured.items():
        median = each.value / plain  # by the paired cost: a K that was left out did not see the later cycles
        slowest, fastest = (each.tokens / limit(each.seconds) for limit in (max, min))
        rates.append(
            Rate(k, median, min(slowest, median), max(fastest, median), each.tokens, each.cost, len(each.seconds))
        )
    return KChoice(max((k for k in measured if k), key=lambda k: measured[k].value), tuple(rates))


def _measure_answers(engine: Engine, prompts: Sequence[Ids], max_drafts: int, progress: Progress) -> KChoice:
    from ...engines.requests.params import SamplingParams

    params = SamplingParams(max_tokens=_TOKENS, ignore_eos=True)

    def decode(prompt: Ids, k: int) -> Decoded:
        output = engine.generate([prompt], params, num_speculative_tokens=k)[0]
        acceptance, many = output.acceptance, len(output.token_ids) - 1  # prefill emits the first
        return Decoded(many, output.decode_seconds, acceptance.rounds + acceptance.undrafted, acceptance.accepted)

    total = (2 + _SWEEPS * len(prompts) * (max_drafts + 1)) * (_TOKENS - 1)  # if no K is dropped and time suffices
    with progress.step("decode with every K", Tokens(total)) as advance:
        return choose_k(decode, prompts, max_drafts, sweeps=_SWEEPS, seconds=_SECONDS, advance=advance)


def _rate(k: int, turns: Sequence[Decoded], plain: Sequence[Decoded]) -> Rate:
    """Return the rate at one K, from its turns and the paired ones without drafts."""
    speeds = [_speed(each) for each in turns]
    costs = [_round_seconds(each) / _round_seconds(other) for each, other in zip(turns, plain, strict=False)]
    tokens = 1.0 + sum(each.accepted for each in turns) / max(sum(each.rounds for each in turns), 1)
    return Rate(k, statistics.median(speeds), min(speeds), max(speeds), tokens, statistics.median(costs), len(turns))


def _is_behind(k: int, measured: Mapping[int, Sequence[Decoded]]) -> bool:
    """Return True if a K was behind the fastest in every turn; a single slow turn proves nothing."""
    turns = zip(measured[k], zip(*measured.values(), strict=True), strict=True)
    return all(_speed(own) < _BEHIND * max(map(_speed, every)) for own, every in turns)


def _speed(decoded: Decoded) -> float:
    return decoded.tokens / _positive(decoded.seconds)


def _round_seconds(decoded: Decoded) -> float:
    return _positive(decoded.seconds) / max(decoded.rounds, 1)


def _positive(seconds: float) -> float:
    """Return ``seconds``, or a tiny positive value if the clock did not advance."""
    return max(seconds, 1e-9)


def cached_choice(
    run: PipelineRun, manifest: Manifest, folder: Path, graphs: Mapping[str, Stage], *, engine: Path
) -> tuple[KChoice, bool]:
    """Choose K for the engine in ``folder``, or reuse the choice of an earlier build of the same graphs and runtime.

    Also returns True if it was reused. ``engine`` is the final name of ``folder``; ``graphs`` are its stages, by
    component. The manifest's number of drafts is the maximum. Raises ``BuildError`` if logits are not finite.
    """
    max_drafts = manifest.speculation.num_speculative_tokens

    def make(stage: Path) -> None:
        from ...engines.engine import Engine

        with run.progress.step("load the engine"):
            loaded = Engine.load(folder, check="sizes", prefix_cache_bytes=0)
        found = prompts_for(loaded, _PROMPTS if manifest.draft_method.needs_head else _ANSWERS)
        middle = (len(found) + 1) // 2
        prompts = [each for at in range(middle) for each in found[at::middle]]  # code and prose in turn
        require_numbers(loaded, prompts[:_ANSWERS], engine)
        choice = measure_k(loaded, prompts, max_drafts, run.progress)
        (stage / "choice.json").write_text(json.dumps(asdict(choice)))

    backend = manifest.backend
    names = [stage.path.name for stage in graphs.values()]
    by_questions = bool(read_templates(folder))  # chat prompts instead of code
    key = [names, backend.versions[backend.name], max_drafts, by_questions, *measured_on()]
    stage = run.store.run("choose-k", key, make)
    content = json.loads((stage.path / "choice.json").read_bytes())
    return KChoice(content["k"], tuple(Rate(**rate) for rate in content["rates"])), stage.reused


def with_choice(manifest: Manifest, choice: KChoice, batches: tuple[BatchCosts, ...] = ()) -> Manifest:
    """Return ``manifest`` with the chosen K, the measurements of every K, and those of rounds with several texts."""
    measured = replace(choice.measured, batches=batches)
    speculation = replace(manifest.speculation, num_speculative_tokens=choice.k, measured=measured)
    return in_oldest_format(replace(manifest, speculation=speculation))
