"""A checkpoint folder: ``config.json`` and safetensors, as one set of named tensors. Nothing else is ever opened."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..plugins.errors import BuildError
from .safetensors_file import TensorEntry, read_header, read_tensor

if TYPE_CHECKING:
    import numpy as np

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


@dataclass(frozen=True)
class Checkpoint:
    """An opened checkpoint: its configuration and where every tensor lies. Weights are read one at a time."""

    folder: Path
    config: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the configuration and all headers. Raises ``BuildError`` for anything missing, damaged or unsafe."""
        folder = folder.resolve()
        if not folder.is_dir():
            raise BuildError(
                f"{folder} is not a folder", fix="pass a checkpoint folder with config.json and safetensors"
            )
        config = _json_object(folder / CONFIG, "every checkpoint has one; is this the folder of the model itself?")
        tensors: dict[str, TensorEntry] = {}
        for file, names in _weight_files(folder).items():
            header = read_header(file)
            missing = sorted(names - header.keys())
            if missing:
                raise BuildError(
                    f"{file} lacks {len(missing)} tensors that {INDEX} promises, such as {missing[0]}",
                    fix="download the files of the model again: they do not belong together",
                )
            tensors |= {name: entry for name, entry in header.items() if not names or name in names}
        return cls(folder, config, tensors)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by name."""
        return {name: entry.shape for name, entry in self.tensors.items()}

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """One tensor: float32 and finite, or integers and booleans as stored."""
        if name not in self.tensors:
            near = difflib.get_close_matches(name, self.tensors, 3)
            raise BuildError(
                f"{self.folder} has no tensor {name}",
                why=f"the nearest names are {', '.join(near)}" if near else "no name in it is similar",
                fix="check that the weights and config.json are of the same model",
            )
        return read_tensor(name, self.tensors[name])

    @cached_property
    def fingerprint(self) -> str:
        """Hash of the configuration and of every byte of the weights, whatever the folder is called."""
        digest = hashlib.sha256()
        for file in (self.folder / CONFIG, *sorted({entry.file for entry in self.tensors.values()})):
            with file.open("rb") as stream:
                content = hashlib.file_digest(stream, "sha256").hexdigest()
            digest.update(f"{file.name} {content}\n".encode(errors="surrogateescape"))
        return digest.hexdigest()


def _weight_files(folder: Path) -> dict[Path, set[str]]:
    """The files to read and the tensors to take from each; an empty set means all of them."""
    if (folder / INDEX).is_file():
        return _indexed_files(folder)
    found = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return {found[0]: set()}
    if found:
        names = ", ".join(path.name for path in found)
        raise BuildError(
            f"{folder} has several weight files and no {INDEX}: {names}",
            why="which tensors belong to the model is not stated",
            fix=f"add the {INDEX} that the model was published with",
        )
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    raise BuildError(
        f"{folder} has no safetensors weights",
        why=f"pickled weights may hold code and are never read: {', '.join(pickles)}" if pickles else "",
        fix="download the safetensors files of the model, or save it again with `save_pretrained` of transformers",
    )


def _indexed_files(folder: Path) -> dict[Path, set[str]]:
    index = folder / INDEX
    weight_map = _json_object(index, "").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BuildError(f"{index} has no weight_map", fix="download the file again")
    files: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file.endswith(".safetensors") or Path(file).name != file or "\\" in file:
            raise BuildError(
                f"{index} places {name} in {file!r}",
                why="an index may only name safetensors files of its own folder",
                fix="do not use this checkpoint unless you know why it says so",
            )
        files.setdefault(folder / file, set()).add(name)
    missing = sorted(path.name for path in files if not path.is_file())
    if missing:
        raise BuildError(
            f"{folder} lacks {len(missing)} of {len(files)} weight files: {', '.join(missing[:5])}",
            fix="finish the download of the model",
        )
    return files


def _json_object(path: Path, hint: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
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
