"""Everything that is checked of one engine, and the file that keeps it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.folder.manifest import Manifest, is_engine
from ...engines.folder.records import FileEntry
from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.optional_packages import require
from ..bundled.prompts import Prompt, code_prompts
from ..console.half_made import half_made
from ..console.progress import Progress, Quiet
from ..precision.recipes import MULTIPLIED, first_words
from .engine_origin import is_reference, loses_without_running
from .losslessness import Losslessness, compare_on_and_off
from .measure_precision import MeasureRequest, measure
from .parity import Parity, compare_with_sources, gone
from .precision_cost import Precision, finite

if TYPE_CHECKING:
    from ...engines import Engine

FILE_NAME = "verify.json"
DEFAULT_K = (1, 3, 5, 8)
BATCH = 4
PARTS = ("losslessness", "parity", "precision")
_NO_DRAFTS = "the engine drafts nothing, it has no drafter: every text is plain decoding's"


@dataclass(frozen=True)
class Verification:
    """All that ``verify`` found out.

    ``losslessness`` is None where the engine cannot run, or drafts nothing: ``not_run`` says which. ``multiplied`` is
    what an engine says first of what its recipe multiplies. ``left_out`` are parts that were not asked for, ``to_come``
    those that were not reached.
    """

    engine: str
    product_version: str
    losslessness: Losslessness | None
    parity: tuple[Parity, ...] = field(default=())
    precision: Precision | None = None
    not_run: str = ""
    multiplied: str = ""
    left_out: tuple[str, ...] = ()
    to_come: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether something was checked and nothing failed; a check that could not be made does not fail.

        Nothing has passed while a part is still to come.
        """
        verdicts = [check.status for check in self.parity]
        verdicts += [self.precision.status] if self.precision else []
        checked = self.losslessness.passed if self.losslessness else "passed" in verdicts
        return checked and "failed" not in verdicts and not self.to_come

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``verify.json``."""
        lossless, precision = self.losslessness, self.precision
        first = {MULTIPLIED: self.multiplied} if self.multiplied else {}
        return finite(
            first
            | {
                "passed": self.passed,
                "engine": self.engine,
                "product_version": self.product_version,
                "parts": {name: self._state(name) for name in PARTS},
                "losslessness": lossless.as_json() if lossless else None,
                "not_run": self.not_run,
                "parity": [asdict(check) for check in self.parity],
                "precision": precision.as_json() if precision else None,
            }
        )

    def _state(self, part: str) -> str:
        if part in self.left_out:
            return "left out"
        return "not reached" if part in self.to_come else "done" if getattr(self, part) else "not run"


def verify_folder(
    folder: Path,
    manifest: Manifest,
    *,
    threads: int | None = None,
    prompts: Sequence[Prompt] | None = None,
    max_tokens: int = 128,
    k: Sequence[int] = DEFAULT_K,
    draft: str | None = None,
    batch: int | None = None,
    acceptance_tolerance: float = 0.0,
    request: MeasureRequest | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> Verification:
    """Check the engine in ``folder``, whose files were compared with ``manifest``; see ``verify``.

    ``batch`` None chooses: up to 4 prompts at once on a CPU, else one, for which every plan has room.

    Where it cannot run, its recipe is emulated. Raises ``EnvironmentProblem`` for one that cannot be emulated either,
    and for parts in ``only`` that lack what they need.
    """
    from ...engines import Engine

    require_parts(manifest, only)
    try:
        most = batch or (1 if manifest.backend.gpus else BATCH)
        try:
            engine = Engine.load(folder, max_batch_size=most, threads=threads, check="sizes")
        except EnvironmentProblem:
            if batch or most == 1:
                raise
            most = 1  # as where the caches of several do not fit
            engine = Engine.load(folder, threads=threads, check="sizes")
    except EnvironmentProblem as error:
        if only and "precision" not in only:
            raise
        _require_emulation(manifest, error)
        return verify_elsewhere(folder, manifest, error.what, request=request, progress=progress)
    return verify(
        engine,
        prompts=prompts,
        max_tokens=max_tokens,
        k=k,
        draft=draft,
        batch=most,
        acceptance_tolerance=acceptance_tolerance,
        request=request,
        only=only,
        progress=progress,
    )


def verify(
    engine: Engine,
    *,
    prompts: Sequence[Prompt] | None = None,
    max_tokens: int = 128,
    k: Sequence[int] = DEFAULT_K,
    draft: str | None = None,
    batch: int = 1,
    acceptance_tolerance: float = 0.0,
    request: MeasureRequest | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> Verification:
    """Check ``engine`` and write ``verify.json`` into its folder; a K that it has no room for is left out.

    ``draft`` is ``ngram`` for drafts looked up in the text in place of the drafter's; ``batch`` prompts at most are in
    flight at once, for which the engine was given room. With an ``acceptance_tolerance`` above 0 drafts are lossy, and
    what they change is counted. Of one without drafts the logits are checked, and what its precision costs. ``only``
    names the parts to check (all: none). The file is written after each, so that an interrupted run keeps those that
    were done.
    """
    progress, request = progress or Quiet(), request or MeasureRequest()
    prompts = code_prompts() if prompts is None else prompts
    most = engine.manifest.speculation.max_num_speculative_tokens
    depths = [i for i in k if i <= most] or [most]
    exact = is_reference(engine.manifest.precision) or not engine.manifest.backend.gpus
    drafts = engine.manifest.draft != "none"
    asked = [part for part in PARTS if not only or part in only]
    done = _begun(engine.folder, engine.manifest, asked)
    if "losslessness" in asked:
        if drafts:
            compared = compare_on_and_off(
                engine,
                prompts,
                max_tokens,
                depths,
                progress,
                exact=exact,
                draft=draft,
                batch=batch,
                acceptance_tolerance=acceptance_tolerance,
            )
            done = replace(done, losslessness=compared)
        else:
            done = replace(done, not_run=_NO_DRAFTS)
        done = _kept(engine.folder, _reached(done, "losslessness"))
    if "parity" in asked:
        parity = _unlike_torch(engine.manifest)
        parity = parity or compare_with_sources(engine, prompts, progress, request.passes(engine.manifest))
        done = _kept(engine.folder, _reached(replace(done, parity=parity), "parity"))
    if "precision" in asked:
        precision = measure(engine.folder, engine.manifest, engine, request, progress)
        done = _kept(engine.folder, _reached(replace(done, precision=precision), "precision"))
    return done


def require_parts(manifest: Manifest, only: Sequence[str]) -> None:
    """Raise for parts that were asked for by name and cannot be checked of this engine, or here.

    ``UsageError`` where it is the engine, ``EnvironmentProblem`` for checkpoints that are gone or were changed.
    """
    exact, kind = is_reference(manifest.precision), manifest.precision.get("recipe")
    never = {
        "losslessness": _NO_DRAFTS if manifest.draft == "none" else "",
        "parity": "" if exact else f"logits are those of torch in fp32 only, and the engine is in {kind}",
        "precision": "the engine is in fp32, which precisions are measured against" if exact else "",
    }
    for part in only:
        if part not in PARTS:
            fix = f"it is one of {', '.join(PARTS)}, or several with commas"
            raise UsageError(f"verify has no part {part!r}", fix=fix)
        if never[part]:
            others = [name for name, why in never.items() if not why]
            raise UsageError(f"--only {part} checks nothing: {never[part]}", fix=f"--only {','.join(others)}")
        if part == "losslessness":
            continue
        for half, origin in ((name, each.origin) for name, each in manifest.parts.items()):
            if why := gone(origin):
                raise EnvironmentProblem(
                    f"--only {part} needs the checkpoint of the {half}: {why}",
                    why=f"the engine was built from {origin.source}, and {part} compares it with that",
                    fix="put it back there; --only losslessness needs the engine alone",
                )


def _begun(folder: Path, manifest: Manifest, asked: Sequence[str]) -> Verification:
    """Of what was ``asked``, nothing is done yet."""
    left_out = tuple(part for part in PARTS if part not in asked)
    said, version = first_words(manifest.precision), manifest.product_version
    return Verification(str(folder), version, None, multiplied=said, left_out=left_out, to_come=tuple(asked))


def _reached(done: Verification, part: str) -> Verification:
    return replace(done, to_come=tuple(each for each in done.to_come if each != part))


def verify_elsewhere(
    folder: Path,
    manifest: Manifest,
    why: str,
    *,
    request: MeasureRequest | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check an engine that cannot run here (``why``): its recipe is emulated, and no more is checked."""
    precision = measure(folder, manifest, None, request or MeasureRequest(), progress or Quiet())
    begun = _begun(folder, manifest, ("precision",))
    return _kept(folder, _reached(replace(begun, precision=precision, not_run=why, left_out=()), "precision"))


