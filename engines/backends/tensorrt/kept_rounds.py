"""Cache of prepared rounds: the execution contexts and CUDA graphs of the most recently used kinds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..base import Steps
from .device import CapturedGraph, Device
from .loaded_drafter import PlanDrafter
from .loaded_graphs import Pass
from .memory import WindowSizes

Numbers = tuple[int, ...]  # of the drafters that a round runs
RoundKind = tuple[Steps, int, int, int, Numbers]  # steps, K, rows, cache positions that are read, and drafters
ANY_LENGTH = 0  # in place of the positions, for rounds that are not replayed
TARGET = -1  # in place of the number of a drafter
PassKind = tuple[str, int, WindowSizes]  # half, or further passes, the number of its drafter, and sizes


@dataclass
class KeptRound:
    """The passes of rounds of one kind, and their CUDA graph once captured.

    ``drafts_after`` is the number of drafts that the windows can hold after a replay, and ``grown_after`` the drafters
    whose drafts are trees.
    """

    passes: dict[PassKind, Pass] = field(default_factory=dict)
    has_run: bool = False
    graph: CapturedGraph | None = None
    drafts_after: int = 0
    grown_after: tuple[PlanDrafter, ...] = ()


class KeptRounds:
    """A least-recently-used cache of the rounds of up to ``capacity`` kinds: contexts and graphs take GPU memory."""

    def __init__(self, device: Device, capacity: int) -> None:
        self._device, self.capacity = device, capacity
        self._rounds: OrderedDict[RoundKind, KeptRound] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rounds)

    def of(self, kind: RoundKind) -> KeptRound:
        """Return the round of this kind, empty if it is new or was dropped."""
        if kind not in self._rounds:
            while len(self._rounds) >= self.capacity:
                self._drop([next(iter(self._rounds))])
            self._rounds[kind] = KeptRound()
        self._rounds.move_to_end(kind)
        return self._rounds[kind]

    def drop_drafter(self, number: int) -> None:
        """Drop all rounds that run a drafter."""
        self._drop([kind for kind in self._rounds if number in kind[-1]])

    def _drop(self, kinds: Sequence[RoundKind]) -> None:
        self._device.record().wait()  # the dropped rounds may still run
        for kind in kinds:
            dropped = self._rounds.pop(kind)
            dropped.graph = None  # before the contexts, which it replays
            for each in dropped.passes.values():
                each.release()
            dropped.passes.clear()
