"""Run the threads of some clusters: which run next, which wait at a barrier, and which are deadlocked."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Any

import numpy as np

from .barriers import Barriers
from .errors import BarrierFault, NoEnd, UnsupportedPtxError
from .frame import Frame, Registers
from .memory import GlobalMemory, Memory
from .operations import Array
from .program import Code, Program
from .races import Shadow
from .spaces import LOCAL_BASE, SHARED_BASE
from .syntax import Variable
from .threads import Shape, Threads
from .warps import complete

MAX_STEPS = 1_000_000


class Machine:
    """Whole clusters that run together, from block ``first`` on. ``arguments`` are the parameters' bytes by name."""

    def __init__(
        self,
        program: Program,
        shape: Shape,
        first: int,
        blocks: int,
        memory: GlobalMemory,
        arguments: Mapping[str, bytes],
        symbols: Mapping[str, int],
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.program, self.kernel, self.shape, self.memory = program, program.kernel, shape, memory
        self.arguments, self.max_steps, self.steps = arguments, max_steps, 0
        self.threads = Threads(shape, first, blocks)
        self.registers = Registers(self.threads.count)
        self.symbols = dict(symbols)
        self.shared_size = self._place("shared", SHARED_BASE)
        self.local_size = self._place("local", LOCAL_BASE)
        shared = max(self.pitch("shared") * blocks, 8)
        self.shared = Memory("shared memory", shared, Shadow(shared, 8, shape))
        self.local = Memory("local memory", self.pitch("local") * self.threads.count)
        self.gone = np.zeros(blocks, np.bool_)  # blocks whose shared memory no longer exists
        self.barriers = Barriers(self)
        self.ready: dict[int, list[Array]] = {}
        self.incomplete: dict[int, Array] = {}  # lanes that wait for others of their warp
        self.queue: list[int] = []

    def _place(self, space: str, base: int) -> int:
        """Give addresses to the variables of a space; return how many bytes they take."""
        at = base
        for each in self._variables(space):
            at = -(-at // each.align) * each.align
            self.symbols[each.name] = at
            at += each.size
        return at - base

    def _variables(self, space: str) -> list[Variable]:
        return [each for each in self.kernel.variables.values() if each.space == space]

    def pitch(self, space: str) -> int:
        """Return the distance in bytes between two blocks' shared memory, or two threads' local memory."""
        return -(-(self.local_size if space == "local" else self.shared_size) // 16) * 16

    def address(self, name: str, line: int) -> int:
        """Return the address of a variable."""
        if name not in self.symbols:
            raise UnsupportedPtxError(f"{self.kernel.name}, line {line}: no variable {name}")
        return self.symbols[name]

    def parameter(self, name: str, offset: int, dtype: Any, line: int) -> Any:
        """Return a parameter's number."""
        content = self.arguments.get(name, b"")
        if offset % dtype.itemsize or not 0 <= offset <= len(content) - dtype.itemsize:
            raise UnsupportedPtxError(f"{self.kernel.name}, line {line}: {dtype} at byte {offset} of parameter {name}")
        return np.frombuffer(content, dtype, 1, offset)[0]

    def push(self, block: int | None, lanes: Array) -> None:
        """Let lanes go on in a block; None ends them."""
        if not len(lanes):
            return
        if block is None:
            self.barriers.end(lanes)
            return
        if block not in self.ready:
            heapq.heappush(self.queue, block)
            waiting = self.incomplete.pop(block, None)
            self.ready[block] = [] if waiting is None else [waiting]
        self.ready[block].append(lanes)

    def run(self) -> None:
        """Run all threads to their end. Raises a ``Fault`` for what no kernel may do."""
        self.push(0, np.arange(self.threads.count))
        with np.errstate(all="ignore"):
            while self.queue:
                self.steps += 1
                if self.steps > self.max_steps:
                    line = self.program.code[self.queue[0]].line
                    raise NoEnd(f"{self.kernel.name}, line {line}: more than {self.max_steps} steps")
                block = heapq.heappop(self.queue)
                parts = self.ready.pop(block)
                lanes = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
                self._run_block(block, self.program.code[block], lanes)
        self._require_end()

    def _run_block(self, block: int, code: Code, lanes: Array) -> None:
        frame = Frame(self, lanes)
        gate = code.gate
        if gate is not None and gate.kind != "warp":
            self.barriers.reach(block, gate, code.next, lanes)
            return
        if gate is not None and gate.mask is not None:
            whole = complete(frame, gate.mask(frame), gate.line)
            if not whole.all():
                self.incomplete[block] = lanes[~whole]
                lanes = lanes[whole]
                if not len(lanes):
                    return
                frame = Frame(self, lanes)
            if gate.orders:
                self.threads.passed[0, lanes] += 1
        for step in code.steps:
            step(frame)
        if code.guard is None:
            frame.commit(self.program.escaping)
            self.push(code.next, lanes)
            return
        taken = frame.get(code.guard.register) != code.guard.negated
        frame.commit(self.program.escaping)
        if taken.all():
            self.push(code.target, lanes)
        elif not taken.any():
            self.push(code.next, lanes)
        else:
            self.push(code.target, lanes[taken])
            self.push(code.next, lanes[~taken])

    def _require_end(self) -> None:
        """Raise unless all threads have ended: those that wait for a barrier wait forever."""
        self.barriers.require_end()
        for block, lanes in self.incomplete.items():
            gate, lane = self.program.code[block].gate, int(lanes[0])
            opcode = gate.opcode if gate else ""
            raise BarrierFault(
                f"{self.kernel.name}, line {self.program.code[block].line}, {self.threads.name(lane)}: "
                f"waits at {opcode} for lanes of its mask that never come ({len(lanes)} threads do)"
            )
