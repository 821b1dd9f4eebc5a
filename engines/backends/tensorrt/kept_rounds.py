"""Rounds that are ready to run: their execution contexts and CUDA graphs, of the last few kinds."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from ..base import Steps
from .device import CapturedGraph, Device
from .loaded_graphs import Pass
from .memory import WindowSizes

MOST = 32  # kinds of rounds; contexts and graphs take memory of the GPU

RoundKind = tuple[Steps, int, int, int]  # steps, K, rows, and positions of the caches that are read
PassKind = tuple[str, WindowSizes]  # half and sizes


@dataclass
class KeptRound:
    """What rounds of one kind run: their passes, and their CUDA graph once it was captured.

    ``drafts_after`` is for how many drafts the windows have room after a replay.
    """

    passes: dict[PassKind, Pass] = field(default_factory=dict)
    has_run: bool = False
    graph: CapturedGraph | None = None
    drafts_after: int = 0


class KeptRounds:
    """The rounds of up to ``most`` kinds; for one more, that which was not asked for longest is dropped."""

    def __init__(self, device: Device, most: int = MOST) -> None:
        self._device, self._most = device, most
        self._rounds: OrderedDict[RoundKind, KeptRound] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rounds)

    def of(self, kind: RoundKind) -> KeptRound:
        """The round of this kind, with nothing in it where it is new or was dropped."""
        if kind not in self._rounds:
            while len(self._rounds) >= self._most:
                self._drop_oldest()
            self._rounds[kind] = KeptRound()
        self._rounds.move_to_end(kind)
        return self._rounds[kind]

    def _drop_oldest(self) -> None:
        self._device.record().wait()  # it may still run
        _, dropped = self._rounds.popitem(last=False)
        dropped.graph = None  # it replays the contexts, which go after it
        dropped.passes.clear()
