"""The manifest ``engine.json`` describes an engine folder and how it was built. Every engine needs a valid one.

It is read and checked before anything is deserialized. Every error names the file and a fix.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...plugins.errors import EnvironmentProblem
from ...plugins.optional_packages import upgrade
from ...plugins.problems import lack_of
from ..draft_methods import DraftMethod, Passes, method_named
from .checks import DRAFTERS, REBUILD, file_contradictions, owner_of, part_contradictions, size_contradictions
from .records import AddedDrafter, BackendRecord, Evidence, FileEntry, Part, Shapes, Speculation
from .strict_json import decode

FILE_NAME = "engine.json"
# The newest supported version. Missing from format 7: added drafters; 8: costs of rounds with several rows; 9: added
# drafters that read the target's file; 10: the GPU that a plan was tuned on.
FORMAT_VERSION = 11
BUILT_FORMAT = 7  # the oldest supported version, which builds write if nothing needs a newer one
_ADDS_DRAFTERS = 8
_HAS_BATCHES = 9
_SHARES = 10
_IS_TUNED = 11
BUILT_IN = "built-in"  # the name of the drafter that an engine was built with
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Manifest:
    """The content of ``engine.json``.

    ``files`` lists every other file by its posix path, including ``verify.json`` once written. ``method`` is the name
    of the draft method. An engine has a ``drafter`` if its method needs a head. ``drafters`` were added after the
    build, and are chosen by name (``using``).
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
    format_version: int
    method: str
    evidence: tuple[Evidence, ...] = ()
    drafters: Mapping[str, AddedDrafter] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, Part]:
        """The compiled graphs, by half."""
        return {"target": self.target} | ({"drafter": self.drafter} if self.drafter else {})

    @property
    def target_files(self) -> dict[str, FileEntry]:
        """The files of the target's graph and those next to it, without the files of added drafters."""
        folder = self.target.file.rpartition("/")[0]
        return {
            name: entry for name, entry in self.files.items() if name.startswith(f"{folder}/") and not owner_of(name)
        }

    @property
    def draft_method(self) -> DraftMethod:
        """The record of ``method``. Raises ``EnvironmentProblem`` if it is unknown."""
        return method_named(self.method)

    @property
    def max_drafts(self) -> int:
        """The maximum number of drafts per round, of any of its drafters."""
        max_drafts = self.speculation.max_num_speculative_tokens
        return (
            max(max_drafts, (self.shapes.cache_length - self.shapes.max_seq_len) // 2) if self.drafters else max_drafts
        )

    @property
    def drafter_name(self) -> str:
        """The name of its drafter: ``BUILT_IN``, or that of the added one that it uses; empty without a drafter."""
        return "" if self.drafter is None else owner_of(self.drafter.file) or BUILT_IN

    def using(self, drafter: str) -> Manifest:
        """Return the manifest of the engine as it runs with a drafter: ``BUILT_IN``, or the name of an added one.

        It lists only the files that such an engine reads.
        """
        own = {name: entry for name, entry in self.files.items() if not owner_of(name)}
        if drafter == BUILT_IN:
            return replace(self, files=own)
        added = self.drafters[drafter]
        its = {name: entry for name, entry in self.files.items() if owner_of(name) == drafter}
        return replace(
            self,
            drafter=added.part,
            method=added.method,
            precision={**self.precision, "drafter": added.precision},
            speculation=added.speculation,
            shapes=replace(self.shapes, draft_vocab_size=added.draft_vocab_size),
            files=own | its,
            evidence=(),
        )

    def write(self, folder: Path) -> None:
        """Write ``engine.json`` atomically."""
        content = dataclasses.asdict(self)
        content = {"format_version": content.pop("format_version"), **content}
        if not self.speculation.adapts:
            del content["speculation"]["adapts"]
        if self.speculation.measured is None:
            del content["speculation"]["measured"]
        for each in (content, *content["drafters"].values()):
            measured = each["speculation"].get("measured")
            if measured and not measured["batches"]:
                del measured["batches"]
        added = [each["part"] for each in content["drafters"].values()]
        for part in (content["target"], content["drafter"], *added):
            if part and part["plan"] and not part["plan"]["tuned_on"]:
                del part["plan"]["tuned_on"]
        if not self.drafters:
            del content["drafters"]
        content["digest"] = _digest(content)
        temporary = folder / f".{FILE_NAME}.{os.getpid()}"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(content, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(folder / FILE_NAME)
        except BaseException:  # a full disk, for one
            temporary.unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Return the manifest of an engine folder.

        Raises ``EnvironmentProblem`` if it is missing, damaged, or in an older or newer format.
        """
        content = _load(folder)
        path = folder / FILE_NAME
        version = content.get("format_version")
        if type(version) is int and version > FORMAT_VERSION:
            raise EnvironmentProblem(
                f"{path} has engine format {version}, but this version reads formats up to {FORMAT_VERSION}",
                why=f"the engine was built with peagle-compile {content.get('product_version', 'of a later version')}",
                fix=f"install that version ({upgrade()}), or {REBUILD}",
            )
        if type(version) is int and 1 <= version < BUILT_FORMAT:
            raise EnvironmentProblem(
                f"{path} has engine format {version}, but this version reads formats from {BUILT_FORMAT}",
                why="the engine was built with an earlier version of peagle-compile",
                fix=REBUILD,
            )
        digest = content.pop("digest", None)
        problems: list[str] = []
        manifest = decode(cls, content, problems)
        if manifest is not None:
            method_named(manifest.method)
            problems = contradictions(manifest)
        if manifest is None or problems:
            raise EnvironmentProblem(f"{path} is not a valid manifest", why="; ".join(problems), fix=REBUILD)
        if digest != _digest(content):
            raise EnvironmentProblem(
                f"{path} was changed after the build",
                why="the content does not match the digest in the manifest",
                fix=REBUILD,
            )
        return manifest


def in_oldest_format(manifest: Manifest) -> Manifest:
    """Return the manifest in the oldest supported format that has all of its content."""
    version = _ADDS_DRAFTERS if manifest.drafters else BUILT_FORMAT
    version = _HAS_BATCHES if _has_batches(manifest) else version
    version = _SHARES if _shares(manifest) else version
    return replace(manifest, format_version=_IS_TUNED if _is_tuned(manifest) else version)


def _is_tuned(manifest: Manifest) -> bool:
    """Return True if the GPU that a plan was tuned on is recorded."""
    parts = (*manifest.parts.values(), *(each.part for each in manifest.drafters.values()))
    return any(part.plan is not None and part.plan.tuned_on for part in parts)


def _shares(manifest: Manifest) -> bool:
    """Return True if an added drafter reads weights of the target's file."""
    return any(not each.part.file.startswith(f"{DRAFTERS}/") for each in manifest.drafters.values())


def _has_batches(manifest: Manifest) -> bool:
    speculations = (manifest.speculation, *(each.speculation for each in manifest.drafters.values()))
    return any(each.measured is not None and each.measured.batches for each in speculations)


def is_engine(folder: Path) -> bool:
    """Return True if the folder was published as an engine, valid or damaged."""
    return (folder / FILE_NAME).is_file()


def folder_of(drafter: str) -> str:
    """Return the folder of an added drafter, relative to its engine, with a slash at the end."""
    return f"{DRAFTERS}/{drafter}/"


def is_drafter_name(name: str) -> bool:
    """Return True if an added drafter can have this name, which is also that of its folder."""
    return _NAME.fullmatch(name) is not None and name != BUILT_IN


def contradictions(manifest: Manifest) -> list[str]:
    """Return the inconsistencies of a manifest whose types are valid."""
    problems = file_contradictions(manifest.files, manifest.parts.values())
    for name, part in manifest.parts.items():
        problems += part_contradictions(name, part, manifest.backend)
    problems += size_contradictions(manifest.shapes, manifest.speculation, drafter=manifest.drafter is not None)
    problems += _method_contradictions(manifest.draft_method, manifest.drafter, manifest.speculation)
    if not BUILT_FORMAT <= manifest.format_version <= FORMAT_VERSION:
        problems.append(f"format_version {manifest.format_version} does not exist")
    if _has_batches(manifest) and manifest.format_version < _HAS_BATCHES:
        problems.append(f"speculation.measured.batches requires format {_HAS_BATCHES} or newer")
    if _shares(manifest) and manifest.format_version < _SHARES:
        problems.append(f"drafters that read the target's file require format {_SHARES} or newer")
    if _is_tuned(manifest) and manifest.format_version < _IS_TUNED:
        problems.append(f"plan.tuned_on requires format {_IS_TUNED} or newer")
    return problems + _drafter_contradictions(manifest)


def _drafter_contradictions(manifest: Manifest) -> list[str]:
    """Return the inconsistencies of added drafters, each as part of the engine that uses it."""
    problems = []
    if manifest.drafters and manifest.format_version < _ADDS_DRAFTERS:
        problems.append(f"drafters require format {_ADDS_DRAFTERS} or newer")
    for name, added in manifest.drafters.items():
        if not is_drafter_name(name):
            problems.append(f"{name!r} is not the name of a drafter")
            continue
        found = contradictions(replace(manifest.using(name), drafters={}))
        if owner_of(added.part.file) != name:
            found.append(f"the graph is not in {folder_of(name)}")
        if not manifest.shapes.taps:
            found.append("the target has no taps")
        if added.speculation.max_num_speculative_tokens > manifest.speculation.max_num_speculative_tokens:
            found.append("the drafter drafts more tokens than the caches have room for")
        problems += [f"drafters[{name!r}]: {problem}" for problem in found]
    return problems


def _method_contradictions(method: DraftMethod, drafter: Part | None, speculation: Speculation) -> list[str]:
    """Return inconsistencies between the method and the graphs and sizes."""
    if method.needs_head != (drafter is not None):
        return [f"method {method.name} {'requires a drafter' if method.needs_head else 'must not have a drafter'}"]
    problems = []
    if drafter and (method.passes is Passes.ONE_PER_DRAFT) != drafter.is_autoregressive:
        problems.append(f"method {method.name} needs another kind of drafter")
    if not method.drafts and speculation.max_num_speculative_tokens:
        problems.append(f"method {method.name} does not draft, but speculation allows drafts")
    return problems


def _load(folder: Path) -> dict[str, Any]:
    path = folder / FILE_NAME
    try:
        content = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        raise EnvironmentProblem(
            f"{folder} is not an engine folder",
            why=lack_of(folder, FILE_NAME),
            fix="use the folder created by `peagle-compile build --out`",
        ) from None
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot read {path}", why=str(error), fix="check the permissions of the file"
        ) from None
    except (ValueError, RecursionError) as error:
        raise EnvironmentProblem(f"{path} is not valid JSON", why=str(error), fix=REBUILD) from None
    if not isinstance(content, dict):
        raise EnvironmentProblem(
            f"{path} is not a valid manifest", why="the file must contain a JSON object", fix=REBUILD
        )
    return content


def _digest(content: Mapping[str, Any]) -> str:
    """Return a hash of the content, independent of layout. It detects accidental changes; it is not a signature."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
