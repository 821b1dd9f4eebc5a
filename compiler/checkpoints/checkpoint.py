"""A checkpoint as one set of named tensors: a folder with configuration and safetensors, or a GGUF file.

No other file is ever opened.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...graphs.targets.checkpoint_pieces import UnreadRows
from ...plugins.errors import REPORT, BuildError, EnvironmentProblem, nearest
from ...plugins.problems import Problems
from ..console.progress import Advance, Progress
from ..console.progress_lines import Bytes
from ..store.cache_folder import cache_root
from ..store.known_hashes import FileState, entry_of, state_of
from ..store.stages import Stage
from .formats import StoredTensor, format_of
from .formats.fp8_with_scales import Loss, ScaledFp8
from .formats.mxfp4 import Mxfp4Matrix
from .formats.stored_numbers import check_finite
from .gguf.header import GgufHeader, is_gguf, read_gguf
from .gguf.model import config_of, tensors_of
from .gguf.side_files import keep_side_files
from .gguf.weights import GgufTensor, rounded_types, shares
from .json_files import MODELOPT_CONFIG, read_json
from .safetensors import TensorEntry
from .side_files import check_links
from .weight_files import stored_tensors

if TYPE_CHECKING:
    import numpy as np

CONFIG = "config.json"
GGUF = "gguf"
PIECE = 4 << 20  # bytes of float32 read at a time; this much stays in the CPU cache


@dataclass(frozen=True)
class Checkpoint:
    """An open checkpoint: its configuration, and its tensors in the model's own form, independent of storage.

    ``source`` is the folder or file that it was read from. ``format`` names the storage format of the weights;
    ``companions`` are the scales that the format consumed, by stored name. ``gguf`` is the header of a GGUF file.
    ``states`` are those of the weight files before the first byte was read. ``expert_blocks`` is the type of the blocks
    (``MXFP4``) that the routed experts of a folder are stored in; empty for none.
    """

    source: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]
    companions: Mapping[str, TensorEntry]
    format: str
    gguf: GgufHeader | None = None
    states: Mapping[Path, FileState] = field(default_factory=dict)
    expert_blocks: str = ""

    @classmethod
    def open(cls, source: Path) -> Checkpoint:
        """Read the configuration and all headers. One ``BuildError`` lists all that is missing, damaged or unsafe."""
        source = source.resolve()
        return cls._of_file(source) if is_gguf(source) else cls._of_folder(source)

    @classmethod
    def _of_file(cls, file: Path) -> Checkpoint:
        states = {file: state_of(file)}
        header, problems = read_gguf(file), Problems(file, "cannot be used")
        config = config_of(header, problems)
        tensors = tensors_of(header, config, problems)
        problems.raise_any()
        return cls(file, config, tensors, {}, GGUF, header, states)

    @classmethod
    def _of_folder(cls, folder: Path) -> Checkpoint:
        if not folder.is_dir():
            raise BuildError(
                f"{folder} does not exist or is not a folder",
                fix="pass a checkpoint folder with config.json and safetensors, or a GGUF file",
            )
        problems = Problems(folder, "cannot be used")
        check_links(folder, problems)
        problems.raise_any()
        config: dict[str, Any] = {}
        modelopt: dict[str, Any] = {}
        with problems.collecting():
            config = read_json(
                folder / CONFIG, "every checkpoint has this file, so this is probably not the folder of the model"
            )
        if (folder / MODELOPT_CONFIG).is_file():
            with problems.collecting():
                modelopt = read_json(folder / MODELOPT_CONFIG, "")
        states = {path: state_of(path) for path in folder.glob("*.safetensors")}
        stored: dict[str, TensorEntry] = {}
        with problems.collecting():
            stored = stored_tensors(folder, problems)
        form, settings = format_of(config, modelopt, problems)
        problems.raise_any()  # scales in missing shards would be reported as further problems
        view = form.view(stored, settings, problems)
        problems.raise_any()
        return cls(folder, config, view.tensors, view.companions, form.name, states=states, expert_blocks=form.blocks)

    @property
    def folder(self) -> Path:
        """The folder with configuration and tokenizer; for a GGUF file it is generated from the header, and kept."""
        return self._side_files.path if self._side_files else self.source

    @property
    def config_file(self) -> Path:
        """The file with the configuration."""
        return self.source if self.gguf else self.source / CONFIG

    @cached_property
    def _side_files(self) -> Stage | None:
        return keep_side_files(self.gguf, self.config) if self.gguf else None

    @property
    def stored(self) -> str:
        """A description of a GGUF file's storage types; empty for a folder."""
        return f"GGUF: {shares(self.tensors)}" if self.gguf else ""

    @property
    def rounded(self) -> tuple[str, ...]:
        """The quantized types of a GGUF file."""
        return rounded_types(self.tensors) if self.gguf else ()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by name."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weight files."""
        return sum(file.stat().st_size for file in {tensor.entry.file for tensor in self.tensors.values()})

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """Read one whole tensor: float32 and finite, or integers and booleans as stored."""
        tensor = self._tensor(name)
        return _rows(name, tensor, 0, _length(tensor))

    def pieces(self, name: str, limit: int = PIECE) -> Iterator[np.ndarray[Any, Any]]:
        """Read one tensor in slices along axis 0 of at most ``limit`` bytes, or of one row (or block of rows)."""
        return (run.read() for run in self.runs(name, limit))

    def runs(self, name: str, limit: int = PIECE) -> Iterator[UnreadRows]:
        """Return the slices of ``pieces``, not read yet."""
        tensor = self._tensor(name)
        of_row = math.prod(tensor.shape[1:])
        return (
            UnreadRows((end - begin) * of_row, partial(_rows, name, tensor, begin, end))
            for begin, end in _slices(tensor, limit)
        )

    def fp8(self, name: str) -> ScaledFp8 | None:
        """Return a tensor stored as E4M3 codes, with its scales; None for any other."""
        tensor = self.tensors.get(name)
        return tensor if isinstance(tensor, ScaledFp8) else None

    def codes(
        self, name: str, loss: Loss | None = None, scale: float | None = None, limit: int = PIECE
    ) -> Iterator[np.ndarray[Any, Any]]:
        """Read the E4M3 codes of such a tensor, uint8, in the slices of ``pieces``; see ``ScaledFp8.codes``."""
        tensor = self.fp8(name)
        if tensor is None:
            raise BuildError(f"{self.source}: {name} is not stored as FP8 with scales", fix=REPORT)
        return (tensor.codes(*some, loss, scale) for some in _slices(tensor, limit))

    def position(self, name: str) -> tuple[str, int]:
        """File and offset of a tensor: reading in this order reads each file once, from front to back."""
        entry = self._tensor(name).entry
        return str(entry.file), entry.begin

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the configuration and of every byte of the weights, independent of the folder's name.

        Large files are read once per machine: see ``known_hashes``.
        """
        return self._hashed(lambda _: None)

    def take_fingerprint(self, advance: Advance) -> None:
        """Compute the ``fingerprint`` now, reading all bytes; ``advance`` receives the progress."""
        if "fingerprint" not in self.__dict__:
            self.__dict__["fingerprint"] = self._hashed(advance)

    def _hashed(self, advance: Advance) -> str:
        root = _place_of_hashes()
        if self.gguf:  # its header holds the configuration
            return entry_of(self.source, root, advance).sha256
        digest = hashlib.sha256()
        entries = [*(tensor.entry for tensor in self.tensors.values()), *self.companions.values()]
        configs = [self.source / CONFIG, self.source / MODELOPT_CONFIG]
        for file in (*filter(Path.is_file, configs), *sorted({entry.file for entry in entries})):
            content = entry_of(file, root, advance).sha256
            digest.update(f"{file.name} {content}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def require_unchanged(self) -> None:
        """Raise ``BuildError`` if a weight file was written after it was opened: what was read may be of two models."""
        for file in sorted({tensor.entry.file for tensor in self.tensors.values()}):
            if file in self.states and self.states[file] != state_of(file):
                raise BuildError(
                    f"{file} changed while it was read",
                    why="another program wrote it, so the weights that were read may belong to two models",
                    fix="repeat the command when the file is complete; work on a copy of a checkpoint that training "
                    "overwrites",
                )

    def _tensor(self, name: str) -> StoredTensor:
        if name not in self.tensors:
            near = nearest(name, self.tensors)
            raise BuildError(
                f"{self.source} has no tensor {name}",
                why=f"similar names are {', '.join(near)}" if near else "no tensor has a similar name",
                fix="check that the weights and config.json belong to the same model",
            )
        return self.tensors[name]


def read_blocks(tensor: GgufTensor | Mxfp4Matrix, limit: int = PIECE) -> Iterator[np.ndarray[Any, Any]]:
    """Read a tensor in its stored blocks, uint8 [rows, bytes]; slices as in ``Checkpoint.pieces``."""
    return (tensor.blocks(*some) for some in _slices(tensor, limit))


def _place_of_hashes() -> Path | None:
    """Return the user's cache; None if there is none."""
    try:
        return cache_root()
    except EnvironmentProblem:
        return None


def take_fingerprints(checkpoints: Sequence[Checkpoint], progress: Progress) -> None:
    """Fingerprint some checkpoints, with a progress display: reading a large one takes minutes."""
    with progress.step(
        "read all weights", Bytes(sum(checkpoint.stored_bytes for checkpoint in checkpoints))
    ) as advance:
        for checkpoint in checkpoints:
            checkpoint.take_fingerprint(advance)


def _length(tensor: StoredTensor | Mxfp4Matrix) -> int:
    return tensor.shape[0] if tensor.shape else 1


def _slices(tensor: StoredTensor | Mxfp4Matrix, limit: int) -> Iterator[tuple[int, int]]:
    """Yield row ranges to read at a time: at most ``limit`` bytes of float32, or one row (or block of rows)."""
    length = _length(tensor)
    rows = limit // max(4 * math.prod(tensor.shape[1:]), 1)
    step = max(rows // tensor.granule, 1) * tensor.granule
    return ((at, min(at + step, length)) for at in range(0, max(length, 1), step))


def _rows(name: str, tensor: StoredTensor, begin: int, end: int) -> np.ndarray[Any, Any]:
    values = tensor.rows(begin, end)
    check_finite(name, tensor.entry, values)
    return values