def _require_emulation(manifest: Manifest, error: EnvironmentProblem) -> None:
    """Raise where nothing of an engine that cannot run here would show; ``error`` is why it cannot."""
    if not manifest.backend.gpus:
        raise error
    require("export", "verifying an engine that cannot run here")
    if not loses_without_running(manifest.precision):
        kind = manifest.precision.get("recipe")
        raise EnvironmentProblem(
            f"nothing of this engine can be checked here: {error.what}",
            why=f"a narrow type can be emulated on a CPU; {kind} would be computed in FP32 here, which rounds nothing",
            fix=error.fix,
        ) from None


def _unlike_torch(manifest: Manifest) -> tuple[Parity, ...]:
    """Skip the comparison with torch for an engine that rounds: what that costs is measured instead."""
    if is_reference(manifest.precision):
        return ()
    why = f"the engine is {manifest.precision.get('recipe')}, not fp32: what that costs is measured under precision"
    return tuple(Parity(f"{half} logits", "skipped", why) for half in manifest.parts)


def _kept(folder: Path, verification: Verification) -> Verification:
    """Write ``verify.json`` so that a reader sees the old file or the new one, and list it in the manifest.

    At no moment does the manifest list another content than is there: whoever loads the engine meanwhile can.
    """
    path = folder / FILE_NAME
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with half_made(temporary):
        temporary.write_text(json.dumps(verification.as_json(), indent=2, allow_nan=False) + "\n")
        _list(folder, None)
        temporary.replace(path)
    _list(folder, FileEntry.of(path))
    return verification


def _list(folder: Path, entry: FileEntry | None) -> None:
    """Let the manifest of an engine list its ``verify.json`` so, or not at all."""
    if not is_engine(folder):
        return
    manifest = Manifest.read(folder)
    files = {name: each for name, each in manifest.files.items() if name != FILE_NAME}
    files = dict(sorted((files | ({FILE_NAME: entry} if entry else {})).items()))
    if files != manifest.files:
        replace(manifest, files=files).write(folder)
