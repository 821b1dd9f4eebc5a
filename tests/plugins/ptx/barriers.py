"""Barriers of blocks and clusters, and the end of blocks.

All threads of the group must come: one that has ended counts as never coming. (Hardware lets a barrier go when the
missing threads have ended; a kernel that needs this is taken for a mistake here.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .errors import BarrierFault, EarlyExit, InvalidOperand
from .operations import Array

if TYPE_CHECKING:
    from .machine import Machine
    from .program import Gate

NUMBERS = 16


class Barriers:
    """Who waits where: for each block of code with a barrier, its gate, what follows it, and the lanes that wait."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.threads = machine, machine.threads
        self.at: dict[int, tuple[Gate, int | None, Array]] = {}
        self.arrived = np.zeros((self.threads.blocks, NUMBERS), np.int64)

    def reach(self, block: int, gate: Gate, following: int | None, lanes: Array) -> None:
        """Lanes arrive at a barrier; those that complete it continue, with all that wait there."""
        if gate.kind == "arrive":
            self._arrive(gate, lanes)
            self.machine.push(following, lanes)
            self._release_clusters()
            return
        waiting = self.at[block][2] if block in self.at else lanes[:0]
        self.at[block] = (gate, following, np.concatenate((waiting, lanes)))
        if gate.kind == "wait":
            passed = self.threads.passed[2:, lanes]
            if (wrong := passed[0] != passed[1] + 1).any():
                raise self._fault(InvalidOperand, gate, lanes[wrong], "waits for the cluster without an arrival")
            self._release_clusters()
            return
        own = self.threads.local_block[lanes]
        self.arrived[:, gate.barrier] += np.bincount(own, minlength=self.threads.blocks)
        whole = self.arrived[:, gate.barrier] == self.machine.shape.block
        if whole.any():
            self.arrived[whole, gate.barrier] = 0
            self._release_blocks(gate.barrier, whole)

    def _release_blocks(self, number: int, whole: Array) -> None:
        seen: dict[int, int] = {}
        for block, (gate, following, lanes) in list(self.at.items()):
            if gate.kind != "block" or gate.barrier != number:
                continue
            free = whole[self.threads.local_block[lanes]]
            for warp in np.unique(self.threads.warp[lanes[free]]).tolist() if gate.aligned else ():
                if warp in seen:
                    lane = lanes[free][self.threads.warp[lanes[free]] == warp]
                    raise self._fault(
                        BarrierFault, gate, lane, f"other lanes of its warp wait at the barrier in line {seen[warp]}"
                    )
                seen[warp] = gate.line
            self._go(block, gate, following, lanes, free, 1)

    def _go(self, block: int, gate: Gate, following: int | None, lanes: Array, free: Array, kind: int) -> None:
        if not free.any():
            return
        if free.all():
            del self.at[block]
        else:
            self.at[block] = (gate, following, lanes[~free])
        self.threads.passed[kind, lanes[free]] += 1
        self.machine.push(following, lanes[free])

    def _arrive(self, gate: Gate, lanes: Array) -> None:
        passed = self.threads.passed
        if (wrong := passed[2, lanes] != passed[3, lanes]).any():
            raise self._fault(InvalidOperand, gate, lanes[wrong], "arrives twice without waiting for the cluster")
        passed[2, lanes] += 1

    def _release_clusters(self) -> None:
        """Release waiting threads of clusters in which all threads have arrived equally often."""
        size = self.machine.shape.cluster * self.machine.shape.block
        least = self.threads.passed[2].reshape(-1, size).min(axis=1)
        for block, (gate, following, lanes) in list(self.at.items()):
            if gate.kind == "wait":
                self._go(block, gate, following, lanes, least[lanes // size] >= self.threads.passed[2, lanes], 3)

    def end(self, lanes: Array) -> None:
        """End threads. The shared memory of a block ends with its last thread, and must not be accessed afterwards."""
        self.threads.ended[lanes] = True
        size = self.machine.shape.block
        done = self.threads.ended.reshape(-1, size).all(axis=1)
        for block in np.flatnonzero(done & ~self.machine.gone).tolist():
            self.machine.gone[block] = True
            shadow, pitch = self.machine.shared.shadow, self.machine.pitch("shared")
            if shadow is None or not pitch:
                continue
            cells = slice(block * pitch // shadow.width, (block + 1) * pitch // shadow.width)
            number = block + self.threads.first
            phase, thread, line = shadow.latest_cluster_phase(cells, number)
            if phase >= self.threads.passed[3, block * size : (block + 1) * size].max():
                raise EarlyExit(
                    f"{self.machine.kernel.name}, line {line}, {self.threads.name_of(thread)}: accesses shared memory "
                    f"of block {number}, which may have ended: no barrier follows"
                )

    def _fault(self, kind: type[BarrierFault | InvalidOperand], gate: Gate, lanes: Array, what: str) -> Exception:
        return kind(f"{self.machine.kernel.name}, line {gate.line}, {self.threads.name(int(lanes[0]))}: {what}")

    def require_end(self) -> None:
        """Raise for threads that still wait at a barrier, and name one that does not come."""
        for gate, _, lanes in self.at.values():
            first = int(lanes[0])
            size = self.machine.shape.block * (self.machine.shape.cluster if gate.kind == "wait" else 1)
            group = np.arange(first // size * size, first // size * size + size)
            missing = np.setdiff1d(group, lanes)
            if gate.kind == "wait":
                missing = missing[self.threads.passed[2, missing] < self.threads.passed[2, first]]
            one = int(missing[0]) if len(missing) else first
            state = "has ended" if self.threads.ended[one] else "waits elsewhere"
            raise self._fault(
                BarrierFault,
                gate,
                lanes,
                f"waits at {gate.opcode} for {self.threads.name(one)}, which {state} ({len(missing)} do not come)",
            )
