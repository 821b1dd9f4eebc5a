"""Choose K, the drafts per round, by measuring: the K that decodes most tokens per second here."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...engines.folder.manifest import Manifest
from ...engines.text.template_files import read_templates
from ..console.progress import Advance
from ..store.stages import Stage
from .check_numbers import Ids, prompts_for, require_numbers
from .shared_steps import PipelineRun

_SWEEPS, _PROMPTS, _TOKENS = 3, 4, 48

# (prompt, K) -> (tokens, seconds of decoding); K = 0 is plain decoding
Decode = Callable[[Any, int], tuple[int, float]]


@dataclass(frozen=True)
class Rate:
    """Tokens per second of decoding at one K: median and extremes over the sweeps. K = 0 is plain decoding."""

    k: int
    tokens_per_second: float
    slowest: float
    fastest: float


@dataclass(frozen=True)
class KChoice:
    """The K that was fastest, and the rates of all."""

    k: int
    rates: tuple[Rate, ...]

    @property
    def speedup(self) -> float:
        """How many times as fast as plain decoding in the same run."""
        by_k = {rate.k: rate.tokens_per_second for rate in self.rates}
        return by_k[self.k] / by_k[0]


def choose_k(
    decode: Decode,
    prompts: Sequence[Any],
    depth: int,
    *,
    sweeps: int = 3,
    seconds: float = 30.0,
    advance: Advance = lambda _: None,
) -> KChoice:
    """Measure K = 0..``depth``, in turn on each prompt, so that a slow moment of the machine falls on all of them.

    Stops early, after a whole sweep of one prompt, when ``seconds`` are spent.
    """
    depths = range(depth + 1)
    measured: dict[int, list[float]] = {k: [] for k in depths}
    for k in (0, depth):  # first calls allocate
        decode(prompts[0], k)
    started = time.monotonic()
    for turn in range(sweeps * len(prompts)):
        rotation = turn % (depth + 1)
        for k in (*depths[rotation:], *depths[:rotation]):
            tokens, elapsed = decode(prompts[turn % len(prompts)], k)
            measured[k].append(tokens / max(elapsed, 1e-9))
        advance(1)
        if time.monotonic() - started > seconds:
            break
    rates = tuple(Rate(k, statistics.median(r), min(r), max(r)) for k, r in measured.items())
    best = max(rates[1:], key=lambda rate: rate.tokens_per_second)
    return KChoice(best.k, rates)


def kept_choice(
    run: PipelineRun, manifest: Manifest, folder: Path, graphs: Mapping[str, Stage], depth: int, *, engine: Path
) -> tuple[KChoice, bool]:
    """Choose K for the engine in ``folder``, or take the choice of an earlier build of the same graphs and runtime.

    Returns also whether it was taken. ``engine`` is what ``folder`` will be called, ``graphs`` are what it was made of,
    by half. Raises ``BuildError`` when the target gives no numbers.
    """

    def make(stage: Path) -> None:
        from ...engines import Engine, SamplingParams

        with run.progress.step("load the engine"):
            loaded = Engine.load(folder, check_hashes=False)
        params = SamplingParams(max_tokens=_TOKENS, ignore_eos=True)

        def decode(prompt: Ids, k: int) -> tuple[int, float]:
            output = loaded.generate([prompt], params, num_speculative_tokens=k)[0]
            return len(output.token_ids) - 1, output.decode_seconds  # the first is the prompt's pass

        prompts = prompts_for(loaded, _PROMPTS)
        require_numbers(loaded, prompts, engine)
        with run.progress.step(f"choose K among 1..{depth}", _SWEEPS * len(prompts)) as advance:
            choice = choose_k(decode, prompts, depth, sweeps=_SWEEPS, advance=advance)
        (stage / "choice.json").write_text(json.dumps(asdict(choice)))

    backend = manifest.backend
    names = [stage.path.name for stage in graphs.values()]
    asked = bool(read_templates(folder))  # by questions, not by code
    key = [names, backend.versions[backend.name], depth, asked, platform.node()]
    stage = run.store.run("choose-k", key, make)
    content = json.loads((stage.path / "choice.json").read_bytes())
    return KChoice(content["k"], tuple(Rate(**rate) for rate in content["rates"])), stage.reused
