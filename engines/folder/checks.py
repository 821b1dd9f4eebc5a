"""Manifest checks: consistency of fields, files, GPUs and runtime versions."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Literal

from ...plugins.errors import EnvironmentProblem
from ...plugins.graph_contract import KEPT, cache_names, is_cache
from ...plugins.op_spec import FLOAT8
from .records import BackendRecord, FileEntry, MeasuredRounds, Part, PlanRecord, Shapes, Speculation

LARGE = 10**9  # bytes of an engine from which its weights are not hashed on load
WEIGHTS = ".onnx.data"
Check = Literal["auto", "hashes", "sizes"]

DRAFTERS = "drafters"  # the folder of added drafters, each in a folder of its name
# Follows the name of an added drafter in those of its files that lie beside the target's graph, whose weights its graph
# reads. No name of a drafter has a plus.
ADDED_SUFFIX = "+drafter"
_TARGET = "target"
REBUILD = "rebuild the engine with `peagle-compile build`"


def check_files(
    files: Mapping[str, FileEntry],
    folder: Path,
    *,
    hashes: bool = True,
    advance: Callable[[int], object] = lambda _: None,
) -> None:
    """Raise ``EnvironmentProblem`` if the files differ from the built ones; ``hashes=False`` compares only sizes.

    ``advance`` is called with the number of bytes read.
    """
    for name, entry in files.items():
        with _readable(folder / name) as path:
            is_file = path.is_file()
            size = path.stat().st_size if is_file else 0
        if not is_file:
            raise EnvironmentProblem(
                f"{path} is missing", why="the manifest lists this file", fix=_repair(name, folder)
            )
        if size != entry.size:
            raise EnvironmentProblem(
                f"{path} has {size} bytes, but the manifest records {entry.size}",
                why="the file was truncated or replaced",
                fix="copy the whole folder again, or " + _repair(name, folder),
            )
    for name, entry in files.items() if hashes else ():
        with _readable(folder / name) as path:
            found = FileEntry.of(path, advance).sha256
        if found != entry.sha256:
            raise EnvironmentProblem(
                f"{path} was changed after the build",
                why="the content does not match the hash in the manifest",
                fix="copy the whole folder again, or " + _repair(name, folder),
            )


def owner_of(file: str) -> str:
    """Return the name of the added drafter that a file of an engine belongs to; empty for all other files."""
    folder, _, rest = file.partition("/")
    if folder == DRAFTERS:
        return rest.partition("/")[0]
    name, beside, _ = rest.partition(ADDED_SUFFIX)
    return name if folder == _TARGET and beside else ""


def _repair(name: str, engine: Path) -> str:
    """Return the command that recreates a file of an engine; files of an added drafter do not need a build."""
    drafter = owner_of(name)
    if not drafter:
        return REBUILD
    return f"run `peagle-compile drafter remove {shlex.quote(str(engine))} {drafter}`, and add the drafter again"


def files_to_hash(files: Mapping[str, FileEntry], check: Check) -> dict[str, FileEntry]:
    """Return the files to hash on load.

    With ``"auto"``, weights of ONNX graphs are omitted if all files together are large: reading them takes much longer
    than loading, and damaged weights are read as numbers, never as code.
    """
    if check == "sizes":
        return {}
    if check == "hashes" or sum(entry.size for entry in files.values()) < LARGE:
        return dict(files)
    return {name: entry for name, entry in files.items() if not name.endswith(WEIGHTS)}


@contextmanager
def _readable(path: Path) -> Iterator[Path]:
    """Yield the path; convert file system errors to ``EnvironmentProblem``."""
    try:
        yield path
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot read {path}", why=error.strerror or str(error), fix="check the permissions, or " + REBUILD
        ) from error


def check_gpu(backend: BackendRecord, gpu: str | None) -> None:
    """Raise ``EnvironmentProblem`` for a ``gpu`` (``sm_120``, None if there is none) that the plans do not support.

    Engines without plans run anywhere.
    """
    gpus = backend.gpus
    if not gpus or gpu in gpus:
        return
    raise EnvironmentProblem(
        f"the engine was built for {' and '.join(gpus)} with {backend.name} {backend.versions.get(backend.name)}, "
        f"but this machine has {gpu or 'no NVIDIA GPU'}",
        why="a TensorRT plan contains machine code for specific GPUs",
        fix=f"run it on {' or '.join(gpus)}, or rebuild it "
        + (f"with `--gpu {gpu}`" if gpu else "with `--backend onnxruntime`, which runs on any CPU"),
    )


def check_runtime(backend: BackendRecord, installed: Mapping[str, str]) -> None:
    """Raise ``EnvironmentProblem`` for a runtime older than the graphs need; ``installed`` maps packages to versions.

    TensorRT reads only plans of its own version.
    """
    product = backend.name
    if backend.gpus and installed.get(product, "") != backend.versions.get(product, ""):
        raise EnvironmentProblem(
            f"the engine was built with {product} {backend.versions.get(product)}, "
            f"but {installed.get(product) or 'no version'} is installed",
            why="only the version that built a TensorRT plan can read the plan",
            fix=f"run `pip install '{product}=={backend.versions.get(product)}'`, or {REBUILD}",
        )
    for package, built in backend.versions.items():
        if package in installed and _release(installed[package]) < _release(built):
            raise EnvironmentProblem(
                f"the engine was built with {package} {built}, but {installed[package]} is installed",
                why="an older runtime may lack operators that the graphs use",
                fix=f"run `pip install --upgrade '{package}>={built}'`, or {REBUILD} in this environment",
            )


def file_contradictions(files: Mapping[str, FileEntry], parts: Iterable[Part]) -> list[str]:
    """Return problems of the file list: paths outside the folder, invalid sizes or hashes, and unlisted files."""
    problems = [f"{name!r} is not a path inside the folder" for name in files if not _is_inside(name)]
    problems += [
        f"files[{name!r}] has an invalid size or hash"
        for name, entry in files.items()
        if entry.size < 0 or not re.fullmatch(r"[0-9a-f]{64}", entry.sha256)
    ]
    return problems + [f"{part.file!r} is not listed in files" for part in parts if part.file not in files]


def size_contradictions(shapes: Shapes, speculation: Speculation, *, drafter: bool) -> list[str]:
    """Return problems of sizes: invalid ones, and caches that are too small.

    Without a ``drafter``, there are no auxiliary layers and no draft vocabulary, and possibly no drafts at all.
    """
    k, max_drafts = speculation.num_speculative_tokens, speculation.max_num_speculative_tokens
    problems = [
        f"shapes.{name} must be at least 1"
        for name in ("max_seq_len", "cache_length", "hidden_size", "vocab_size", *(["draft_vocab_size"] * drafter))
        if getattr(shapes, name) < 1
    ]
    if not 1 <= k <= max_drafts and (drafter or (k, max_drafts) != (0, 0)):
        problems.append("speculation.num_speculative_tokens must be between 1 and max_num_speculative_tokens")
    if (measured := speculation.measured) and not _can_be_rounds(measured, max_drafts):
        problems.append("speculation.measured needs at least 1 token and a cost above 0 for every K from 0 on")
    elif measured and not _can_be_batches(measured):
        problems.append("speculation.measured.batches needs 2 or more rows, ascending, with a cost above 0 for every K")
    if not drafter and (speculation.trained_depth, shapes.draft_vocab_size, shapes.taps) != (None, 0, ()):
        problems.append("without a drafter, trained_depth, draft_vocab_size and taps must be empty")
    if shapes.cache_length < min_cache_length(shapes.max_seq_len, max_drafts):
        problems.append("shapes.cache_length is too small for max_seq_len and two rounds of drafts")
    return problems


def _can_be_rounds(measured: MeasuredRounds, max_drafts: int) -> bool:
    """Return True if the measurements are plausible: tokens and costs of the same K, up to the maximum."""
    tokens, costs = measured.tokens, measured.costs
    is_complete = len(tokens) == len(costs) and 1 <= len(tokens) <= max_drafts + 1
    return (
        is_complete
        and all(1 <= each <= max_drafts + 1 for each in tokens)
        and all(0 < each < math.inf for each in costs)
    )


def _can_be_batches(measured: MeasuredRounds) -> bool:
    """Return True if costs of several rows are plausible: each number of rows once, and as many K as of one row."""
    rows = [each.rows for each in measured.batches]
    costs = [cost for each in measured.batches for cost in each.costs]
    is_complete = all(len(each.costs) == len(measured.costs) for each in measured.batches)
    ascending = all(less < more for less, more in pairwise([1, *rows]))
    return is_complete and ascending and all(0 < each < math.inf for each in costs)


def min_cache_length(max_seq_len: int, max_k: int) -> int:
    """Return the minimum cache length: room for two rounds of drafts, and for one column that no request owns."""
    return max_seq_len + 2 * max(max_k, 1)


def part_contradictions(name: str, part: Part, backend: BackendRecord) -> list[str]:
    """Return problems of one part: a plan without GPUs or vice versa, wrong tensors, invalid sizes."""
    plan = part.plan
    problems = [f"backend.gpus: {gpu!r} is not a GPU" for gpu in backend.gpus if not re.fullmatch(r"sm_\d{2,3}", gpu)]
    types = ("", FLOAT8) if plan else ("", *KEPT)
    if bad := {cache.dtype for cache in part.caches} - {*types}:
        problems.append(f"{name}.caches: {backend.name} does not support cache type {min(bad)!r}")
    if (plan is not None) != bool(backend.gpus):
        problems.append(f"{name}.plan and backend.gpus must be given together")
    if plan is None:
        return problems
    if {tensor.name for tensor in plan.tensors} != {*part.inputs, *part.outputs}:
        problems.append(f"{name}.plan.tensors do not match its inputs and outputs")
    problems += _cache_contradictions(name, part, plan)
    needed = {"positions": part.reads_positions, "aux_columns": part.is_autoregressive}
    for profile in plan.profiles:
        missing = [field for field, is_needed in needed.items() if is_needed and not getattr(profile, field)]
        for field in (*profile.wrong(), *missing):
            problems.append(f"{name}.plan: {field} of profile {profile.name!r} must be three ascending sizes")
    if not plan.profiles:
        problems.append(f"{name}.plan has no profiles")
    return problems


def _cache_contradictions(name: str, part: Part, plan: PlanRecord) -> list[str]:
    """Check that the plan's cache types match the part's: memory is allocated by the part and written by the plan."""
    of_plan = {tensor.name.removesuffix(".out"): tensor.dtype for tensor in plan.tensors if is_cache(tensor.name)}
    types = [cache.dtype for cache in part.caches]
    of_part = dict(zip(cache_names(len(types)), (*types, *types), strict=True))
    wrong = [cache for cache, dtype in of_plan.items() if (dtype == FLOAT8) != (of_part.get(cache) == FLOAT8)]
    return [f"{name}.plan and {name}.caches have different types for {cache}" for cache in wrong[:1]]


def _is_inside(name: str) -> bool:
    path = PurePosixPath(name)
    plain = str(path) == name and name != "." and "\\" not in name and ":" not in name and "\0" not in name
    return plain and not path.is_absolute() and ".." not in path.parts


def _release(version: str) -> tuple[int, ...]:
    """Return the version numbers that matter for compatibility: ``"1.31.1+cpu"`` is (1, 31)."""
    return tuple(int(number) for number in re.findall(r"\d{1,9}", version)[:2])
