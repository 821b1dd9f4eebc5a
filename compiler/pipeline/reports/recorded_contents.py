"""Contents of an export or a quantized checkpoint, from the record that was written with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from ....engines.folder.checks import check_files
from ....engines.folder.records import FileEntry
from ....engines.folder.strict_json import decode
from ....plugins.errors import EnvironmentProblem
from ...checkpoints.checkpoint import Checkpoint
from ...resources.speed.round_estimate import SPEED
from ...store.destination import EXPORT, QUANTIZED

T = TypeVar("T")

EXPORT_REPORT = "export_report.json"
_AGAIN = "copy the whole folder again, or recreate it with the command that made it"


@dataclass(frozen=True)
class ExportRecord:
    """The fields of ``export.json`` that are shown; ``lowering`` is called ``for`` there."""

    product_version: str
    lowering: str
    precision: str
    cache_length: int
    max_seq_len: int
    max_num_speculative_tokens: int
    model: str
    draft: str | None
    checkpoints: Mapping[str, str]
    files: Mapping[str, FileEntry]
    multiplied: str = ""
    stored: str = ""


@dataclass(frozen=True)
class CalibrationRecord:
    """The fields of a report's calibration that are shown."""

    dataset: str
    num_samples: int
    num_tokens: int


@dataclass(frozen=True)
class QuantizedRecord:
    """The fields of ``quantize_report.json`` that are shown."""

    product_version: str
    format: str
    model: str
    source_fingerprint: str
    source_bytes: int
    bytes: int
    fp8_matrices: int
    fp8_bytes: int
    exclude: tuple[str, ...]
    kv_cache_dtype: str | None
    calibration: CalibrationRecord
    warnings: tuple[str, ...]


def inspect_export(folder: Path, *, hashes: bool = True) -> tuple[ExportRecord, dict[str, Any]]:
    """Check the files that ``export.json`` lists, and return its content. Raises ``EnvironmentProblem``."""
    content = _read(folder / EXPORT)
    record = _decoded(ExportRecord, content | {"lowering": content.get("for")}, folder / EXPORT)
    check_export(record.files, folder, hashes=hashes)
    size = sum(entry.size for entry in record.files.values())
    speed = export_report(folder).get(SPEED)
    return record, {"export": str(folder), **content, "bytes": size} | ({SPEED: speed} if speed else {})


def export_report(folder: Path) -> dict[str, Any]:
    """Return the report of an export; empty if it has none. Raises ``EnvironmentProblem``."""
    path = folder / EXPORT_REPORT
    return _read(path) if path.is_file() else {}


def check_export(
    files: Mapping[str, FileEntry],
    folder: Path,
    *,
    hashes: bool = True,
    advance: Callable[[int], object] = lambda _: None,
) -> None:
    """Raise ``EnvironmentProblem`` if files of an export are missing or were changed.

    ``advance`` is called with the number of bytes as they are read.
    """
    try:
        check_files(files, folder, hashes=hashes, advance=advance)
    except EnvironmentProblem as error:
        why = error.why.replace("the manifest", EXPORT)
        raise EnvironmentProblem(error.what, why=why, fix="copy the whole folder again, or export again") from None


def inspect_quantized(folder: Path) -> tuple[QuantizedRecord, dict[str, Any]]:
    """Check that no tensor is truncated, and return the content of ``quantize_report.json`` and the sizes of all files.

    Raises ``EnvironmentProblem`` for a damaged report, ``BuildError`` for damaged weights.
    """
    content = _read(folder / QUANTIZED)
    record = _decoded(QuantizedRecord, content, folder / QUANTIZED)
    Checkpoint.open(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}
    return record, {"checkpoint": str(folder), **content, "files": sizes}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise EnvironmentProblem(f"cannot read {path}", why=str(error), fix="check its permissions") from None
    except (ValueError, RecursionError) as error:
        raise EnvironmentProblem(f"{path} is not valid JSON", why=str(error), fix=_AGAIN) from None
    if not isinstance(content, dict):
        raise EnvironmentProblem(f"{path} is not a valid record", why="the file must contain a JSON object", fix=_AGAIN)
    return content


def _decoded(kind: type[T], content: Mapping[str, Any], path: Path) -> T:
    """Return the fields that are shown; later versions may write others."""
    problems: list[str] = []
    record = decode(kind, _shown(kind, content), problems)
    if record is None:
        raise EnvironmentProblem(f"{path} is not a valid record", why="; ".join(problems), fix=_AGAIN)
    return record


def _shown(kind: Any, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries of ``content`` that are fields of ``kind``."""
    hints = get_type_hints(kind)
    return {
        name: _shown(hint, content[name]) if is_dataclass(hint) and isinstance(content[name], dict) else content[name]
        for name, hint in hints.items()
        if name in content
    }
