"""A checkpoint folder: configuration and safetensors, as one set of named tensors. Nothing else is ever opened."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...plugins.errors import BuildError
from ...plugins.problems import MOST, Problems, counted, listed, shown
from .formats import Tensor, choose
from .formats.numbers import check_finite
from .formats.scaled import Loss, ScaledFp8
from .safetensors import TensorEntry, parse_json, read_header

if TYPE_CHECKING:
    import numpy as np

CONFIG = "config.json"
MODELOPT_CONFIG = "hf_quant_config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PIECE = 64 << 20
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_MAX_JSON = 100_000_000
_MAX_NAME = 1024
_MAX_FILE_NAME = 255


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: its configuration, and its tensors as the model computes with them, whatever stores them.

    ``format`` names the way the weights are stored; ``companions`` are the scales it consumed, by stored name.
    """

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    companions: Mapping[str, TensorEntry]
    format: str

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the configuration and all headers. One ``BuildError`` names all that is missing, damaged or unsafe."""
        folder = folder.resolve()
        if not folder.is_dir():
            raise BuildError(
                f"{folder} is not a folder", fix="pass a checkpoint folder with config.json and safetensors"
            )
        problems = Problems(folder, "cannot be used")
        config: dict[str, Any] = {}
        modelopt: dict[str, Any] = {}
        with problems.collecting():
            config = _json_object(folder / CONFIG, "every checkpoint has one; is this the folder of the model itself?")
        if (folder / MODELOPT_CONFIG).is_file():
            with problems.collecting():
                modelopt = _json_object(folder / MODELOPT_CONFIG, "")
        stored: dict[str, TensorEntry] = {}
        with problems.collecting():
            stored = _read_index(folder, problems) if (folder / INDEX).is_file() else _read_single(folder, problems)
        form, settings = choose(config, modelopt, problems)
        problems.raise_any()  # scales of shards that are absent would be missed for nothing
        view = form.view(stored, settings, problems)
        problems.raise_any()
        return cls(folder, config, view.tensors, view.companions, form.name)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by name."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @property
    def stored_bytes(self) -> int:
        """Bytes of the weight files."""
        return sum(file.stat().st_size for file in {tensor.entry.file for tensor in self.tensors.values()})

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """One whole tensor: float32 and finite, or integers and booleans as stored."""
        tensor = self._tensor(name)
        return _rows(name, tensor, 0, _length(tensor))

    def pieces(self, name: str, limit: int = PIECE) -> Iterator[np.ndarray[Any, Any]]:
        """What ``read`` gives, as slices along axis 0 of at most ``limit`` bytes, or of one row (or block of rows)."""
        tensor = self._tensor(name)
        return (_rows(name, tensor, *some) for some in _slices(tensor, limit))

    def fp8(self, name: str) -> ScaledFp8 | None:
        """A tensor that is stored as E4M3 codes, with its scales; None for any other."""
        tensor = self.tensors.get(name)
        return tensor if isinstance(tensor, ScaledFp8) else None

    def codes(self, name: str, loss: Loss | None = None, limit: int = PIECE) -> Iterator[np.ndarray[Any, Any]]:
        """The E4M3 codes of such a tensor, uint8, in the slices of ``pieces``; see ``ScaledFp8.codes``."""
        tensor = self.fp8(name)
        if tensor is None:
            raise BuildError(f"{self.folder}: {name} is not stored as FP8 with scales")
        return (tensor.codes(*some, loss) for some in _slices(tensor, limit))

    def position(self, name: str) -> tuple[str, int]:
        """File and offset of a tensor: whoever reads in this order reads each file once, from front to back."""
        entry = self._tensor(name).entry
        return str(entry.file), entry.begin

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the configuration and of every byte of the weights, whatever the folder is called."""
        digest = hashlib.sha256()
        entries = [*(tensor.entry for tensor in self.tensors.values()), *self.companions.values()]
        configs = [self.folder / CONFIG, self.folder / MODELOPT_CONFIG]
        for file in (*filter(Path.is_file, configs), *sorted({entry.file for entry in entries})):
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{file.name} {content}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()

    def _tensor(self, name: str) -> Tensor:
        if name not in self.tensors:
            near = difflib.get_close_matches(name, self.tensors, 3)
            raise BuildError(
                f"{self.folder} has no tensor {name}",
                why=f"the nearest names are {', '.join(near)}" if near else "no name in it is similar",
                fix="check that the weights and config.json are of the same model",
            )
        return self.tensors[name]


def _length(tensor: Tensor) -> int:
    return tensor.shape[0] if tensor.shape else 1


