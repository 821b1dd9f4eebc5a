"""Faults that the interpreter finds: each names the kernel, the line of its PTX, and the thread."""

from __future__ import annotations


class PtxError(Exception):
    """Base of everything that the interpreter raises."""


class UnsupportedPtxError(PtxError):
    """The text has an instruction, a modifier or a directive that the interpreter does not know."""


class LaunchError(PtxError):
    """The launch does not fit the kernel: its parameters, its block, its cluster."""


class Fault(PtxError):
    """The kernel does what no kernel may do."""


class DataRace(Fault):
    """Two threads access the same memory in no order, at least one of them writes, and not both atomically."""


class UninitializedRead(Fault):
    """A thread reads memory that nothing has written."""


class OutOfBounds(Fault):
    """A thread accesses memory that does not exist, or writes to an input."""


class Misaligned(Fault):
    """An address is not a multiple of the access size."""


class BarrierFault(Fault):
    """Threads wait at a barrier, or for other lanes of their warp, that never come."""


class EarlyExit(Fault):
    """A block ends while others of its cluster may still access its shared memory."""


class InvalidOperand(Fault):
    """An operand has a value for which the instruction is undefined, such as a divisor of 0."""


class NoEnd(Fault):
    """The kernel takes more steps than the limit."""


class UnwrittenError(PtxError):
    """The kernel ends without having written all bytes of an output."""


class Undefined(Exception):
    """Raised by arithmetic: the operands are undefined at index ``at``. The machine turns it into a fault."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at
