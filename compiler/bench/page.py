"""Report of a benchmark as one HTML file with charts."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from ...plugins.errors import UsageError
from ...plugins.regular_files import read_regular
from ..console.exit_cleanup import defer_stops
from ..pipeline.reports.html_page import html_page, html_table
from ..pipeline.reports.line_chart import Points, line_chart
from ..store.atomic_files import replacing, require_writable
from ..store.destination import MAX_RECORD_BYTES, require_outside_engines
from .passes import PassFigures
from .printing import (
    category_rows,
    difference_line,
    differing,
    is_first,
    latency_rows,
    level_name,
    pass_rows,
    position_rows,
    rates_of,
    rival_rows,
    speed_rows,
    sweep_rows,
    temperature_name,
    text_rows,
)
from .result import BenchResult, require_replaceable
from .summary import LatencyFigures, ModeFigures

_TITLE = "Benchmark of "
_CURVE_END = 96
_MEANING = """"Tokens/s, one user" excludes the first token of an answer, which the prompt's pass produces. A gain is
the median of the ratios to plain decoding, one for each turn; p is the result of a two-sided sign test over them. The
acceptance length is the mean number of tokens per round with drafts, including the target's own token; "after 20"
excludes the first 20 rounds of each answer. TTFT is the time to the first token. ITL is the time between two pieces of
the stream, divided by the number of tokens in the second piece; "pieces" lists the undivided times. With --url, ITL is
the mean of an answer, because the pieces of a stream do not state their number of tokens; a peer has no ITL.
"Identical" means that every token equals that of plain decoding; for a peer, it is the number of answers with the same
text. A pass of the target verifies the drafts of a round: its columns are the drafts and one more token. The floor is
the time that reading the weights of the pass takes at the measured memory bandwidth."""


def require_outputs(out: Path | None, html: Path | None) -> None:
    """Check the files of a benchmark before it runs, because a file that cannot be written would lose the figures.

    Raises ``UsageError`` for files that no benchmark wrote, and ``EnvironmentProblem`` for files that cannot be
    written.
    """
    if out is not None:
        require_outside_engines(out, f"--out {out}")
        require_replaceable(out)
        require_writable(out)
    if html is None:
        return
    if out is not None and html.absolute() == out.absolute():
        raise UsageError(f"--html and --out are the same file, {html}", fix="choose another file for --html")
    require_outside_engines(html, f"--html {html}")
    if os.path.exists(html) and not _is_page(html):
        raise UsageError(
            f"{html} exists and was not written by `peagle-compile bench`",
            fix="choose another file for --html, or remove the file",
        )
    require_writable(html)


def _is_page(path: Path) -> bool:
    try:
        return f"<h1>{_TITLE}".encode() in read_regular(path, MAX_RECORD_BYTES)
    except (OSError, ValueError):
        return False


def write_outputs(result: BenchResult, out: Path | None, html: Path | None) -> None:
    """Write the files that are named, the second one even if the first cannot be written.

    A stop waits until they are written, else it would lose the figures.
    """
    with defer_stops():
        try:
            if out is not None:
                result.write_json(out)
        finally:
            if html is not None:
                write_page(html, result)


def write_page(path: Path, result: BenchResult) -> None:
    """Write the report as one file, atomically."""
    with replacing(path) as temporary:
        temporary.write_text(page(result), encoding="utf-8", errors="backslashreplace")


def page(result: BenchResult) -> str:
    """Return the report of a benchmark as HTML."""
    title = _TITLE + " and ".join(text.partition(": ")[0] for name, text in result.origin if _is_subject(name))
    names = [*dict.fromkeys(each.mode for each in result.figures)]
    parts = [
        *_verdict(result),
        _links(result),
        "<h2>Origin</h2>",
        html_table((), result.origin, "facts"),
        f"<p>This command measured the figures:</p><pre>{escape(result.command)}</pre>",
        *(f'<p class="faint">{escape(note)}</p>' for note in result.notes),
    ]
    for at, figures in enumerate(result.levels):
        parts += [f'<section id="level{at}">', *_level(result, figures, names), "</section>"]
    parts += ['<section id="all">', *_sweep(result, names), "</section>"]
    parts += [
        "<h2>Meaning of the figures</h2>",
        f"<p>{_MEANING}</p>",
    ]
    return html_page(title, parts)


def _links(result: BenchResult) -> str:
    """Return links to the levels, and to the section that compares them; nothing if there is one level."""
    links = [f'<a href="#level{at}">{escape(level_name(each[0]))}</a>' for at, each in enumerate(result.levels)]
    return f'<p>{"; ".join(links)}; <a href="#all">comparison</a></p>' if links[1:] else ""


def _is_subject(name: str) -> bool:
    return name.startswith(("engine", "server"))


def _verdict(result: BenchResult) -> Iterator[str]:
    """Yield the best speed of each temperature at the first concurrency, and the modes whose text differs."""
    for figures in result.levels:
        best = max(figures, key=lambda each: each.user_speed.median)
        if is_first(result, figures) and best.user_speed.median:
            fastest = ", ".join(["Fastest", *temperature_name(best)])
            gain = f", {best.over_plain.ratio.median:.2f} times plain decoding" if best.over_plain else ""
            speed = f"{best.user_speed.median:.1f} tokens/s{gain}"
            yield f"<p>{fastest}: <strong>{escape(best.mode)}</strong>, {speed}.</p>"
    for each in differing(result.figures):
        yield f'<p class="warn">{escape(difference_line(each))}</p>'
    if result.identical:
        where = " at the same temperature" if _temperatures(result)[1:] else ""
        yield f"<p>In every mode, the engines generated the same text as in plain decoding{where}.</p>"


def _level(result: BenchResult, figures: Sequence[ModeFigures], names: Sequence[str]) -> Iterator[str]:
    yield f"<h2>{escape(level_name(figures[0])).capitalize()}</h2>"
    yield f'<p class="faint">{figures[0].turns} turns of each mode</p>'
    yield "<h3>Speed</h3>" + _table(*speed_rows(figures))
    if result.rival and any(each.over_autoregressive for each in figures):
        yield _table(*rival_rows(figures, result.rival))
    yield _speed_by_k(result, figures)
    yield "<h3>Acceptance and text</h3>" + _table(*text_rows(figures))
    drafting = [each for each in figures if each.acceptance]
    if drafting:
        yield "<h3>Acceptance by position</h3>" + _table(*position_rows(drafting))
        rates = {each.mode: [*enumerate(rates_of(each.acceptance), 1)] for each in drafting}
        yield line_chart(rates, "draft position", "share of rounds that accepted the draft", names=names)
    if len(figures[0].categories) > 1:
        yield "<h3>By category</h3>" + _table(*category_rows(figures))
        yield from _positions_by_category(drafting)
    yield "<h3>Latency</h3>" + _table(*latency_rows(figures))
    curves = {each.mode: _cumulative(each.inter_token) for each in figures if each.inter_token}
    yield line_chart(curves, "milliseconds per token", "share of tokens (%), up to 95", marks=False, names=names)
    if passes := result.passes_beside(figures[0]):
        yield "<h3>Cost of a pass</h3>" + _table(*pass_rows(passes)) + _cost_by_columns(passes)


def _cumulative(latency: LatencyFigures) -> Points:
    """Return the cumulative distribution up to the 95th percentile: outliers would squeeze the rest."""
    return [(value, float(step)) for step, value in enumerate(latency.curve[:_CURVE_END])]


def _positions_by_category(figures: Sequence[ModeFigures]) -> Iterator[str]:
    """Yield a table and a chart of categories and positions for every mode that drafts."""
    for each in figures:
        longest = max((len(rates_of(one.acceptance)) for one in each.categories), default=0)
        rows = []
        for one in each.categories:
            rates = [f"{rate:.2f}" for rate in rates_of(one.acceptance)]
            rows.append([one.category, *rates, *["-"] * (longest - len(rates))])
        yield f"<details><summary>{escape(each.mode)}: acceptance by category and position</summary>"
        yield _table(["category", *map(str, range(1, longest + 1))], rows)
        lines = {one.category: [*enumerate(rates_of(one.acceptance), 1)] for one in each.categories}
        yield line_chart(lines, "draft position", "share of rounds that accepted the draft") + "</details>"


def _speed_by_k(result: BenchResult, figures: Sequence[ModeFigures]) -> str:
    """Return the chart of speed by K, for methods that were measured at several K beside plain decoding."""
    speeds = {each.mode: each.user_speed.median for each in figures if each.user_speed.median}
    counts = {mode: k for mode, k in result.counts.items() if mode in speeds}
    plain = [(0.0, speeds[mode]) for mode, k in counts.items() if k == 0]
    lines: dict[str, list[tuple[float, float]]] = {}
    names = _names_of_lines(result)
    for mode, k in counts.items():
        if k:
            lines.setdefault(names[mode], [*plain]).append((float(k), speeds[mode]))
    return line_chart(lines, "drafts per round (K)", "tokens per second of one user")


def _names_of_lines(result: BenchResult) -> dict[str, str]:
    """Return the draft method of every mode, with the number of the engine if several engines have the method."""
    keys = {mode: (method, result.engines.get(mode, 0)) for mode, method in result.methods.items()}
    engines = Counter(method for method, _ in {*keys.values()})
    return {
        mode: method if engines[method] == 1 else f"{method}, engine {engine + 1}"
        for mode, (method, engine) in keys.items()
    }


def _cost_by_columns(passes: Sequence[PassFigures]) -> str:
    """Return the chart of the milliseconds of a pass by its columns, with the floor."""
    several = len({each.engine for each in passes}) > 1
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in passes:
        of_engine = f", engine {each.engine + 1}" if several else ""
        lines.setdefault(f"measured{of_engine}", []).append((each.columns, each.milliseconds.median))
        if each.floor is not None:
            lines.setdefault(f"floor{of_engine}", []).append((each.columns, each.floor))
    return line_chart(lines, "columns of the pass", "milliseconds")


def _sweep(result: BenchResult, names: Sequence[str]) -> Iterator[str]:
    """Yield the table of all levels and, for each temperature, charts by concurrency, if there are any."""
    temperatures = _temperatures(result)
    if sweep := sweep_rows(result):
        by = "temperature and concurrency" if temperatures[1:] else "concurrency"
        yield f"<h2>By {by}</h2>" + _table(*sweep)
    if len({each.concurrency for each in result.figures}) > 1:
        for temperature in temperatures:
            yield from _by_concurrency([each for each in result.figures if each.temperature == temperature], names)


def _by_concurrency(figures: Sequence[ModeFigures], names: Sequence[str]) -> Iterator[str]:
    """Yield the charts of one temperature."""
    for title, is_total in (("tokens per second of one user", False), ("tokens per second of all users", True)):
        lines: dict[str, list[tuple[float, float]]] = {}
        for each in figures:
            speed = each.total_speed if is_total else each.user_speed
            if speed.median:
                lines.setdefault(each.mode, []).append((float(each.concurrency), speed.median))
        yield line_chart(lines, "concurrent requests", ", ".join([title, *temperature_name(figures[0])]), names=names)


def _temperatures(result: BenchResult) -> list[float | None]:
    """Return the temperatures of the run."""
    return [*dict.fromkeys(each.temperature for each in result.figures)]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return html_table(head, rows, "figures")