def _slices(tensor: Tensor, limit: int) -> Iterator[tuple[int, int]]:
    """Rows to read at a time: ``limit`` bytes of float32 at most, or one row (or block of rows)."""
    length = _length(tensor)
    rows = limit // max(4 * math.prod(tensor.shape[1:]), 1)
    step = max(rows // tensor.granule, 1) * tensor.granule
    return ((at, min(at + step, length)) for at in range(0, max(length, 1), step))


def _rows(name: str, tensor: Tensor, begin: int, end: int) -> np.ndarray[Any, Any]:
    values = tensor.rows(begin, end)
    check_finite(name, tensor.entry, values)
    return values


def _read_single(folder: Path, problems: Problems) -> dict[str, TensorEntry]:
    stored = read_header(_only_file(folder))
    _check_names(stored, problems)
    return stored


def _only_file(folder: Path) -> Path:
    """The one weight file of a folder without an index."""
    if (folder / SINGLE).is_file():
        return folder / SINGLE
    every = sorted(folder.glob("*.safetensors"))
    # Mistral publishes its own layout of the same weights beside that of transformers.
    found = [path for path in every if not path.name.startswith("consolidated")] or every
    if len(found) == 1:
        return found[0]
    if found:
        raise BuildError(
            f"{folder} has several weight files and no {INDEX}: {listed([path.name for path in found])}",
            why="which tensors belong to the model is not stated",
            fix=f"add the {INDEX} that the model was published with",
        )
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    raise BuildError(
        f"{folder} has no safetensors weights",
        why=f"pickled weights may hold code and are never read: {listed(pickles)}" if pickles else "",
        fix="download the safetensors files of the model, or save it again with `save_pretrained` of transformers",
    )


def _read_index(folder: Path, problems: Problems) -> dict[str, TensorEntry]:
    """Every tensor where the index says it is. Other weight files in the folder do not count."""
    placed = _placed(folder, problems)
    files = sorted(set(placed.values()))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        problems.add(
            f"{folder} lacks {len(missing)} of {len(files)} weight files: {listed(missing)}",
            fix="finish the download of the model",
        )
    found: dict[str, dict[str, TensorEntry]] = defaultdict(dict)
    whole = set[str]()
    for file in (file for file in files if file not in missing):
        with problems.collecting():
            for name, entry in read_header(folder / file).items():
                found[name][file] = entry
            whole.add(file)
    _check_names({*placed, *found}, problems)
    _check_places(placed, found, whole, problems)
    return {name: entries[placed[name]] for name, entries in found.items() if placed.get(name) in entries}


def _placed(folder: Path, problems: Problems) -> dict[str, str]:
    """The file of each tensor by name. Files outside the folder are problems."""
    index = folder / INDEX
    weight_map = _json_object(index, "").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BuildError(f"{index} has no weight_map", fix="download the file again")
    unsafe = {name: file for name, file in weight_map.items() if not _is_weight_file(file)}
    if unsafe:
        places = [f"{shown(name)} in {shown(repr(file))}" for name, file in [*unsafe.items()][:MOST]]
        rest = len(unsafe) - len(places)
        problems.add(
            f"{index} places {', '.join(places)}" + (f" and {rest} more outside its folder" if rest else ""),
            why="an index may only name safetensors files of its own folder",
            fix="do not use this checkpoint unless you know why it says so",
        )
    return {name: file for name, file in weight_map.items() if name not in unsafe}


def _is_weight_file(file: Any) -> bool:
    """A plain name of a safetensors file, with nothing in it that a file system or a terminal could take otherwise."""
    return (
        isinstance(file, str)
        and file.endswith(".safetensors")
        and Path(file).name == file
        and "\\" not in file
        and file.isprintable()
        and len(file.encode()) <= _MAX_FILE_NAME
    )


def _check_places(
    placed: Mapping[str, str], found: Mapping[str, Mapping[str, TensorEntry]], whole: set[str], problems: Problems
) -> None:
    """``placed`` is what the index says, ``found`` what the ``whole`` files hold."""
    absent: dict[str, list[str]] = defaultdict(list)
    misplaced = []
    for name, file in placed.items():
        if file in whole and name not in found:
            absent[file].append(name)
        elif file in whole and file not in found[name]:
            misplaced.append(f"{shown(name)} (in {', '.join(found[name])}, not in {file})")
    kinds = {f"missing from {file}, where {INDEX} promises them": names for file, names in absent.items()} | {
        f"in other files than {INDEX} says": misplaced,
        "in more than one file": [
            f"{shown(n)} (in {', '.join(files)})" for n, files in found.items() if len(files) > 1
        ],
        f"that {INDEX} does not name": [name for name in found if name not in placed],
    }
    for what, names in kinds.items():
        if names:
            problems.add(
                f"{problems.subject}: {counted(names)} {what}: {listed(sorted(names))}",
                fix="download the files of the model again: they do not belong together",
            )


def _check_names(names: Iterable[str], problems: Problems) -> None:
    bad = [name for name in names if not name or len(name) > _MAX_NAME or not name.isprintable()]
    if bad:
        problems.add(
            f"{problems.subject} has {counted(bad)} with impossible names: {listed(sorted(bad))}",
            why=f"a name has 1 to {_MAX_NAME} characters that can be printed",
            fix="do not use this checkpoint unless you know why it has such names",
        )


def _json_object(path: Path, hint: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > _MAX_JSON:
            raise ValueError(f"it has more than {_MAX_JSON} bytes")
        content = parse_json(path.read_bytes())
    except FileNotFoundError:
        raise BuildError(
            f"{path.parent} has no {path.name}", why=hint, fix="pass the folder of the checkpoint"
        ) from None
    except OSError as error:
        raise BuildError(f"cannot read {path}", why=str(error), fix="check the permissions of the file") from None
    except (ValueError, RecursionError) as error:
        raise BuildError(f"{path} is not JSON", why=str(error), fix="download the file again") from None
    if not isinstance(content, dict):
        raise BuildError(f"{path} does not hold a JSON object", fix="download the file again")
    return content
