"""The manifest ``engine.json``: what an engine folder holds and how it was made. No engine is without a valid one.

Reading and checking happen before anything is deserialised; every refusal names the file and the cure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...plugins.errors import EnvironmentProblem
from ...plugins.optional_packages import upgrade
from .checks import REBUILD, file_contradictions, part_contradictions, size_contradictions
from .records import BackendRecord, Evidence, FileEntry, Part, Shapes, Speculation
from .strict_json import decode

FILE_NAME = "engine.json"
Draft = Literal["drafter", "ngram", "none"]
Method = Literal["peagle", "eagle3"]
# The newest that is read, and every one before: 1 knows no engines without a drafter, 2 none that draft without one,
# 3 no drafter that makes a pass for every draft, 4 no K that adapts, and 5 no rounds that the build measured.
FORMAT_VERSION = 6


@dataclass(frozen=True)
class Manifest:
    """All of ``engine.json``.

    ``files`` lists every other file by its posix path; ``verify.json`` when it has been written. An engine that looks
    its drafts up in the text has no ``drafter``, and neither has one for plain decoding.
    """

    product_version: str
    target: Part
    drafter: Part | None
    backend: BackendRecord
    precision: Mapping[str, str]
    speculation: Speculation
    shapes: Shapes
    eos_token_ids: tuple[int, ...]
    files: Mapping[str, FileEntry]
    evidence: tuple[Evidence, ...] = ()
    format_version: int = 1

    @property
    def parts(self) -> dict[str, Part]:
        """The compiled graphs, by half."""
        return {"target": self.target} | ({"drafter": self.drafter} if self.drafter else {})

    @property
    def draft(self) -> Draft:
        """What drafts by itself: the drafter, n-grams where there are drafts and none, else nothing."""
        if self.drafter:
            return "drafter"
        return "ngram" if self.speculation.max_num_speculative_tokens else "none"

    @property
    def method(self) -> Method | None:
        """The kind of the drafter: ``peagle`` makes all drafts in one pass, ``eagle3`` each in one of its own."""
        if self.drafter is None:
            return None
        return "eagle3" if self.drafter.is_autoregressive else "peagle"

    def write(self, folder: Path) -> None:
        """Write ``engine.json`` so that a reader sees the old file or the new one, never a part."""
        content = dataclasses.asdict(self)
        content = {"format_version": content.pop("format_version"), **content}
        if not self.speculation.adapts:
            del content["speculation"]["adapts"]  # older versions know no such field
        if self.speculation.measured is None:
            del content["speculation"]["measured"]
        content["digest"] = _digest(content)
        temporary = folder / f".{FILE_NAME}.{os.getpid()}"
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(folder / FILE_NAME)

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of an engine folder. Raises ``EnvironmentProblem`` when it is absent, damaged or too new."""
        content = _load(folder)
        path = folder / FILE_NAME
        version = content.get("format_version")
        if type(version) is int and version > FORMAT_VERSION:
            raise EnvironmentProblem(
                f"{path} has engine format {version}, found a peagle-compile that reads format {FORMAT_VERSION}",
                why=f"the engine was built with peagle-compile {content.get('product_version', 'of a later version')}",
                fix=f"install that version ({upgrade()}), or {REBUILD}",
            )
        digest = content.pop("digest", None)
        problems: list[str] = []
        manifest = decode(cls, content, problems)
        if manifest is not None:
            problems = contradictions(manifest)
        if manifest is None or problems:
            raise EnvironmentProblem(f"{path} is not a valid manifest", why="; ".join(problems), fix=REBUILD)
        if digest != _digest(content):
            raise EnvironmentProblem(
                f"{path} was changed after the build", why="its content does not match its own digest", fix=REBUILD
            )
        return manifest


def is_engine(folder: Path) -> bool:
    """Whether the folder was published as an engine, be it valid or damaged."""
    return (folder / FILE_NAME).is_file()


def contradictions(manifest: Manifest) -> list[str]:
    """The faults of a manifest that is well typed but cannot be true."""
    problems = file_contradictions(manifest.files, manifest.parts.values())
    for name, part in manifest.parts.items():
        problems += part_contradictions(name, part, manifest.backend)
    problems += size_contradictions(manifest.shapes, manifest.speculation, drafter=manifest.drafter is not None)
    if not 1 <= manifest.format_version <= FORMAT_VERSION:
        problems.append(f"format_version {manifest.format_version} does not exist")
    elif manifest.format_version < format_of(manifest.drafter, manifest.speculation):
        lacks = _LACKS[_lacking(manifest)]
        problems.append(f"format_version {manifest.format_version} has no {lacks}")
    return problems


_LACKS = {
    1: "engines without a drafter",
    2: "drafts without a drafter",
    3: "drafter that makes a pass for every draft",
    4: "K that adapts",
    5: "rounds that the build measured",
}


def _lacking(manifest: Manifest) -> int:
    if manifest.speculation.measured and manifest.format_version == 5:
        return 5
    if manifest.speculation.adapts:
        return 4
    return 3 if manifest.drafter else manifest.format_version


def format_of(drafter: Part | None, speculation: Speculation) -> int:
    """The oldest format that can say it: older versions read what they can, and name the version that reads more."""
    if speculation.measured:
        return 6
    if speculation.adapts:
        return 5
    if drafter:
        return 4 if drafter.is_autoregressive else 1
    return 3 if speculation.max_num_speculative_tokens else 2


def _load(folder: Path) -> dict[str, Any]:
    path = folder / FILE_NAME
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise EnvironmentProblem(
            f"{folder} is not an engine folder",
            why=f"there is no {FILE_NAME} in it",
            fix="pass the folder that `peagle-compile build --out` made",
        ) from None
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot read {path}", why=str(error), fix="check the permissions of the file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise EnvironmentProblem(f"{path} is not JSON", why=str(error), fix=REBUILD) from None
    if not isinstance(content, dict):
        raise EnvironmentProblem(f"{path} is not a valid manifest", why="it must hold an object", fix=REBUILD)
    return content


def _digest(content: Mapping[str, Any]) -> str:
    """Hash of the meaning, not of the layout; an accident shows, but it is not a signature."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
