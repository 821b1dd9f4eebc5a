"""Target ratios, and whether a record meets them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from peagle.compiler.bench.statistics import Spread

from .record import Record

GREEDY, SAMPLED, LONG, AT_ONCE, PASSES, SMALL = "greedy", "sampled", "long", "at once", "passes", "demo"
PROMPTS, WINDOWS, WEIGHTS, SIZES, MEMORY = "prompts", "windows", "weights", "sizes", "memory"


@dataclass(frozen=True)
class Aim:
    """A ratio of two runners of one part, and its target."""

    what: str
    found: Spread
    line: float
    is_most: bool = False

    @property
    def is_met(self) -> bool:
        """Return True if the median meets the target."""
        return self.found.median <= self.line if self.is_most else self.found.median >= self.line


def aims(record: Record) -> list[Aim]:
    """Return every target whose runners were measured."""
    return [Aim(*found) for found in _found(record)]


def best(record: Record, part: str, chosen: Callable[[str], bool]) -> str | None:
    """Return the runner with the largest median among the ``chosen`` ones of a part."""
    names = [name for name in record.turns.get(part, {}) if chosen(name)]
    return max(names, key=lambda name: Spread.of(record.turns[part][name]).median, default=None)


def _found(record: Record) -> Iterator[tuple[str, Spread, float, bool]]:
    def ratio(
        what: str, part: str, over: tuple[str | None, str | None], line: float, *, is_most: bool = False
    ) -> Sequence[tuple[str, Spread, float, bool]]:
        runner, other = over
        spread = record.ratio(part, runner, other) if runner and other else None
        return [(what, spread, line, is_most)] if spread else []

    head = best(record, GREEDY, lambda name: name.startswith("blocks, P-EAGLE"))
    peer = best(record, GREEDY, lambda name: name.endswith("+drafts"))
    sampled = best(record, SAMPLED, lambda name: "P-EAGLE" in name)
    plain = "blocks, plain"
    yield from ratio("plain decoding over llama.cpp", GREEDY, (plain, "llama.cpp"), 2.0)
    yield from ratio("plain decoding over onnxruntime-genai int4", GREEDY, (plain, "onnxruntime-genai:int4"), 1.4)
    yield from ratio("plain, long context, over llama.cpp", LONG, (plain, "llama.cpp"), 1.5)
    for columns, line in ((4, 1.3), (8, 1.9)):
        over = (f"blocks, 128, {columns} columns", "blocks, 128, 1 column")
        yield from ratio(f"a pass of {columns} columns over one", PASSES, over, line, is_most=True)
    yield from ratio(f"{head}, greedy, over plain", GREEDY, (head, plain), 1.6)
    yield from ratio(f"{head}, greedy, over llama.cpp plain", GREEDY, (head, "llama.cpp"), 3.5)
    yield from ratio(f"{head}, greedy, over {peer}", GREEDY, (head, peer), 1.5)
    yield from ratio(f"{sampled}, sampled, over plain", SAMPLED, (sampled, plain), 1.0)
    yield from ratio("four requests at once over one", AT_ONCE, ("four", "one"), 2.5)
    yield from ratio("the demo pair, plain, over onnxruntime-genai", SMALL, ("plain", "onnxruntime-genai"), 1.0)
