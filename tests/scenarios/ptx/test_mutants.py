"""Mutants of the kernels' PTX give another result or a fault, so the cases and detectors are effective.

A mutant has one instruction changed: a comparison, a constant, a barrier dropped, operands swapped, and so on
(``tests/plugins/ptx/mutants.py``). A place is drawn with a seed from all where the change applies. The mutants below
were drawn so, and each that the cases caught was chosen; those that passed before it were left out, because nothing
proves whether they mean something else. ``python -m tests.scenarios.ptx.test_mutants`` draws anew and prints both.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.plugins.ptx.compilers import missing
from tests.plugins.ptx.mutants import KINDS
from tests.scenarios.ptx.cases import choose, digest, fate

pytestmark = [
    pytest.mark.begins_first,
    pytest.mark.skipif(missing() is not None, reason=f"needs NVRTC: {missing()}"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # the references compute with NaN and infinity on purpose
]

MIN = 10  # mutants of a kernel
# By default, one text of each kernel whose cases run in a few seconds.
DEFAULT = {
    ("NumbersAt", "", 90), ("PlaceholderDraft", "", 100), ("CacheWriteFp8", "float32", 90), ("CloseUp", "", 90),
    ("GrowTree", "", 90),
}  # fmt: skip

# For each kernel (op, dtype, SM) what identifies the text that its mutants were chosen for, and the mutants: a kind and
# the number of the place. Where launches take long, @ names the case to begin with, which catches it.
CHOSEN: dict[tuple[str, str, int], tuple[str, str]] = {
    ("NumbersAt", "", 90): (
        "9a28f1e87865",
        "comparison 0, constant 1, float constant 0, swapped operands 0, removed guard 0, negated guard 0, "
        "branch not taken 0, address offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("NumbersAt", "", 100): (
        "15987a075da1",
        "comparison 0, constant 0, float constant 0, swapped operands 0, removed guard 0, negated guard 0, "
        "branch not taken 0, address offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("PlaceholderDraft", "", 90): (
        "bc019033e114",
        "comparison 0, constant 0, swapped operands 0, removed guard 0, negated guard 0, branch not taken 0, "
        "address offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("PlaceholderDraft", "", 100): (
        "9ca5ad20bf8f",
        "comparison 0, constant 0, swapped operands 0, removed guard 0, negated guard 0, branch not taken 0, "
        "address offset 0, shifted offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("CacheWriteFp8", "float32", 90): (
        "e3a33c032f4e",
        "comparison 0, constant 0, swapped operands 0, removed guard 0, negated guard 0, branch not taken 0, "
        "address offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("CacheWriteFp8", "float32", 100): (
        "5893209d2274",
        "comparison 0, constant 1, swapped operands 0, removed guard 0, negated guard 0, branch not taken 0, "
        "address offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("CacheWriteFp8", "bfloat16", 90): (
        "2b2941460c18",
        "comparison 0, constant 0, swapped operands 0, removed guard 0, negated guard 0, branch not taken 0, "
        "address offset 0, shifted offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("CacheWriteFp8", "bfloat16", 100): (
        "ff9a5b11d3f6",
        "comparison 2, constant 0, swapped operands 1, removed guard 0, negated guard 0, branch not taken 0, "
        "address offset 0, shifted offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("Mxfp4GateUp", "float16", 100): (
        "f2c03308765e",
        "comparison 0, constant 0, float constant 0, dropped barrier 0, swapped operands 1, removed guard 0, "
        "negated guard 0, branch not taken 0, address offset 0, shifted offset 0, dropped store 0, "
        "dropped instruction 0, other operation 0, other lane 1",
    ),
    ("Mxfp4GateUp", "float16", 90): (
        "654b2aa42343",
        "comparison 0, constant 0, float constant 0, dropped barrier 0, swapped operands 0, removed guard 0, "
        "negated guard 0, branch not taken 0, address offset 0, shifted offset 0, dropped store 0, "
        "dropped instruction 0, other operation 1, other lane 1",
    ),
    ("Mxfp4Down", "bfloat16", 100): (
        "3acb761334fb",
        "comparison 0, constant 0, float constant 1, dropped barrier 0, swapped operands 2, removed guard 0, "
        "negated guard 0, branch not taken 0, address offset 0, shifted offset 0, dropped store 0, "
        "dropped instruction 0, other operation 0, other lane 0",
    ),
    ("Mxfp4Down", "bfloat16", 90): (
        "b9e884c0a396",
        "comparison 0, constant 0, float constant 1, dropped barrier 0, swapped operands 1, removed guard 0, "
        "negated guard 0, branch not taken 1, address offset 0, shifted offset 0, dropped store 1, "
        "dropped instruction 0, other operation 0, other lane 0",
    ),
    ("AcceptTree", "float32", 100): (
        "15d9471cea93",
        "constant 3, dropped barrier 0, swapped operands 3, removed guard 0, address offset 2, dropped store 3, "
        "dropped atomic 0, dropped instruction 0, other operation 0, other reduction 0, not atomic 0",
    ),
    ("CloseUp", "", 90): (
        "a0f6f0dde244",
        "comparison 1, constant 0, swapped operands 1, removed guard 0, negated guard 0, branch not taken 1, "
        "address offset 0, dropped store 0, dropped instruction 1, other operation 0",
    ),
    ("CloseUp", "", 100): (
        "6c62920b6517",
        "comparison 1, constant 1, swapped operands 0, removed guard 0, negated guard 0, branch not taken 1, "
        "address offset 0, dropped store 0, dropped instruction 0, other operation 0",
    ),
    ("GrowTree", "", 90): (
        "ca0ef7ab81fa",
        "comparison 2, constant 0, float constant 0, dropped barrier 0, swapped operands 1, removed guard 1, "
        "negated guard 1, branch not taken 1, address offset 2, shifted offset 2, dropped store 3, "
        "dropped instruction 0, other operation 2, other reduction 0",
    ),
    ("GrowTree", "", 100): (
        "942e96a203cd",
        "comparison 0, constant 0, float constant 1, dropped barrier 0, swapped operands 0, removed guard 0, "
        "negated guard 0, branch not taken 1, address offset 0, shifted offset 1, dropped store 2, "
        "dropped instruction 0, other operation 0, other reduction 0",
    ),
    ("AcceptPrefix", "float32", 90): (
        "145b091b9da7",
        "comparison 1, constant 2, float constant 2, dropped barrier 0, swapped operands 2, removed guard 0, "
        "negated guard 0, branch not taken 2, address offset 0, shifted offset 0, dropped store 0, dropped "
        "atomic 0, dropped instruction 0, other operation 0, other reduction 0, other lane 0, not atomic 0, "
        "rank of another block 0",
    ),
    ("AcceptPrefix", "float32", 100): (
        "6c7ccee17112",
        "comparison 0 @1, constant 3, float constant 2, dropped barrier 0, swapped operands 0 @2, removed guard 0 @4, "
        "negated guard 0 @4, branch not taken 0 @4, address offset 1 @3, shifted offset 1, dropped store 0 @4, dropped "
        "atomic 0, dropped instruction 0, other operation 0 @1, other reduction 0, other lane 0 @4, not atomic 0, "
        "rank of another block 0 @5",
    ),
}


def described(chosen: str) -> list[tuple[str, int, int]]:
    """Return the mutants that a line of the table names: kind, number and the case to begin with."""
    found = [re.fullmatch(r"(.+) (\d+)(?: @(\d+))?", each) for each in chosen.split(", ")]
    return [(match[1], int(match[2]), int(match[3] or 0)) for match in found if match]


def check(op: str, dtype: str, sm: int, record: Callable[[str, object], None]) -> None:
    """Require that all chosen mutants are caught; for another text than theirs, choose anew."""
    text, chosen = CHOSEN[op, dtype, sm]
    if digest(op, dtype, sm) != text:
        caught, passed = choose(op, dtype, sm)
        record("mutants", f"another text: {len(caught)} of {len(caught) + len(passed)} caught")
        assert len(caught) >= MIN, [(each.before, each.after) for each in passed]
        return
    fates = [(kind, number, fate(op, dtype, sm, kind, number, first)) for kind, number, first in described(chosen)]
    passing = [(kind, number, found and found[0]) for kind, number, found in fates if not found or not found[1]]
    record("mutants", f"{len(fates) - len(passing)} of {len(fates)} caught")
    assert not passing
    assert len(fates) >= MIN


@pytest.mark.parametrize(
    ("op", "dtype", "sm"), [pytest.param(*key, marks=[] if key in DEFAULT else pytest.mark.slow) for key in CHOSEN]
)
def test_every_chosen_mutant_is_caught(
    op: str, dtype: str, sm: int, record_property: Callable[[str, object], None]
) -> None:
    check(op, dtype, sm, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("sm", [90, 100])
@pytest.mark.parametrize(("op", "dtype"), [("NumbersAt", ""), ("PlaceholderDraft", ""), ("CacheWriteFp8", "float32")])
def test_nearly_every_mutant_is_caught(op: str, dtype: str, sm: int) -> None:
    """Of up to 60 mutants of each kind at most a tenth pass. Those looked at mean the same: a guard that no launch of
    the spec reaches, a division of 64 bits where one of 32 would do, a bit that nobody reads."""
    fates = [fate(op, dtype, sm, kind, number) for kind in KINDS for number in range(60)]
    found = [each for each in fates if each is not None]
    passing = [each[0] for each in found if each[1] is None]
    assert len(passing) <= 0.1 * len(found), [(each.line, each.before, each.after) for each in passing]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dropped barrier", "other lane", "not atomic"])
@pytest.mark.parametrize("sm", [90, 100])
def test_everything_by_which_the_threads_of_a_cluster_work_together_is_needed(sm: int, kind: str) -> None:
    """Every barrier, shuffle and atomic of AcceptPrefix: without it a race, an early end or another token."""
    fates = [each for number in range(100) if (each := fate("AcceptPrefix", "float32", sm, kind, number))]
    assert len(fates) >= MIN
    assert not [(each.line, each.before, each.after) for each, complaint in fates if complaint is None]


if __name__ == "__main__":
    for key in CHOSEN:
        new, passed = choose(*key)
        print(f'    {key}: ("{digest(*key)}", "{", ".join(f"{kind} {number}" for kind, number in new)}"),')
        for one in passed:
            print(f"    # passes: {one.kind}, line {one.line}: {one.before} => {one.after}")
