"""``engine.json``: what an engine folder holds and how it was made. A folder without a valid one is not an engine.

Reading and checking happen before anything is deserialised; every refusal names the file and the cure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ...plugins.errors import EnvironmentProblem
from ...plugins.spec import FLOAT8
from .records import decode

FILE_NAME = "engine.json"
FORMAT_VERSION = 1
REBUILD = "build the engine again with `peagle-compile build`"


@dataclass(frozen=True)
class FileEntry:
    """Size and content hash of one file of the folder."""

    size: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> FileEntry:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(file.tell(), digest)


@dataclass(frozen=True)
class Origin:
    """The checkpoint one half was built from: the name it was asked for by, its content hash, where it was read."""

    id: str
    revision: str
    source: str
    architecture: str


@dataclass(frozen=True)
class Cache:
    """One key/value cache pair of a graph: [rows, heads, cache_length, head_dim], of the graph's type unless said."""

    heads: int
    head_dim: int
    dtype: str = ""


@dataclass(frozen=True)
class Profile:
    """Sizes that an optimisation profile of a TensorRT plan covers, each (least, usual, most).

    ``rows`` B, ``columns`` S of the window, ``emitted`` E = K + 1.
    """

    name: str
    rows: tuple[int, ...]
    columns: tuple[int, ...]
    emitted: tuple[int, ...]


