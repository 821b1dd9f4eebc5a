"""A stand-in for Triton's module without a server: records responses and metrics."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np


class Code(Enum):
    """Codes of an error."""

    INVALID_ARG = 1
    UNAVAILABLE = 2
    CANCELLED = 3
    INTERNAL = 4


@dataclass(frozen=True)
class TensorOf:
    """An output."""

    of: str
    array: np.ndarray

    def name(self) -> str:
        """Its name."""
        return self.of

    def as_numpy(self) -> np.ndarray:
        """Its values."""
        return self.array


@dataclass(frozen=True)
class TritonErrorOf:
    """An error with its code."""

    text: str
    kind: Code

    def message(self) -> str:
        """Return the message."""
        return self.text

    def code(self) -> Any:
        """Its code, as pybind11 has enumerations."""
        return SimpleNamespace(name=self.kind.name)


@dataclass(frozen=True)
class ResponseOf:
    """A response: outputs, or an error."""

    outputs: tuple[TensorOf, ...] | list[TensorOf] = ()
    failure: TritonErrorOf | None = None

    def output_tensors(self) -> list[TensorOf]:
        """The outputs."""
        return list(self.outputs)

    def has_error(self) -> bool:
        """Whether it is an error."""
        return self.failure is not None

    def error(self) -> TritonErrorOf | None:
        """The error."""
        return self.failure


@dataclass
class SenderOf:
    """Records responses to a client, which may disconnect; sending response ``fails_at`` fails."""

    sent: list[tuple[ResponseOf | None, int]] = field(default_factory=list)
    is_gone: bool = False
    fails_at: int = -1
    ended: threading.Event = field(default_factory=threading.Event)

    def send(self, response: ResponseOf | None = None, flags: int = 0) -> None:
        """Take a response."""
        assert not self.ended.is_set(), "Triton's server ends where something follows the last response"
        if len(self.sent) == self.fails_at:
            self.fails_at = -1
            raise RuntimeError("the client's connection broke")
        self.sent.append((response, flags))
        if flags:
            self.ended.set()

    def is_cancelled(self) -> bool:
        """Return True if the client has disconnected."""
        assert not self.ended.is_set(), "Triton's server ends where this is asked after the last response"
        return self.is_gone

    def value(self, name: str) -> list[Any]:
        """The values of an output, of all responses in order."""
        tensors = [tensor for response, _ in self.sent if response for tensor in response.outputs]
        return [each for tensor in tensors if tensor.of == name for each in tensor.array.reshape(-1).tolist()]

    @property
    def text(self) -> str:
        """All of the text."""
        return b"".join(self.value("text_output")).decode()

    @property
    def failure(self) -> TritonErrorOf | None:
        """The error that it ended with."""
        last = self.sent[-1][0]
        return last.failure if last else None


class Series:
    """A series of a family. Counters and gauges add up, a histogram stores its observations."""

    def __init__(self) -> None:
        self.value, self.seen = 0.0, list[float]()

    def increment(self, amount: float) -> None:
        """Add."""
        self.value += amount

    def observe(self, value: float) -> None:
        """Keep."""
        self.seen.append(value)


class Family:
    """A family of series by their labels."""

    COUNTER, GAUGE, HISTOGRAM = range(3)
    of: dict[tuple[str, str], Series]

    def __init__(self, name: str, description: str, kind: int) -> None:
        self._name = name

    def Metric(self, labels: dict[str, str], **_: object) -> Series:
        """Return the series of these labels, the same for every caller."""
        return self.of.setdefault((self._name, labels.get("finished_reason") or labels.get("lossy", "")), Series())


class Utilities:
    """The module; ``counted`` has its series, ``said`` its log."""

    TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1

    def __init__(self) -> None:
        self.counted: dict[tuple[str, str], Series] = {}
        self.said: list[str] = []
        self.MetricFamily = type("MetricFamily", (Family,), {"of": self.counted})
        self.Tensor = TensorOf
        self.Logger = SimpleNamespace(log_error=self.said.append)

    def InferenceResponse(self, output_tensors: Any = (), error: TritonErrorOf | None = None) -> ResponseOf:
        """A response."""
        return ResponseOf(output_tensors, error)

    class TritonError(TritonErrorOf):
        """Triton's own name for it, with its codes."""

        INVALID_ARG, UNAVAILABLE, CANCELLED, INTERNAL = Code

    def value(self, name: str, reason: str = "") -> float:
        """Return the value of a counter or gauge."""
        return self.counted[f"vllm:{name}", reason].value
