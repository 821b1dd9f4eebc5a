"""Weight files of a checkpoint folder: find them, and locate each tensor. Inconsistencies are reported as problems."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ...plugins.errors import BuildError
from ...plugins.problems import MAX, Problems, counted, listed, shown
from .json_files import read_json
from .safetensors import TensorEntry, read_header

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
_MAX_NAME = 1024
_MAX_FILE_NAME = 255


def stored_tensors(folder: Path, problems: Problems) -> dict[str, TensorEntry]:
    """Map tensor names to their entries, from the headers of the folder's weight files."""
    return _read_index(folder, problems) if (folder / INDEX).is_file() else _read_single(folder, problems)


def _read_single(folder: Path, problems: Problems) -> dict[str, TensorEntry]:
    stored = read_header(_only_file(folder))
    _check_names(stored, problems)
    return stored


def _only_file(folder: Path) -> Path:
    """Return the one weight file of a folder without an index."""
    if (folder / SINGLE).is_file():
        return folder / SINGLE
    every = sorted(folder.glob("*.safetensors"))
    # Mistral publishes its own layout of the same weights beside that of transformers.
    candidates = [path for path in every if not path.name.startswith("consolidated")] or every
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise BuildError(
            f"{folder} has several weight files and no {INDEX}: {listed([path.name for path in candidates])}",
            why="without the index, it is unclear which tensors belong to the model",
            fix=f"add the {INDEX} that was published with the model",
        )
    if files := sorted(folder.glob("*.gguf")):
        raise BuildError(
            f"{folder} has GGUF files but no safetensors weights: {listed([path.name for path in files])}",
            why="a GGUF file is a complete checkpoint",
            fix=f"pass the file: `--model {files[0]}`",
        )
    pickles = sorted(path.name for pattern in _PICKLES for path in folder.glob(pattern))
    raise BuildError(
        f"{folder} has no safetensors weights",
        why=f"pickled weights can execute code and are never loaded: {listed(pickles)}" if pickles else "",
        fix="download the model's safetensors files, or convert it with `save_pretrained` of transformers",
    )


def _read_index(folder: Path, problems: Problems) -> dict[str, TensorEntry]:
    """Locate every tensor through the index. Weight files that the index does not mention are ignored."""
    placed = _placed(folder, problems)
    files = sorted(set(placed.values()))
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        problems.add(
            f"{folder} lacks {len(missing)} of {len(files)} weight files: {listed(missing)}",
            fix="complete the download of the model",
        )
    entries_of: dict[str, dict[str, TensorEntry]] = defaultdict(dict)
    complete = set[str]()
    for file in (file for file in files if file not in missing):
        with problems.collecting():
            for name, entry in read_header(folder / file).items():
                entries_of[name][file] = entry
            complete.add(file)
    _check_names({*placed, *entries_of}, problems)
    _check_places(placed, entries_of, complete, problems)
    return {name: entries[placed[name]] for name, entries in entries_of.items() if placed.get(name) in entries}


def _placed(folder: Path, problems: Problems) -> dict[str, str]:
    """Map tensor names to file names. Files outside the folder are reported as problems."""
    index = folder / INDEX
    weight_map = read_json(index, "").get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise BuildError(f"{index} has no weight_map", fix="download the file again")
    unsafe = {name: file for name, file in weight_map.items() if not _is_weight_file(file)}
    if unsafe:
        locations = [f"{shown(name)} in {shown(repr(file))}" for name, file in [*unsafe.items()][:MAX]]
        rest = len(unsafe) - len(locations)
        problems.add(
            f"{index} has invalid file names: {', '.join(locations)}" + (f" and {rest} more" if rest else ""),
            why="an index must refer only to safetensors files in its own folder",
            fix="do not use this checkpoint unless you know why its index has these names",
        )
    return {name: file for name, file in weight_map.items() if name not in unsafe}


def _is_weight_file(file: Any) -> bool:
    """Return True for a plain safetensors file name without characters special to a file system or terminal."""
    return (
        isinstance(file, str)
        and file.endswith(".safetensors")
        and Path(file).name == file
        and "\\" not in file
        and file.isprintable()
        and len(file.encode()) <= _MAX_FILE_NAME
    )


def _check_places(
    placed: Mapping[str, str], entries: Mapping[str, Mapping[str, TensorEntry]], complete: set[str], problems: Problems
) -> None:
    """Compare the index (``placed``) with the headers (``entries``); ``complete`` are the files read completely."""
    absent: dict[str, list[str]] = defaultdict(list)
    misplaced = []
    for name, file in placed.items():
        if file in complete and name not in entries:
            absent[file].append(name)
        elif file in complete and file not in entries[name]:
            misplaced.append(f"{shown(name)} (in {', '.join(entries[name])}, not in {file})")
    kinds = {f"missing from {file}, in which {INDEX} lists them": names for file, names in absent.items()} | {
        f"in a file other than the one that {INDEX} lists": misplaced,
        "in several files": [f"{shown(n)} (in {', '.join(files)})" for n, files in entries.items() if len(files) > 1],
        f"that {INDEX} does not list": [name for name in entries if name not in placed],
    }
    for problem, names in kinds.items():
        if names:
            problems.add(
                f"{problems.subject}: {counted(names)} {problem}: {listed(sorted(names))}",
                fix="download all files of the model again: the files in the folder come from different versions",
            )


def _check_names(names: Iterable[str], problems: Problems) -> None:
    bad = [name for name in names if not name or len(name) > _MAX_NAME or not name.isprintable()]
    if bad:
        problems.add(
            f"{problems.subject} has {counted(bad)} with invalid names: {listed(sorted(bad))}",
            why=f"a name must have 1 to {_MAX_NAME} printable characters",
            fix="do not use this checkpoint unless you know why it has such names",
        )
