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
from ..draft_methods import PLAIN, DraftMethod, Passes, method_named, method_of_heads
from .checks import DRAFTERS, REBUILD, file_contradictions, owner_of, part_contradictions, size_contradictions
from .records import AddedDrafter, BackendRecord, Evidence, FileEntry, Part, Shapes, Speculation
from .strict_json import decode

FILE_NAME = "engine.json"
# The newest supported version; all older ones are supported too. Missing from format 1: engines without a drafter;
# 2: drafting without a drafter; 3: autoregressive drafters; 4: adaptive K; 5: rounds measured by the build;
# 6: the name of the draft method, which follows from the rest; 7: added drafters; 8: costs of rounds with several rows;
# 9: added drafters that read the target's file.
FORMAT_VERSION = 10
BUILT_FORMAT = 7  # of engines as builds write them if nothing needs a newer one; earlier versions can read it
_NAMES_METHOD = 7
_ADDS_DRAFTERS = 8
_HAS_BATCHES = 9
_SHARES = 10
BUILT_IN = "built-in"  # the name of the drafter that an engine was built with
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_HEADLESS_BEFORE = "ngram"  # the only draft method without a head up to format 6


@dataclass(frozen=True)
class Manifest:
    """The content of ``engine.json``.

    ``files`` lists every other file by its posix path, including ``verify.json`` once written. ``method`` is the name
    of the draft method; it is derived if an older format lacks it. An engine has a ``drafter`` if its method needs a
    head. ``drafters`` were added after the build, and are chosen by name (``using``).
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
    method: str = ""
    drafters: Mapping[str, AddedDrafter] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.method:
            object.__setattr__(self, "method", _method_of_older(self.drafter, self.speculation))

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
    def most_drafts(self) -> int:
        """The maximum number of drafts per round, of any of its drafters."""
        most = self.speculation.max_num_speculative_tokens
        return max(most, (self.shapes.cache_length - self.shapes.max_seq_len) // 2) if self.drafters else most

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
        if self.format_version < _NAMES_METHOD:
            del content["method"]
        if not self.speculation.adapts:
            del content["speculation"]["adapts"]  # unknown to older versions
        if self.speculation.measured is None:
            del content["speculation"]["measured"]
        for each in (content, *content["drafters"].values()):
            measured = each["speculation"].get("measured")
            if measured and not measured["batches"]:
                del measured["batches"]
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

        Raises ``EnvironmentProblem`` if it is missing, damaged or too new.
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
        digest = content.pop("digest", None)
        problems: list[str] = []
        manifest = decode(cls, content, problems)
        if manifest is not None:
            method_named(manifest.method)
            problems = contradictions(manifest)
            if ("method" in content) != (manifest.format_version >= _NAMES_METHOD):
                problems.append(f"method requires format {_NAMES_METHOD} or newer")
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
    """Return the manifest in the oldest format that builds write and that has all of its content."""
    version = _ADDS_DRAFTERS if manifest.drafters else BUILT_FORMAT
    version = _HAS_BATCHES if _has_batches(manifest) else version
    return replace(manifest, format_version=_SHARES if _shares(manifest) else version)


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
    if not 1 <= manifest.format_version <= FORMAT_VERSION:
        problems.append(f"format_version {manifest.format_version} does not exist")
    elif manifest.format_version < _oldest_format(manifest.drafter, manifest.speculation):
        lacks = _LACKS[_lacking(manifest)]
        problems.append(f"format_version {manifest.format_version} does not support {lacks}")
    if _has_batches(manifest) and manifest.format_version < _HAS_BATCHES:
        problems.append(f"speculation.measured.batches requires format {_HAS_BATCHES} or newer")
    if _shares(manifest) and manifest.format_version < _SHARES:
        problems.append(f"drafters that read the target's file require format {_SHARES} or newer")
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


_LACKS = {
    1: "engines without a drafter",
    2: "drafting without a drafter",
    3: "autoregressive drafters",
    4: "adaptive K",
    5: "measured rounds",
}


def _lacking(manifest: Manifest) -> int:
    if manifest.speculation.measured and manifest.format_version == 5:
        return 5
    if manifest.speculation.adapts:
        return 4
    return 3 if manifest.drafter else manifest.format_version


def _oldest_format(drafter: Part | None, speculation: Speculation) -> int:
    """Return the oldest format that supports all of it, apart from the name of the method."""
    if speculation.measured:
        return 6
    if speculation.adapts:
        return 5
    if drafter:
        return 4 if drafter.is_autoregressive else 1
    return 3 if speculation.max_num_speculative_tokens else 2


def _method_of_older(drafter: Part | None, speculation: Speculation) -> str:
    """Return the method of an engine whose format does not name it: the head's, or by whether drafts are possible."""
    if drafter:
        return method_of_heads(Passes.ONE_PER_DRAFT if drafter.is_autoregressive else Passes.ONE).name
    return _HEADLESS_BEFORE if speculation.max_num_speculative_tokens else PLAIN.name


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
            why=f"the folder contains no {FILE_NAME}",
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
