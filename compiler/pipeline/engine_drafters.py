"""Drafters of a finished engine: add one, list them, remove one. The target's files do not change."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from ...engines.draft_methods import METHODS, Passes, method_of_heads
from ...engines.folder.checks import ADDED_SUFFIX, DRAFTERS, check_files, owner_of
from ...engines.folder.manifest import (
    BUILT_IN,
    Manifest,
    folder_of,
    in_oldest_format,
    is_drafter_name,
)
from ...engines.folder.records import AddedDrafter, FileEntry, PlanRecord, Speculation
from ...graphs.drafters import TAPS, doubts_of_taps
from ...graphs.drafters.tensor_layout import EMBEDDING
from ...graphs.lowering import lowering_named
from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ...plugins.number_formats import format_of_type
from ...plugins.problems import counted
from ..checkpoints.checkpoint import CONFIG, Checkpoint, take_fingerprints
from ..checkpoints.head_weights import open_head
from ..checkpoints.json_files import read_json
from ..checkpoints.resolve_names import resolve_head
from ..checkpoints.target import Target
from ..checkpoints.target_and_drafter import ASSUMED_DEPTH, read_head
from ..console.exit_cleanup import defer_stops, remove_on_failure
from ..console.progress import Progress
from ..precision.decide_recipe import wide_of, with_drafter
from ..precision.precision_options import PrecisionOptions
from ..precision.recipes import Recipe
from ..request.build_platform import BuildPlatform, platform_of_engine
from ..request.request import HeadOptions, PlanOptions, SizeOptions
from ..request.resolved_config import FILE_NAME as RESOLVED
from ..store.atomic_files import flush, flush_tree, writing
from ..store.leftovers import clear_leftovers, remove, temporary_path
from ..store.locks import locked
from ..store.publish import Assembly, temporary_folder
from ..store.stage_origin import StageOrigin
from ..store.stages import Stage, StageStore
from .check_numbers import prompts_for, require_finite
from .component import drafter_component
from .engine_manifest import origin_of_head, part_of
from .graph_stages import SEMANTIC, Compiled, TargetsEmbedding, attach, beside_target, trace
from .plan_stages import PLAN, PlanSource, PlanStage, build_plan, profiles
from .shared_steps import PipelineRun, bytes_of, place_config

if TYPE_CHECKING:
    from ...graphs.drafters import DrafterSpec


@dataclass(frozen=True)
class DrafterRequest:
    """A drafter to add: the ``engine`` folder, and the head as ``--draft`` and its options name it.

    ``name`` is that of the drafter in the engine, by default the head's own. ``num_speculative_tokens`` is K; None
    adapts it, starting from the head's trained depth.
    """

    engine: Path
    draft: str
    name: str | None = None
    draft_revision: str | None = None
    head: HeadOptions = field(default=HeadOptions())
    num_speculative_tokens: int | None = None
    force: bool = False


@dataclass(frozen=True)
class EngineDrafter:
    """A drafter of an engine, with the size of its own files in bytes."""

    name: str
    record: AddedDrafter
    bytes: int
    warnings: tuple[str, ...] = ()
    seconds: float = 0.0


def add_drafter(
    request: DrafterRequest, progress: Progress | None = None, store: StageStore | None = None
) -> EngineDrafter:
    """Build the graph of a head for the target of ``request.engine``, or its plan, and add it to the engine.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``. The engine is unchanged until the drafter works.
    """
    started = time.perf_counter()
    SizeOptions(request.num_speculative_tokens).check(fix="omit the option to start from the head's trained depth")
    request.head.check()
    run = PipelineRun.begin(store or StageStore.default(force=request.force), progress)
    with run.phases("read", "read the engine and the head"):
        manifest = _extensible(request.engine)
        platform = platform_of_engine(manifest.backend) if manifest.backend.gpus else None
        model = manifest.target.origin.id
        own_name, found = resolve_head(model, request.draft, request.draft_revision, run.progress)
        name = _free_name(manifest, request, own_name)
        opened = open_head(found.path)
        checkpoint = replace(opened, config=request.head.over(opened.config))
        target = _target_of(request.engine)
        head = read_head(checkpoint, target.spec)
        _require_taps(manifest, request, head)
        speculation, warnings = _speculation(manifest, request, head)
        if checkpoint.config.get(TAPS) == opened.config.get(TAPS):  # not overridden
            warnings = (*warnings, *doubts_of_taps(opened.config, target.spec.num_layers))
        embedding = _embedding(manifest, request, name) if EMBEDDING in head.shared else None
    with run.phases("hash", "hash the checkpoints"):
        take_fingerprints([checkpoint], run.progress)
        missing = [each for each in head.shared if not (each == EMBEDDING and embedding)]
        if missing:
            target = _with_weights(manifest, missing, run.progress)
    lowering = lowering_named(manifest.backend.lowering)
    recipe = _recipe(manifest, head)
    component = drafter_component(
        checkpoint, head, target.with_taps(head.taps), recipe, lowering, shares=embedding is not None
    )
    stage_origin = StageOrigin("drafter add", model, request.draft, recipe.name, lowering.name)
    run = replace(run, store=replace(run.store, stage_origin=stage_origin))
    with run.phases("trace drafter"):
        traced = trace(run.store, component, recipe.dtype, run.progress)
    with run.phases("attach drafter"):
        compiled = attach(
            run.store, component, traced,
            lowering=lowering, cache_length=manifest.shapes.cache_length, progress=run.progress, embedding=embedding,
        )  # fmt: skip
    origin, folder = origin_of_head(request.draft, checkpoint), f"{DRAFTERS}/{name}"
    part = part_of("drafter", folder, origin, head.caches, compiled, recipe)
    stage, checks = compiled.attached, platform is None or platform.runs_here
    if platform:
        with run.phases("plan drafter"):
            plan = _plan(run, manifest, request, platform, compiled, speculation)
        part, stage = replace(part, file=f"{folder}/{PLAN}", plan=plan.facts.plan), plan.placed
        warnings = (*warnings, *plan.facts.warnings)
    if not checks:
        warnings = (*warnings, _unchecked(manifest))
    added = AddedDrafter(
        method=method_of_heads(Passes.ONE_PER_DRAFT if head.strategy == "autoregressive" else Passes.ONE).name,
        part=part,
        speculation=speculation,
        draft_vocab_size=head.draft_vocab_size,
        precision=recipe.drafter,
    )
    size = _publish(run, request, name, added, stage, checkpoint, manifest, checks=checks)
    return EngineDrafter(
        name, added, size, warnings=(*found.notes, *warnings), seconds=round(time.perf_counter() - started, 1)
    )


def list_drafters(engine: Path) -> list[EngineDrafter]:
    """Return the drafters of an engine: that of the build, if there is one, and then the added drafters, by name.

    Raises ``EnvironmentProblem`` for a folder that is not an engine.
    """
    manifest = Manifest.read(engine)
    built_in = []
    if manifest.drafter:
        record = AddedDrafter(
            manifest.method,
            manifest.drafter,
            manifest.speculation,
            manifest.shapes.draft_vocab_size,
            manifest.precision.get("drafter", ""),
        )
        size = sum(each.size for name, each in manifest.files.items() if name.startswith(manifest.drafter.file))
        built_in.append(EngineDrafter(BUILT_IN, record, size))
    return built_in + [
        EngineDrafter(name, record, sum(each.size for each in _files_of(manifest, name).values()))
        for name, record in sorted(manifest.drafters.items())
    ]


def remove_drafter(engine: Path, name: str, progress: Progress | None = None) -> EngineDrafter:
    """Remove an added drafter and its files from an engine, and return its description.

    A process that has loaded the drafter continues to use it. ``progress`` shows if another command uses the engine.
    Raises ``UsageError`` for a drafter that cannot be removed.
    """
    with writing(engine, 0), changing(engine, progress):
        manifest = Manifest.read(engine)
        removed = next((each for each in list_drafters(engine) if each.name == name), None)
        if removed is None or name == BUILT_IN:
            added = ", ".join(sorted(manifest.drafters)) or "none"
            raise UsageError(
                f"the drafter {name} of {engine} cannot be removed",
                why="the engine was built with this drafter"
                if removed
                else f"this drafter does not exist; the added drafters are: {added}",
                fix="pass the name of an added drafter",
            )
        drafters = {each: record for each, record in manifest.drafters.items() if each != name}
        files = {each: entry for each, entry in manifest.files.items() if each not in _files_of(manifest, name)}
        in_oldest_format(replace(manifest, drafters=drafters, files=files)).write(engine)
        folder = engine / folder_of(name)
        aside = temporary_path(engine / DRAFTERS)  # the next change removes it if this process is killed
        with suppress(FileNotFoundError):  # somebody else removed the files
            folder.rename(aside)  # at once, so that no half of it stays under its name
        remove(aside)
        _remove_beside(engine, name)
        _remove_if_empty(folder.parent)
    return removed


@contextmanager
def changing(engine: Path, progress: Progress | None = None) -> Iterator[None]:
    """Lock an engine and remove the leftovers of killed changes.

    Raises ``EnvironmentProblem`` if it is not an engine.
    """
    Manifest.read(engine)
    with locked(Path(os.path.realpath(engine)), progress):
        clear_leftovers(engine)
        listed = Manifest.read(engine).drafters
        for name in {owner_of(f"target/{path.name}") for path in _drafter_files(engine)} - {*listed, ""}:
            _remove_beside(engine, name)
        yield


def _extensible(engine: Path) -> Manifest:
    """Return the manifest of an engine that can have further drafters. Raises ``UsageError`` for another."""
    manifest = Manifest.read(engine)
    model = shlex.quote(manifest.target.origin.id)
    fix = f"build an engine with this head: `peagle-compile build --model {model} --draft HEAD`"
    if not manifest.shapes.taps:
        raise UsageError(
            f"no drafter can be added to {engine}",
            why="the engine was built without a head, so its target has no outputs that a drafter could read",
            fix=f"{fix}; any number of heads that read the same layers can be added to it",
        )
    return manifest


def _free_name(manifest: Manifest, request: DrafterRequest, own: str) -> str:
    """Return the name of the new drafter. Raises ``UsageError`` for one that is invalid or in use."""
    name = own if request.name is None else request.name
    if name in (BUILT_IN, *METHODS):
        raise UsageError(
            f"a drafter cannot be named {name}",
            why="the name is that of the built-in drafter or of a draft method, which --draft selects by name",
            fix="choose another name with --name",
        )
    if not isinstance(name, str) or not is_drafter_name(name):
        raise UsageError(
            f"a drafter cannot be named {name!a}",
            why="a name has 1 to 64 letters, digits, dots, dashes and underscores, and begins with a letter or digit",
            fix="choose another name with --name",
        )
    if name in manifest.drafters:
        raise UsageError(
            f"{request.engine} already has a drafter named {name}",
            why=f"this drafter was added from {manifest.drafters[name].part.origin.id}",
            fix="choose another name with --name, or first run "
            f"`peagle-compile drafter remove {shlex.quote(str(request.engine))} {name}`",
        )
    return name


def _target_of(engine: Path) -> Target:
    """Return the target as its configuration describes it, without weights."""
    config = read_json(engine / "target" / CONFIG, "every engine has this file")
    return Target.of(Checkpoint(engine / "target", config, {}, {}, "plain"))


def _require_taps(manifest: Manifest, request: DrafterRequest, head: DrafterSpec) -> None:
    """Raise ``UsageError`` for a head that reads other layers than those that the target's graph outputs."""
    taps = manifest.shapes.taps
    if head.taps == taps:
        return
    pair = f"--model {shlex.quote(manifest.target.origin.id)} --draft {shlex.quote(request.draft)}"
    raise UsageError(
        f"the head {request.draft} does not fit {request.engine}",
        why=f"the head reads the target's layers {_listed(head.taps)} (its taps), but the engine's target outputs "
        f"layers {_listed(taps)}, which were fixed when the engine was built",
        fix=f"build an engine with this head: `peagle-compile build {pair}`",
    )


