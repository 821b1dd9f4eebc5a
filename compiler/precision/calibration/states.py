"""The streams of all samples between two layers, in one file: in memory there is never more than one sample's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ....plugins.errors import EnvironmentProblem


@dataclass(frozen=True)
class States:
    """Of samples of ``lengths`` tokens, ``[1,S,H]`` each, stored one behind the other in the type computed in."""

    lengths: Sequence[int]
    hidden_size: int
    dtype: torch.dtype

    def write(self, path: Path, streams: Iterable[Tensor]) -> None:
        """Make the file out of one stream per sample, written as they come."""
        with path.open("wb") as file:
            for stream in streams:
                file.write(stream.detach().contiguous().view(torch.uint8).numpy().data)

    def read(self, path: Path) -> Iterator[Tensor]:
        """The streams in order; each may be written into."""
        with path.open("rb") as file:
            for length in self.lengths:
                # Memory of torch's own: the last bits of a matmul depend on how its operands are aligned.
                stream = torch.empty(1, length, self.hidden_size, dtype=self.dtype)
                raw = stream.view(torch.uint8).numpy()
                if file.readinto(raw.data) != raw.nbytes:
                    raise EnvironmentProblem(
                        f"{path} became shorter while it was read", fix="run the same command again"
                    )
                yield stream