@dataclass(frozen=True)
class Tensor:
    """An input or output of a TensorRT plan as its parser saw it; -1 is a size that a profile bounds."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """A TensorRT plan, as counted when it was built: profiles by index, layers by type, our plugins, its I/O."""

    profiles: tuple[Profile, ...]
    layers: Mapping[str, int]
    plugins: Mapping[str, int]
    tensors: tuple[Tensor, ...]


@dataclass(frozen=True)
class Part:
    """One compiled graph: its file (posix path inside the folder) and its I/O contract, by name and in order.

    ``plan`` is there when the file is a TensorRT plan.
    """

    origin: Origin
    file: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    caches: tuple[Cache, ...]
    plan: Plan | None = None


@dataclass(frozen=True)
class Backend:
    """What runs the graphs, the versions of everything that made them, and the GPUs (``sm_120``) that plans are for."""

    name: str
    lowering: str
    versions: Mapping[str, str]
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True)
class Speculation:
    """Drafts per round: the default, the most that the caches have room for, and the depth the head was trained to."""

    num_speculative_tokens: int
    max_num_speculative_tokens: int
    trained_depth: int | None


@dataclass(frozen=True)
class Shapes:
    """Sizes the runtime allocates by."""

    max_seq_len: int
    cache_length: int
    hidden_size: int
    vocab_size: int
    draft_vocab_size: int
    taps: tuple[int, ...]


@dataclass(frozen=True)
class Evidence:
    """One thing that was verified: the level (``body parity aot kernel engine b200``) and how."""

    level: str
    how: str


@dataclass(frozen=True)
class Manifest:
    """All of ``engine.json``. ``files`` lists every other file by its posix path, except ``verify.json`` and
    ``tune.json``, which their verbs write later."""

    product_version: str
    target: Part
    drafter: Part
    backend: Backend
    precision: Mapping[str, str]
    speculation: Speculation
    shapes: Shapes
    eos_token_ids: tuple[int, ...]
    files: Mapping[str, FileEntry]
    evidence: tuple[Evidence, ...] = ()
    format_version: int = FORMAT_VERSION

    def write(self, folder: Path) -> None:
        """Write ``engine.json`` so that a reader sees the old file or the new one, never a part."""
        content = dataclasses.asdict(self)
        content = {"format_version": content.pop("format_version"), **content}
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
                fix="install that version (`pip install --upgrade peagle-compile`), or " + REBUILD,
            )
        digest = content.pop("digest", None)
        problems: list[str] = []
        manifest = decode(cls, content, problems)
        if manifest is not None:
            problems = manifest._contradictions()
        if manifest is None or problems:
            raise EnvironmentProblem(f"{path} is not a valid manifest", why="; ".join(problems), fix=REBUILD)
        if digest != _digest(content):
            raise EnvironmentProblem(
                f"{path} was changed after the build", why="its content does not match its own digest", fix=REBUILD
            )
        return manifest

    def check(self, folder: Path, *, hashes: bool = True) -> None:
        """Refuse a folder whose files are not the ones that were built; ``hashes=False`` looks at sizes only."""
        for name, entry in self.files.items():
            path = folder / name
            if not path.is_file():
                raise EnvironmentProblem(f"{path} is missing", why="the manifest lists it", fix=REBUILD)
            size = path.stat().st_size
            if size != entry.size:
                raise EnvironmentProblem(
                    f"{path} has {size} bytes, built with {entry.size}",
                    why="the file was truncated or replaced",
                    fix="copy the whole folder again, or " + REBUILD,
                )
        for name, entry in self.files.items() if hashes else ():
            if FileEntry.of(folder / name).sha256 != entry.sha256:
                raise EnvironmentProblem(
                    f"{folder / name} is not the file that was built",
                    why="its content does not match the hash in the manifest",
                    fix="copy the whole folder again, or " + REBUILD,
                )

    def check_gpu(self, found: str | None) -> None:
        """Refuse a GPU that the plans hold no code for; ``found`` is one such as ``sm_120``, None where there is none.

        An engine without plans runs anywhere.
        """
        gpus, backend = self.backend.gpus, self.backend
        if not gpus or found in gpus:
            return
        raise EnvironmentProblem(
            f"the engine was built for {' and '.join(gpus)} with {backend.name} {backend.versions.get(backend.name)}, "
            f"found {found or 'no NVIDIA GPU'}",
            why="a TensorRT plan holds machine code, for the GPUs that it was built for",
            fix=f"run it on {' or '.join(gpus)}, or build again: "
            + (f"with `--gpu {found}`" if found else "`--backend onnxruntime` runs on any CPU"),
        )

    def check_runtime(self, found: Mapping[str, str]) -> None:
        """Refuse a runtime older than the one the graphs were made for; ``found`` maps package names to versions.

        TensorRT reads no plans but those of its own version.
        """
        product = self.backend.name
        if self.backend.gpus and found.get(product, "") != self.backend.versions.get(product, ""):
            raise EnvironmentProblem(
                f"the engine was built with {product} {self.backend.versions.get(product)}, "
                f"found {found.get(product) or 'none'}",
                why="a TensorRT plan is read by the version that made it, and by no other",
                fix=f"`pip install '{product}=={self.backend.versions.get(product)}'`, or {REBUILD}",
            )
        for package, built in self.backend.versions.items():
            if package in found and _release(found[package]) < _release(built):
                raise EnvironmentProblem(
                    f"the engine was built with {package} {built}, found {found[package]}",
                    why="an older runtime may lack operators that the graphs use",
                    fix=f"`pip install --upgrade '{package}>={built}'`, or {REBUILD} in this environment",
                )

    def _contradictions(self) -> list[str]:
        """What is well typed but cannot be true."""
        problems = [f"{name!r} is not a path inside the folder" for name in self.files if not _is_inside(name)]
        problems += [
            f"files[{name!r}] has an impossible size or hash"
            for name, entry in self.files.items()
            if entry.size < 0 or not re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
        ]
        problems += [
            f"{part.file!r} is not among the files"
            for part in (self.target, self.drafter)
            if part.file not in self.files
        ]
        problems += _plan_contradictions("target", self.target, self.backend)
        problems += _plan_contradictions("drafter", self.drafter, self.backend)
        shapes, speculation = self.shapes, self.speculation
        for name in ("max_seq_len", "cache_length", "hidden_size", "vocab_size", "draft_vocab_size"):
            if getattr(shapes, name) < 1:
                problems.append(f"shapes.{name} must be at least 1")
        if not 1 <= speculation.num_speculative_tokens <= speculation.max_num_speculative_tokens:
            problems.append("speculation.num_speculative_tokens must be between 1 and the maximum")
        if shapes.cache_length < shapes.max_seq_len + 2 * speculation.max_num_speculative_tokens:
            problems.append("shapes.cache_length has no room for max_seq_len and two rounds of drafts")
        if self.format_version != FORMAT_VERSION:
            problems.append(f"format_version {self.format_version} does not exist")
        return problems


def _plan_contradictions(name: str, part: Part, backend: Backend) -> list[str]:
    """Plans and GPUs come together, and a plan has the tensors of its part and sizes that can be."""
    plan = part.plan
    problems = [f"backend.gpus: {gpu!r} is no GPU" for gpu in backend.gpus if not re.fullmatch(r"sm_\d{2,3}", gpu)]
    if bad := {cache.dtype for cache in part.caches} - {"", FLOAT8}:
        problems.append(f"{name}.caches: {min(bad)!r} is no type of a cache")
    if (plan is not None) != bool(backend.gpus):
        problems.append(f"{name}.plan and backend.gpus must be there together")
    if plan is None:
        if any(cache.dtype for cache in part.caches):
            problems.append(f"{name}.caches: only a plan has caches in a type of their own")
        return problems
    if {tensor.name for tensor in plan.tensors} != {*part.inputs, *part.outputs}:
        problems.append(f"{name}.plan.tensors are not its inputs and outputs")
    problems += _cache_contradictions(name, part, plan)
    for profile in plan.profiles:
        for field in ("rows", "columns", "emitted"):
            sizes = getattr(profile, field)
            if len(sizes) != 3 or not 1 <= sizes[0] <= sizes[1] <= sizes[2]:
                problems.append(f"{name}.plan: {field} of the profile {profile.name!r} must be three sizes in order")
    if not plan.profiles:
        problems.append(f"{name}.plan has no profiles")
    return problems


def _cache_contradictions(name: str, part: Part, plan: Plan) -> list[str]:
    """Memory is given by what the part says of its caches, and written by what the plan was built with."""
    found = {tensor.name.removesuffix(".out"): tensor.dtype for tensor in plan.tensors if "_cache." in tensor.name}
    said = {f"{kind}_cache.{i}": cache.dtype for i, cache in enumerate(part.caches) for kind in "kv"}
    wrong = [cache for cache, dtype in found.items() if (dtype == FLOAT8) != (said.get(cache) == FLOAT8)]
    return [f"{name}.plan has {cache} in another type than {name}.caches" for cache in wrong[:1]]


def is_engine(folder: Path) -> bool:
    """Whether the folder was published as an engine, be it valid or damaged."""
    return (folder / FILE_NAME).is_file()


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


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    plain = str(path) == name and name != "." and "\\" not in name and ":" not in name and "\0" not in name
    return plain and not path.is_absolute() and ".." not in path.parts


def _release(version: str) -> tuple[int, ...]:
    """The leading numbers that matter for compatibility: ``"1.31.1+cpu"`` is (1, 31)."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