def _listed(taps: tuple[int, ...]) -> str:
    return ", ".join(map(str, taps))


def _speculation(manifest: Manifest, request: DrafterRequest, head: DrafterSpec) -> tuple[Speculation, tuple[str, ...]]:
    """Return the number of drafts per round, within the room of the engine's caches, and warnings."""
    room, requested = manifest.speculation.max_num_speculative_tokens, request.num_speculative_tokens
    if requested is not None and not 1 <= requested <= room:
        raise UsageError(
            f"--num-speculative-tokens {requested} is not between 1 and {room}",
            why=f"the engine's caches have room for {counted(room, 'draft')} per round",
            fix="omit the option, or rebuild the engine with a larger --num-speculative-tokens",
        )
    depth, warnings = head.trained_depth or ASSUMED_DEPTH, []
    if head.trained_depth is None:
        warnings.append(f"the head does not state how many drafts it was trained for; assuming {ASSUMED_DEPTH}")
    if depth > room and requested is None:
        warnings.append(
            f"the head was trained for {counted(depth, 'draft')}, but the engine's caches have room for {room}"
        )
    max_drafts = min(max(depth, requested or 0), room)
    return Speculation(requested or max_drafts, max_drafts, head.trained_depth, adapts=requested is None), tuple(
        warnings
    )


