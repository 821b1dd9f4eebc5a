"""Format the figures of a benchmark as tables of at most 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..console.printing import columns
from .passes import PassFigures
from .result import BenchResult
from .statistics import Spread
from .summary import AcceptanceFigures, ModeFigures

Cells = tuple[list[str], list[list[str]]]  # head and rows of a table
_NONE = "-"
_SHOWN_POSITIONS = 8


def report(result: BenchResult) -> str:
    """Return everything that ``bench`` prints: the origin, the tables of each level, and the notes."""
    parts = [columns([*result.origin, ("command", result.command)])]
    for figures in result.levels:
        parts.append(f"{level_name(figures[0])}, {figures[0].turns} turns")
        parts.append(table(*speed_rows(figures)))
        if result.rival and any(each.over_autoregressive for each in figures):
            parts.append(table(*rival_rows(figures, result.rival)))
        parts += [table(*rows(figures)) for rows in (text_rows, latency_rows)]
        if is_first(result, figures):  # acceptance hardly depends on the concurrency; bench.json has all of it
            parts += acceptance_tables(figures)
        if passes := result.passes_beside(figures[0]):
            parts.append(table(*pass_rows(passes)))
    if sweep := sweep_rows(result):
        parts.append(table(*sweep))
    parts += [*map(difference_line, differing(result.figures)), *(f"note: {note}" for note in result.notes)]
    return "\n\n".join(parts)


def level_name(figures: ModeFigures) -> str:
    """Return a concurrency in words, and the temperature if there are several."""
    return ", ".join([requests(figures.concurrency), *temperature_name(figures)])


def temperature_name(figures: ModeFigures) -> list[str]:
    """Return the temperature in words; nothing if there is only one."""
    return [] if figures.temperature is None else [sampling(figures.temperature)]


def sampling(temperature: float) -> str:
    """Return a temperature in words."""
    return f"temperature {temperature:g}" if temperature else "greedy"


def is_first(result: BenchResult, figures: Sequence[ModeFigures]) -> bool:
    """Return True for the figures of a level with the first concurrency."""
    return figures[0].concurrency == result.figures[0].concurrency


def requests(concurrency: int) -> str:
    """Return a concurrency in words."""
    return "1 request at a time" if concurrency == 1 else f"{concurrency} requests at once"


def acceptance_tables(figures: Sequence[ModeFigures]) -> Iterator[str]:
    """Yield the tables of acceptance by position and by category, where there are any."""
    drafting = [each for each in figures if each.acceptance]
    if drafting:
        yield table(*position_rows(drafting))
    if len(figures[0].categories) > 1:
        yield table(*category_rows(figures))


def speed_rows(figures: Sequence[ModeFigures]) -> Cells:
    """Return head and rows of speed: tokens per second of one user, and gains with the p-value of the sign test."""
    compares = any(each.over_plain for each in figures)
    head = ["tokens/s, one user", "median", "quartiles", *(["x plain", "p"] if compares else [])]
    rows = []
    for each in figures:
        row = [each.mode, _speed(each.user_speed.median), _quartiles(each.user_speed)]
        if compares:
            gain = each.over_plain
            row += [f"{gain.ratio.median:.2f}", _p(gain.p)] if gain else [_NONE, _NONE]
        rows.append(row)
    return head, rows


def rival_rows(figures: Sequence[ModeFigures], rival: str) -> Cells:
    """Return head and rows of the comparison with the fastest autoregressive mode, turn by turn."""
    head = [f"over the fastest {rival}", "ratio", "quartiles", "faster", "slower", "p"]
    rows = []
    for each in figures:
        if (found := each.over_autoregressive) is not None:
            spread = f"{found.ratio.low:.2f} to {found.ratio.high:.2f}"
            turns = [str(found.wins), str(found.losses)]
            rows.append([each.mode, f"{found.ratio.median:.2f}", spread, *turns, _p(found.p)])
    return head, rows


def text_rows(figures: Sequence[ModeFigures]) -> Cells:
    """Return head and rows of acceptance lengths, times per round, and equality with plain decoding."""
    head = ["acceptance", "length", "after 20", "verify ms", "draft ms", "identical"]
    rows = []
    for each in figures:
        found = each.acceptance
        cells = [_NONE] * 4
        if found:
            cells = [f"{found.length:.2f}", _number(found.later_length, ".2f")]
            cells += [_number(found.verify, ".2f"), _number(found.draft, ".2f")]
        rows.append([each.mode, *cells, _identical(each)])
    return head, rows


def _identical(figures: ModeFigures) -> str:
    if figures.equal_texts is not None:
        return f"{figures.equal_texts}/{figures.answers}"
    return _NONE if figures.identical is None else "yes" if figures.identical else "NO"


def pass_rows(passes: Sequence[PassFigures]) -> Cells:
    """Return head and rows with the cost of a pass of the target by its columns, for each engine."""
    head = ["one pass of the target", "passes", "ms", "quartiles", "x 1 column", "of floor"]
    rows = []
    for each in passes:
        spread, share = each.milliseconds, each.share_of_floor
        numbers = [f"{spread.median:.2f}", f"{spread.low:.2f} to {spread.high:.2f}", _number(each.over_one, ".2f")]
        rows.append([pass_name(passes, each), str(each.passes), *numbers, _NONE if share is None else f"{share:.0%}"])
    return head, rows


def pass_name(passes: Sequence[PassFigures], figures: PassFigures) -> str:
    """Return the columns of a pass in words, with the number of the engine if there are several."""
    columns = f"{figures.columns} column{'s' * (figures.columns > 1)}"
    return columns if len({each.engine for each in passes}) == 1 else f"{columns}, engine {figures.engine + 1}"


def latency_rows(figures: Sequence[ModeFigures]) -> Cells:
    """Return head and rows of the time to the first token and between tokens, in milliseconds."""
    head = ["milliseconds", "TTFT p50", "p99", "ITL p50", "p95", "p99", "pieces p99"]
    rows = []
    for each in figures:
        first, inter, pieces = each.first_token, each.inter_token, each.between_pieces
        cells = [f"{time:.1f}" for time in (first.p50, first.p99)] if first else [_NONE] * 2
        cells += [f"{time:.1f}" for time in (inter.p50, inter.p95, inter.p99)] if inter else [_NONE] * 3
        rows.append([each.mode, *cells, f"{pieces.p99:.1f}" if pieces else _NONE])
    return head, rows


def position_rows(figures: Sequence[ModeFigures]) -> Cells:
    """Return head and rows of the share of rounds that accepted at least so many drafts."""
    num_positions = min(max(len(rates_of(each.acceptance)) for each in figures), _SHOWN_POSITIONS)
    rows = []
    for each in figures:
        rates = [f"{rate:.2f}" for rate in rates_of(each.acceptance)[:num_positions]]
        rows.append([each.mode, *rates, *[_NONE] * (num_positions - len(rates))])
    return ["drafts accepted, at least", *map(str, range(1, num_positions + 1))], rows


def rates_of(acceptance: AcceptanceFigures | None) -> tuple[float, ...]:
    """Return the acceptance by position; none without drafts."""
    return acceptance.rates if acceptance else ()


def category_rows(figures: Sequence[ModeFigures]) -> Cells:
    """Return head and rows with a row per category: tokens per second and acceptance length of each mode."""
    head = ["category", "prompts", "tokens/s", "length"]
    rows = []
    for category in figures[0].categories:
        for each in figures:
            one = next((one for one in each.categories if one.category == category.category), None)
            if one is not None:  # a peer that left has answered fewer prompts
                length = f"{one.acceptance.length:.2f}" if one.acceptance else _NONE
                name = f"{category.category}: {each.mode}"
                rows.append([name, str(one.prompts), _speed(one.tokens_per_second), length])
    return head, rows


def sweep_rows(result: BenchResult) -> Cells | None:
    """Return head and rows by temperature and concurrency, if there are several levels or a price.

    They are tokens per second of a user and in all, and the price of a million tokens.
    """
    has_temperatures = any(each.temperature is not None for each in result.figures)
    has_price = any(each.cost_per_million is not None for each in result.figures)
    if len(result.levels) < 2 and not has_price:
        return None
    head = ["tokens/s", "temperature"] if has_temperatures else ["tokens/s by concurrency"]
    head += ["at once", "one user", "in all", *(["price/million"] if has_price else [])]
    rows = []
    for each in result.figures:
        temperature = [_number(each.temperature, "g")] if has_temperatures else []
        price = [_number(each.cost_per_million, ".3f")] if has_price else []
        numbers = [_speed(each.user_speed.median), _speed(each.total_speed.median)]
        rows.append([each.mode, *temperature, str(each.concurrency), *numbers, *price])
    return head, rows


def differing(figures: Iterable[ModeFigures]) -> list[ModeFigures]:
    """Return the modes whose text differs from plain decoding."""
    return [each for each in figures if each.difference]


def difference_line(figures: ModeFigures) -> str:
    """Return the first difference of a mode in words."""
    found = figures.difference
    mode = f"{figures.mode}, {level_name(figures)}"
    if found is None:
        return f"{mode}: the text equals that of plain decoding"
    return (
        f"{mode}: the text differs from that of plain decoding, first in prompt {found.prompt} at token "
        f"{found.position}: expected {found.plain}, found {found.found}. `peagle-compile verify` shows whether the two "
        "tokens nearly tie"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows with their first column to the left and numbers to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _speed(tokens: float) -> str:
    """Format tokens per second with three or more digits; 0 means that the speed is unknown."""
    if not tokens:
        return _NONE
    return f"{tokens:.0f}" if tokens >= 100 else f"{tokens:.1f}"


def _quartiles(spread: Spread) -> str:
    return f"{_speed(spread.low)} to {_speed(spread.high)}" if spread.high else _NONE


def _number(value: float | None, number_format: str) -> str:
    return _NONE if value is None else format(value, number_format)


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"
