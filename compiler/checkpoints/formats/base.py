"""What a checkpoint format is: how it is recognised, and how stored tensors become the ones a model computes with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ....plugins.problems import Problems
from ..safetensors import TensorEntry

if TYPE_CHECKING:
    import numpy as np

Stored = Mapping[str, TensorEntry]
Settings = Mapping[str, Any]  # the quantization_config of the checkpoint


class Tensor(Protocol):
    """A tensor as the model computes with it, read and dequantised some rows at a time."""

    @property
    def entry(self) -> TensorEntry:
        """Where the bulk of it is stored."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of what ``rows`` gives when asked for all."""

    @property
    def granule(self) -> int:
        """How many rows share scales, so that a reader had best take multiples of it."""

    def rows(self, begin: int, end: int) -> np.ndarray[Any, Any]:
        """Rows along axis 0: float32, or integers and booleans as stored. A tensor without axes is one row."""


@dataclass(frozen=True)
class View:
    """A checkpoint without its storage format. ``companions`` are the scales that the format consumed."""

    tensors: dict[str, Tensor]
    companions: dict[str, TensorEntry]


@dataclass(frozen=True)
class Format:
    """A way to store weights. ``view`` adds whatever does not fit to the problems it is given."""

    name: str
    matches: Callable[[Settings], bool]
    view: Callable[[Stored, Settings, Problems], View]