def _embedding(manifest: Manifest, request: DrafterRequest, name: str) -> TargetsEmbedding | None:
    """Return the embedding in the target's file for a head without one; None if it cannot be read from there.

    Plans hold their weights, and engines of older versions lack the graph that says where the embedding is.
    """
    semantic = str(PurePosixPath(manifest.target.file).with_name(SEMANTIC))
    if manifest.backend.gpus or semantic not in manifest.files:
        return None
    entry = manifest.files[semantic]
    check_files({semantic: entry}, request.engine)
    return TargetsEmbedding.of(request.engine / semantic, entry.sha256, beside_target(name))


def _with_weights(manifest: Manifest, missing: Sequence[str], progress: Progress) -> Target:
    """Open the target's checkpoint, from which the head takes weights that it does not store.

    Raises ``EnvironmentProblem`` if it is missing or has changed.
    """
    origin = manifest.target.origin
    fix = f"restore {origin.source}, or use a head that stores these weights"
    why = f"the head takes {' and '.join(missing)} from the target"
    try:
        target = Target.open(Path(origin.source))
    except PeagleError as error:
        raise EnvironmentProblem(
            f"the checkpoint of the target cannot be opened: {error.what}", why=why, fix=fix
        ) from error
    take_fingerprints([target.checkpoint], progress)
    if target.checkpoint.fingerprint != origin.revision:
        raise EnvironmentProblem(f"{origin.source} was changed after the build", why=why, fix=fix)
    return target


