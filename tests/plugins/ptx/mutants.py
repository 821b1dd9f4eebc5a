"""Mutants for testing the tests: PTX with one changed instruction, like errors of people and compilers.

Every kind lists the places where it applies; a mutant is a kind and the number of a place in a shuffled order.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

COMPARISONS = {"lt": "le", "le": "lt", "gt": "ge", "ge": "gt", "eq": "ne", "ne": "eq"}
COMPARISONS |= {f"{name}u": f"{other}u" for name, other in COMPARISONS.items()}

Change = Callable[[str], str | None]


def _replaced(form: str, by: str | Callable[[re.Match[str]], str]) -> Change:
    """Return the change of the first match in a line; None without a match."""

    def change(line: str) -> str | None:
        new, count = re.subn(form, by, line, count=1)
        return new if count and new != line else None

    return change


def _other_comparison(line: str) -> str | None:
    match = re.search(r"setp\.([a-z]+)\.", line)
    if match is None or match[1] not in COMPARISONS:
        return None
    return line.replace(f"setp.{match[1]}.", f"setp.{COMPARISONS[match[1]]}.", 1)


def _drop(form: str) -> Change:
    return lambda line: " " if re.search(form, line) else None


_REGISTER = r"%[a-z]+\d+"

# Kinds of mistakes. Lines are those of one kernel, and never declarations.
KINDS: Mapping[str, Change] = {
    "comparison": _other_comparison,
    "constant": _replaced(r"(?<=, )(-?\d+)(?=;)", lambda m: str(int(m[1]) + 1)),
    "float constant": _replaced(r"0f([0-9A-F]{8})(?=;|,)", lambda m: f"0f{int(m[1], 16) ^ 1 << 21:08X}"),
    "dropped barrier": _drop(r"\bbar\.sync|barrier\.cluster\.arrive.*wait"),
    "swapped operands": _replaced(
        rf"((?:sub|selp|setp|div|rem|shl|shr)\.\S+\s+{_REGISTER}), ({_REGISTER}), ({_REGISTER})(?=[;,])", r"\1, \3, \2"
    ),
    "removed guard": _replaced(rf"@!?{_REGISTER} bra", "bra"),
    "negated guard": _replaced(r"@(%p\d+) bra", r"@!\1 bra"),
    "branch not taken": _drop(rf"@!?{_REGISTER} bra"),
    "address offset": _replaced(r"(?<=\[)([^\]+]+)(?=\])", r"\1+8"),
    "shifted offset": _replaced(r"(\[\S+\+)(\d+)\]", lambda m: f"{m[1]}{int(m[2]) + 8}]"),
    "dropped store": _drop(r"\bst\."),
    "dropped atomic": _drop(r"\batom\."),
    "dropped instruction": _drop(r"\b(add|sub|mul|mad|shl|shr|min|max|cvt|selp)\."),
    "other operation": _replaced(
        r"\b(add|min|max|and|or)\.(?=[sub]\d|pred)",
        lambda m: {"add": "sub", "min": "max", "max": "min", "and": "or", "or": "and"}[m[1]] + ".",
    ),
    "other reduction": _replaced(r"(?<=redux\.sync\.)max|(?<=atom\.shared\.)max", "min"),
    "other lane": _replaced(r"(shfl\.sync\.(?:up|bfly)\.b32\s+\S+, \S+, )(\S+),", r"\1 3,"),
    "not atomic": _replaced(r"atom\.shared\.\w+\.u64\s+\S+, (\[\S+\]), (\S+);", r"st.shared.u64 \1, \2;"),
    "rank of another block": _replaced(r"(mapa\.shared::cluster\.u32 \S+, \S+, )\S+;", r"\1 1;"),
}


@dataclass(frozen=True)
class Mutant:
    """One changed line of a kernel: its number in the file, before and after."""

    kind: str
    line: int
    before: str
    after: str
    text: str


def kernel_text(text: str, entry: str) -> str:
    """Return the file with no other kernel than this; its lines keep their numbers, both of a barrier are on one."""
    head, *kernels = re.split(r"(?m)^(?=\.visible \.entry )", text)
    kept = [part if f".entry {entry}(" in part else "\n" * part.count("\n") for part in kernels]
    return re.sub(r"(barrier\.cluster\.arrive\S*;)\n\s*(barrier\.cluster\.wait\S*;)", r"\1 \2\n", head + "".join(kept))


def places(text: str, entry: str, kind: str) -> list[int]:
    """Return the indices of the lines of a kernel where a kind of mistake applies."""
    lines = text.split("\n")
    start = next(i for i, line in enumerate(lines) if f".entry {entry}(" in line)
    body = next(i for i in range(start, len(lines)) if lines[i].startswith("{"))
    end = next(i for i in range(body, len(lines)) if lines[i].startswith("}"))
    return [
        i
        for i in range(body + 1, end)
        if not lines[i].lstrip().startswith((".", "//", "$", "{", "ld.param")) and KINDS[kind](lines[i]) is not None
    ]


def mutant(text: str, entry: str, kind: str, number: int) -> Mutant | None:
    """Return the mutant of that number in the shuffled order of a kind's places; None if there are fewer."""
    alone = kernel_text(text, entry)
    found = places(alone, entry, kind)
    random.Random(f"{entry} {kind}").shuffle(found)
    if number >= len(found):
        return None
    lines, at = alone.split("\n"), found[number]
    before = lines[at]
    lines[at] = KINDS[kind](before) or before
    return Mutant(kind, at + 1, before.strip(), lines[at].strip(), "\n".join(lines))
