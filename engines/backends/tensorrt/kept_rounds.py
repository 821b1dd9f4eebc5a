"""Cache of prepared rounds: the execution contexts and CUDA graphs of the most recently used kinds."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ..base import Steps
from .device import CapturedGraph, Device
from .loaded_graphs import Pass
from .memory import WindowSizes

RoundKind = tuple[Steps, int, int, int]  # steps, K, rows, and cache positions that are read
ANY_LENGTH = 0  # in place of the positions, for rounds that are not replayed
PassKind = tuple[str, WindowSizes]  # half, or the drafter's further passes, and sizes


@dataclass
class KeptRound:
    """The passes of rounds of one kind, and their CUDA graph once captured.

    ``drafts_after`` is the number of drafts that the windows can hold after a replay.
    """

    passes: dict[PassKind, Pass] = field(default_factory=dict)
    has_run: bool = False
    graph: CapturedGraph | None = None
    drafts_after: int = 0


class KeptRounds:
    """A least-recently-used cache of the rounds of up to ``most`` kinds: contexts and graphs take GPU memory."""

    def __init__(self, device: Device, most: int) -> None:
        self._device, self._most = device, most
        self._rounds: OrderedDict[RoundKind, KeptRound] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rounds)

    def of(self, kind: RoundKind) -> KeptRound:
        """Return the round of this kind, empty if it is new or was dropped."""
        if kind not in self._rounds:
            while len(self._rounds) >= self._most:
                self._drop_oldest()
            self._rounds[kind] = KeptRound()
        self._rounds.move_to_end(kind)
        return self._rounds[kind]

    def _drop_oldest(self) -> None:
        self._device.record().wait()  # the dropped round may still run
        _, dropped = self._rounds.popitem(last=False)
        dropped.graph = None  # before the contexts, which it replays
        for each in dropped.passes.values():
            each.release()
        dropped.passes.clear()