def _recipe(manifest: Manifest, head: DrafterSpec) -> Recipe:
    """Return the engine's recipe with the types that a build would choose for this head."""
    lowering = lowering_named(manifest.backend.lowering)
    recipe = Recipe.recorded(manifest.precision, wide_of(None, lowering) or _wide_of_plan(manifest))
    return with_drafter(replace(recipe, drafter=recipe.wide), PrecisionOptions(), lowering, head)


def _wide_of_plan(manifest: Manifest) -> str:
    """Return the type of what is not quantized in the plans of an engine: that of the target's logits."""
    dtype = next(each.dtype for each in _plan_of_target(manifest).tensors if each.name == "logits")
    wide = format_of_type(dtype)
    if wide is None:
        raise ValueError(f"the logits of the target are {dtype}")
    return wide.name


def _plan_of_target(manifest: Manifest) -> PlanRecord:
    if manifest.target.plan is None:
        raise ValueError("the engine has plans, but none for its target")
    return manifest.target.plan


def _plan(
    run: PipelineRun,
    manifest: Manifest,
    request: DrafterRequest,
    platform: BuildPlatform,
    compiled: Compiled,
    speculation: Speculation,
) -> PlanStage:
    """Build the plan of a drafter as a build of the engine would, for all rows and drafts of the target's plan.

    The windows of a round have one width, so a drafter may get those of another one that drafts more.
    """
    source, config = PlanSource.of(compiled), read_json(request.engine / RESOLVED, "every engine has this file")
    room = replace(speculation, max_num_speculative_tokens=manifest.speculation.max_num_speculative_tokens)
    sizes = profiles(
        "drafter",
        max(each.rows[-1] for each in _plan_of_target(manifest).profiles),
        room,
        manifest.shapes.max_seq_len,
        is_autoregressive=source.is_autoregressive,
    )
    options = PlanOptions(optimization_level=config.get("optimization_level"), workspace_gb=config.get("workspace_gb"))
    options.check()
    return build_plan(run, "drafter", source, platform, options, sizes)


def _unchecked(manifest: Manifest) -> str:
    gpus = ", ".join(manifest.backend.gpus)
    return (
        f"the drafter's outputs were not checked, because this machine cannot run an engine for {gpus}; "
        "the results of requests that use the drafter show how many of its drafts are accepted"
    )


