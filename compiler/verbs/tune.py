"""``peagle-compile tune``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console.printing import columns, emit, interruptible, note
from .flags.completion import one_of
from .flags.help_text import DRAFT
from .flags.shared_flags import EngineFolder, Json, Threads
from .flags.verbosity import Verbosity, with_verbosity


def _question_workloads() -> list[str]:
    from ..bench.workloads import WORKLOADS

    return [name for name, each in WORKLOADS.items() if each.questions]


@interruptible("the engine was not changed")
@with_verbosity
def tune(
    engine: EngineFolder,
    verbosity: Verbosity,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Prompts: humaneval (fetched by pip), chat, summarise, translate, json or tools. (default: bundled "
            "prompts that a build also uses)",
            show_default=False,
            autocompletion=one_of(_question_workloads),
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON Lines file of prompts, with turns, messages, prompt or text on each line.",
            show_default=False,
        ),
    ] = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Number of prompts, taken at even intervals from the workload or file.")
    ] = 4,
    max_batch_size: Annotated[int, typer.Option(min=1, help="Largest number of concurrent requests to measure.")] = 4,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Drafter to tune, by its name in `peagle-compile drafter list`. (default: the drafter of the build)",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure the cost and gain of drafts on this machine, so that the engine starts with the best number of drafts.

    A build does the same for its own machine. Use tune after you copy an engine to another machine or add a drafter, or
    if the engine serves texts unlike the bundled questions. The adaptive number of drafts then starts from the new
    measurement. The output of the engine does not change. Keep the machine idle during the measurement.

    Example: peagle-compile tune demo-engine --prompts questions.jsonl
    """
    from ..bench.tune import TuneOptions
    from ..bench.tune import tune as run

    options = TuneOptions(engine, workload, prompts, num_prompts, max_batch_size, draft, threads)
    with verbosity.work() as progress:
        tuned = run(options, progress)
    if as_json:
        emit(tuned.as_json())
        return
    for each in tuned.notes:
        note(f"note: {each}")
    gains = tuned.gains
    header = ("tokens/s over plain", *(f"K = {k}" for k in range(len(gains[1]))), "fastest")
    rows = [header]
    for requests, of_k in gains.items():
        title = f"{requests} request{'s at once' if requests > 1 else ''}"
        rows.append((title, *(f"{gain:.2f}x" for gain in of_k), f"K = {of_k.index(max(of_k))}"))
    print(columns(rows))
    if not tuned.speculation.adapts:
        k = tuned.speculation.num_speculative_tokens
        print(f"The engine was built for K = {k}, its default. The figures are for --num-speculative-tokens auto.")
