"""Random inputs of every kind: each is reproduced from a seed and its number, and minimized if it fails."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from peagle.engines import Engine
from tests.attacks import api_calls, checkpoint_edits, command_lines, engine_edits, weight_edits
from tests.attacks.world import TooLongError, World, guarded
from tests.fixtures.attacks import Size

Pieces = list[Any]


@dataclass(frozen=True)
class Kind:
    """A way to attack: what draws an input in pieces, and what runs any of the pieces and complains."""

    draw: Callable[[random.Random], Pieces]
    run: Callable[[Pieces], str | None]
    weight: int


@dataclass(frozen=True)
class Fault:
    """An input that ended neither with a result nor with a ``PeagleError``."""

    seed: int
    number: int
    kind: str
    pieces: Pieces
    complaint: str

    def __str__(self) -> str:
        pieces = [piece[:2] if self.kind != "command line" else piece for piece in self.pieces]
        lines = [f"{self.kind}: {self.complaint}", *(f"  {str(piece)[:160]}" for piece in pieces)]
        return "\n".join([*lines, f"  again: --seed {self.seed} --first {self.number} --attacks 1"])


def kinds(world: World, engine: Engine | None = None, *, whole: bool) -> dict[str, Kind]:
    """Every kind of input; calls need an ``engine``. ``whole`` has those that take seconds each, too."""
    return {
        "command line": Kind(
            lambda rng: command_lines.draw(rng, world, whole=whole), lambda pieces: command_lines.run(world, pieces), 50
        ),
        "call": Kind(
            api_calls.draw, lambda pieces: api_calls.run(engine, pieces) if engine else None, 25 * (engine is not None)
        ),
        "engine": Kind(
            lambda rng: engine_edits.draw(rng, world), lambda pieces: engine_edits.run(world, pieces), 18
        ),
        "checkpoint": Kind(
            lambda rng: checkpoint_edits.draw(rng, world), lambda pieces: checkpoint_edits.run(world, pieces), 5 * whole
        ),
        "weights": Kind(
            lambda rng: weight_edits.draw(rng, world), lambda pieces: checkpoint_edits.run(world, pieces), 5
        ),
    }  # fmt: skip


def no_fault(world: World, choices: dict[str, Kind], size: Size) -> None:
    """Run inputs of these kinds, and fail with those that are at fault."""
    faults = []
    for number in size.numbers:
        if fault := attack(world, choices, size.seed, number):
            faults.append(fault)
            print(fault, flush=True)
    assert not faults, f"{len(faults)} of {size.attacks}\n" + "\n".join(map(str, faults[:20]))


def attack(world: World, choices: dict[str, Kind], seed: int, number: int) -> Fault | None:
    """Draw an input and run it; the fault, with no more pieces than it needs."""
    rng = random.Random(f"{seed}/{number}")
    (name,) = rng.choices(list(choices), [kind.weight for kind in choices.values()])
    kind = choices[name]
    pieces = kind.draw(rng)
    complaint = _complaint(world, kind, pieces)
    if complaint is None:
        return None
    pieces, complaint = _smaller(world, kind, pieces, complaint)
    return Fault(seed, number, name, pieces, complaint)


def _complaint(world: World, kind: Kind, pieces: Pieces) -> str | None:
    try:
        with guarded():
            return kind.run(pieces)
    except TooLongError as error:
        return str(error)
    except BaseException as error:  # including SystemExit and KeyboardInterrupt
        return f"raised {type(error).__name__}: {str(error)[:300]}"
    finally:
        world.restore()


def _smaller(world: World, kind: Kind, pieces: Pieces, complaint: str) -> tuple[Pieces, str]:
    """Return the remaining pieces after removing each whose absence keeps the failure."""
    if complaint.startswith("did not end"):
        return pieces, complaint
    for piece in list(pieces):
        fewer = [other for other in pieces if other is not piece]
        if fewer and (still := _complaint(world, kind, fewer)):
            pieces, complaint = fewer, still
    return pieces, complaint