def _publish(
    run: PipelineRun,
    request: DrafterRequest,
    name: str,
    added: AddedDrafter,
    stage: Stage,
    checkpoint: Checkpoint,
    read: Manifest,
    *,
    checks: bool,
) -> int:
    """Place the drafter in the engine, try it if ``checks``, and list it in the manifest; return the bytes of its
    files.

    ``read`` is the manifest of the engine for which the drafter was made.
    """
    engine, folder = request.engine, request.engine / folder_of(name)
    size = sum(bytes_of({name: stage}).values())
    with writing(engine, size), changing(engine, run.progress), ExitStack() as stack:
        with temporary_folder(engine / DRAFTERS) as temporary, run.phases("assemble"):
            assembly = Assembly(temporary)
            assembly.place_stage(stage, added.part.file.rpartition("/")[0], run.progress)
            place_config(assembly, checkpoint, f"{DRAFTERS}/{name}")
            assembly.check(run.progress)
            manifest = _extensible(engine)  # another process may have changed it
            _require_same_target(engine, manifest, read)
            _free_name(manifest, replace(request, name=name), name)
            flush_tree(temporary)
            _require_place(engine, folder, assembly)
            others = [each for each in assembly.files if not each.startswith(folder_of(name))]
            stack.callback(_remove_if_empty, folder.parent)
            folder.parent.mkdir(exist_ok=True)
            remove(folder)  # of an addition that was killed before the manifest listed it
            keep = stack.enter_context(remove_on_failure(folder, *(engine / each for each in others)))
            (temporary / folder_of(name)).rename(folder)
            for each in others:
                (temporary / each).rename(engine / each)
            flush(folder.parent, *{(engine / each).parent for each in others}, engine)
        files = dict(sorted({**manifest.files, **assembly.files}.items()))
        manifest = in_oldest_format(replace(manifest, drafters={**manifest.drafters, name: added}, files=files))
        if checks:
            with run.phases("check numbers"):
                _require_numbers(manifest.using(name), request)
        with defer_stops():  # a stop in between would remove the files of a listed drafter
            manifest.write(engine)
            keep()
    return sum(entry.size for entry in assembly.files.values())


def _require_same_target(engine: Path, manifest: Manifest, read: Manifest) -> None:
    """Raise ``UsageError`` if the engine was replaced by one for which the drafter was not made."""

    def needed(of: Manifest) -> tuple[object, ...]:
        room = of.speculation.max_num_speculative_tokens
        return of.target, of.target_files, of.shapes, of.backend, of.precision, room

    if needed(manifest) != needed(read):
        raise UsageError(
            f"{engine} was changed while the drafter was being made",
            why="the drafter was made for a target that no longer exists; nothing was added",
            fix="run the same command again",
        )


def _require_place(engine: Path, folder: Path, assembly: Assembly) -> None:
    """Raise ``UsageError`` if anything but the leftovers of an addition has the place of a new drafter."""
    drafters = folder.parent
    if drafters.is_symlink() or (drafters.exists() and not drafters.is_dir()):
        kind = "a link" if drafters.is_symlink() else "a file"
        raise UsageError(
            f"no drafter can be added to {engine}",
            why=f"{drafters} is {kind}, but must be a folder inside the engine",
            fix=f"rename or remove {drafters}",
        )
    own_folders = {PurePosixPath(name).name for name in assembly.files if PurePosixPath(name).parts[0] == DRAFTERS}
    if folder.is_symlink() or (folder.exists() and not (folder.is_dir() and {*os.listdir(folder)} <= own_folders)):
        raise UsageError(
            f"the drafter {folder.name} cannot be added to {engine}",
            why=f"{folder} exists but is not a drafter of this engine; nothing in it was changed",
            fix="move it out of the engine, or choose another name with --name",
        )


def _require_numbers(manifest: Manifest, request: DrafterRequest) -> None:
    """Raise ``BuildError`` unless the engine can run with the drafter, and its drafts are computed from numbers."""
    from ...engines.backends.opening import open_backend
    from ...engines.engine import Engine
    from ...engines.text.tokenizer import Tokenizer

    folder = request.engine
    tokenizer = Tokenizer(folder, manifest.eos_token_ids, manifest.shapes.vocab_size)
    with Engine(folder, manifest, open_backend(folder, manifest, 1, None), tokenizer) as engine:
        k = manifest.speculation.max_num_speculative_tokens
        logits = engine.draft_logits(prompts_for(engine, 1)[0], k)
    require_finite("drafter", [logits], manifest, Path(request.draft))


def _files_of(manifest: Manifest, name: str) -> Mapping[str, FileEntry]:
    return {each: entry for each, entry in manifest.files.items() if owner_of(each) == name}


def _drafter_files(engine: Path, name: str = "*") -> list[Path]:
    """Return the files beside the target's graph of an added drafter, or of all."""
    return [*(engine / "target").glob(f"{name}{ADDED_SUFFIX}.*")]


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):  # it holds other drafters
        folder.rmdir()


def _remove_beside(engine: Path, name: str) -> None:
    for path in _drafter_files(engine, name):
        remove(path)
