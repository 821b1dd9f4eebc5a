"""``peagle-compile bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..console.printing import emit, interruptible, note
from .flags.completion import one_of, several
from .flags.help_text import DRAFT, RUN, SAMPLING
from .flags.shared_flags import Json, Threads, numbers_of, requested_drafts
from .flags.verbosity import Verbosity, with_verbosity
from .serve import KEY_VARIABLE


def workload_names() -> list[str]:
    """Return the values of ``--workload``."""
    from ..bench.workloads import WORKLOADS

    return [*WORKLOADS]


def _method_names() -> list[str]:
    from ...engines.draft_methods import METHODS

    return [each.name for each in METHODS.values() if each.drafts]


@interruptible("turns that had finished are in the files named above; if none are named, no file was written")
@with_verbosity
def bench(
    verbosity: Verbosity,
    engine: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="ENGINE",
            help="Engine folders made by `peagle-compile build`, with the same target and, for example, different "
            "heads.",
            show_default=False,
        ),
    ] = None,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Prompts: humaneval (fetched by pip), chat, summarise, translate, json, tools, long (2,048 to 8,192 "
            "tokens) or random. (default: chat)",
            show_default=False,
            autocompletion=one_of(workload_names),
        ),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON Lines file of prompts, with turns, messages, prompt or text on each line, and optionally a "
            "category. The question files of SPEED-Bench and Spec-Bench have this format.",
            show_default=False,
        ),
    ] = None,
    num_prompts: Annotated[
        int, typer.Option(min=1, help="Number of prompts, taken at even intervals from the workload or file.")
    ] = 20,
    repeats: Annotated[int, typer.Option(min=1, help="Number of measurements of each prompt.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens to generate for each prompt.")] = 128,
    concurrency: Annotated[
        str, typer.Option(metavar="N,N,...", help="Numbers of concurrent requests to measure.")
    ] = "1",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="File to write. (default: bench.json)", show_default=False)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also write a report with charts, as one HTML file.", show_default=False),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD,...",
            help="Draft methods to measure in addition to plain decoding. (default: all that the engines support)",
            show_default=False,
            rich_help_panel=DRAFT,
            autocompletion=several(_method_names),
        ),
    ] = None,
    num_speculative_tokens: Annotated[
        str | None,
        typer.Option(
            metavar="K,K,...",
            help="Numbers of drafts per round to measure; auto adapts the number. (default: the engine's, and auto)",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ] = None,
    temperature: Annotated[
        str,
        typer.Option(
            metavar="T,T,...", help="Sampling temperatures to measure; 0 is greedy.", rich_help_panel=SAMPLING
        ),
    ] = "0",
    seed: Annotated[int, typer.Option(help="Seed of the first prompt.", rich_help_panel=SAMPLING)] = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Continue past the end-of-text token.", rich_help_panel=SAMPLING)
    ] = False,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="PRICE",
            help="Price of this machine per hour, to compute the price of a million tokens.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Measure an OpenAI-compatible server, such as http://127.0.0.1:8000, instead of engines.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME=URL,...",
            help=(
                "Also measure these OpenAI-compatible servers, which take turns with the engines. NAME is the name "
                "in the tables, for example llama.cpp=http://127.0.0.1:8080."
            ),
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(
            metavar="chat|completions",
            help="Endpoint of the servers. With completions, peers receive token ids; with chat, texts. (default: chat "
            "with --url, completions with --peer)",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY", envvar=KEY_VARIABLE, help="API key of the servers.", show_default=False, rich_help_panel=RUN
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Measure speed, latency and acceptance of every decoding method of one or more engines.

    Plain decoding, each draft method of the engine with each number of drafts per round (K), and the adaptive policy
    take turns, prompt by prompt, so that other load on the machine affects all of them. --peer adds other servers to
    the turns. The tables show tokens per second with quartiles, and gains over plain decoding with a sign test; latency
    (time to the first token and between tokens); acceptance length overall and by category, and acceptance by position;
    and the cost of a pass of the target by the number of tokens that it verifies. They also show whether the text
    equals that of plain decoding. The prefix cache is off.

    bench.json contains all figures, a description of the machine, and the command that repeats the measurement; --html
    adds a report with charts. Ctrl-C or SIGTERM ends the measurement early, and the results so far are printed and
    written.

    Example: peagle-compile bench demo-engine --workload humaneval
    """
    from ..bench.options import BenchOptions
    from ..bench.page import require_outputs, write_outputs
    from ..bench.printing import report
    from ..bench.result import BenchResult
    from ..bench.run import BenchRun

    options = BenchOptions(
        engines=tuple(engine or ()),
        workload=workload,
        prompts=prompts,
        num_prompts=num_prompts,
        repeats=repeats,
        max_tokens=max_tokens,
        draft=_parts(draft),
        num_speculative_tokens=tuple(
            k for part in _parts(num_speculative_tokens) if (k := requested_drafts(part)) is not None
        ),
        concurrency=numbers_of("--concurrency", concurrency, "1,2,4", int),
        temperature=numbers_of("--temperature", temperature, "0,0.8", float),
        seed=seed,
        ignore_eos=ignore_eos,
        price_per_hour=price_per_hour,
        url=url,
        peer=_parts(peer),
        endpoint=endpoint,
        api_key=api_key,
        threads=threads,
    )
    out = out or Path("bench.json")
    require_outputs(out, html)
    run = BenchRun(options)
    written = f"wrote {out}" + ("" if html is None else f" and {html}")

    def keep(result: BenchResult) -> None:
        try:
            write_outputs(result, out, html)
        finally:  # figures that cannot be written are at least printed
            if not as_json:
                print(report(result))
        note(written)

    with run.keeping(keep), verbosity.work() as progress:
        result = run.start(progress)
    try:
        write_outputs(result, out, html)
    finally:
        if as_json:
            emit(result.as_json())
        else:
            print(report(result))
    if not as_json:
        note(written)


def _parts(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip()) if text else ()
