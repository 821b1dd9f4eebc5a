"""Everything that is checked of one engine, and the file that keeps it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...engines.folder.manifest import Manifest, is_engine
from ...engines.folder.records import FileEntry
from ...plugins.errors import EnvironmentProblem, UsageError
from ..bundled.prompts import Prompt, code_prompts
from ..console.exit_cleanup import remove_on_exit
from ..console.progress import Progress, Quiet
from ..precision.recipes import MULTIPLIED, lead_sentence
from .engine_origin import is_reference
from .engine_text import TextCheck, compare_text
from .losslessness import Losslessness, compare_on_and_off
from .measure_precision import MeasureRequest, measure
from .parity import Parity, compare_with_sources, gone
from .precision_cost import Precision, finite
from .verdict import Status, worst

if TYPE_CHECKING:
    from ...engines import Engine

State = Status | Literal["lossy", "left out", "not reached", "not needed"]
FILE_NAME = "verify.json"
DEFAULT_K = (1, 3, 5, 8)
BATCH = 4
PARTS = ("losslessness", "text", "parity", "precision")
WITH_THE_PAIR = ("parity", "precision")  # what the checkpoints of every half are needed for
_JUDGED: dict[State, Status] = {
    "passed": "passed", "failed": "failed", "not checked": "not checked",
    "lossy": "passed", "not reached": "not checked",
}  # fmt: skip
_NO_DRAFTS = "the engine drafts nothing, it has no drafter: every text is plain decoding's"


@dataclass(frozen=True)
class Verification:
    """All that ``verify`` found out.

    ``checkpoints`` are the paths of what it was compared with, by half: those that the engine names.
    ``multiplied`` is what an engine says first of what its recipe multiplies. ``cannot`` says of parts why they could
    not be checked, ``not_needed`` of parts why such an engine does not have them. ``left_out`` are parts that were not
    asked for, ``to_come`` those that were not reached.
    """

    engine: str
    product_version: str
    losslessness: Losslessness | None = None
    text: tuple[TextCheck, ...] = ()
    parity: tuple[Parity, ...] = ()
    precision: Precision | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    multiplied: str = ""
    cannot: Mapping[str, str] = field(default_factory=dict)
    not_needed: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    to_come: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """What the parts come to that were asked for; drafts that were lossy are not judged, as was asked."""
        return worst(_JUDGED[state] for part in PARTS if (state := self.state(part)) in _JUDGED)

    @property
    def passed(self) -> bool:
        """Whether every part that was asked for was checked, and none failed."""
        return self.status == "passed"

    @property
    def not_checked(self) -> dict[str, str]:
        """The parts that could not be checked, each with the reason."""
        return {part: self._reason(part) for part in PARTS if self.state(part) == "not checked"}

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``verify.json``."""
        lossless, precision = self.losslessness, self.precision
        first = {MULTIPLIED: self.multiplied} if self.multiplied else {}
        return finite(
            first
            | {
                "passed": self.passed,
                "status": self.status,
                "engine": self.engine,
                "product_version": self.product_version,
                "checkpoints": dict(self.checkpoints),
                "parts": {name: self.state(name) for name in PARTS},
                "not_checked": self.not_checked,
                "not_needed": dict(self.not_needed),
                "losslessness": lossless.as_json() if lossless else None,
                "text": [asdict(check) for check in self.text],
                "parity": [asdict(check) for check in self.parity],
                "precision": precision.as_json() if precision else None,
            }
        )

    def state(self, part: str) -> State:
        """What became of a part."""
        if part in self.left_out:
            return "left out"
        if part in self.to_come:
            return "not reached"
        if part in self.not_needed:
            return "not needed"
        if part in self.cannot:
            return "not checked"
        if part == "losslessness" and self.losslessness:
            if not self.losslessness.passed:
                return "failed"
            return "lossy" if self.losslessness.is_lossy else "passed"
        if part == "precision":
            return self.precision.status if self.precision else "not checked"
        return worst(check.status for check in (self.text if part == "text" else self.parity))

    def _reason(self, part: str) -> str:
        if part in self.cannot:
            return self.cannot[part]
        if part == "precision" and self.precision:
            return self.precision.skipped or f"there are no limits for {self.precision.recipe}"
        checks = self.text if part == "text" else self.parity
        return "; ".join(dict.fromkeys(check.detail for check in checks if check.status == "not checked"))


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

    What needs no run is checked of an engine for a GPU that cannot run here, and its recipe is emulated. Raises
    ``EnvironmentProblem`` for any other that cannot run, and for parts in ``only`` that lack what they need.
    """
    from ...engines import Engine

    require_parts(manifest, only)
    prompts = code_prompts() if prompts is None else prompts
    if tuple(only) == ("text",):
        return verify_elsewhere(folder, manifest, "", prompts=prompts, only=only)
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
        if not manifest.backend.gpus or (only and not {"text", "precision"} & {*only}):
            raise
        return verify_elsewhere(
            folder, manifest, error.one_line, prompts=prompts, request=request, only=only, progress=progress
        )
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

    ``draft`` names a draft method in place of the engine's own; ``batch`` prompts at most are in
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
    done = _begun(engine.folder, engine.manifest, only)
    if "losslessness" in done.to_come:
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
        done = _kept(engine.folder, _reached(replace(done, losslessness=compared), "losslessness"))
    done = _with_text(engine.folder, engine.manifest, prompts, done)
    if "parity" in done.to_come:
        parity = compare_with_sources(engine, prompts, progress, request.passes(engine.manifest))
        done = _kept(engine.folder, _reached(replace(done, parity=parity), "parity"))
    if "precision" in done.to_come:
        precision = measure(engine.folder, engine.manifest, engine, request, progress)
        done = _kept(engine.folder, _reached(replace(done, precision=precision), "precision"))
    return done


def require_parts(manifest: Manifest, only: Sequence[str]) -> None:
    """Raise for parts that were asked for by name and cannot be checked of this engine, or here.

    ``UsageError`` where it is the engine, ``EnvironmentProblem`` for checkpoints that are gone or were changed.
    """
    never = _not_needed(manifest)
    for part in only:
        if part not in PARTS:
            fix = f"it is one of {', '.join(PARTS)}, or several with commas"
            raise UsageError(f"verify has no part {part!r}", fix=fix)
        if part in never:
            others = [name for name in PARTS if name not in never]
            raise UsageError(f"--only {part} checks nothing: {never[part]}", fix=f"--only {','.join(others)}")
        if part == "losslessness":
            continue
        needed = manifest.parts if part in WITH_THE_PAIR else {"target": manifest.target}
        for half, origin in ((name, each.origin) for name, each in needed.items()):
            if why := gone(origin):
                raise EnvironmentProblem(
                    f"--only {part} needs the checkpoint of the {half}: {why}",
                    why=f"the engine was built from {origin.source}, and {part} compares it with that",
                    fix="put it back there; --only losslessness needs the engine alone",
                )


def _not_needed(manifest: Manifest) -> dict[str, str]:
    """The parts that such an engine does not have, and why."""
    exact, kind = is_reference(manifest.precision), manifest.precision.get("recipe")
    rounds = f"logits are those of torch in fp32 only, and the engine is in {kind}: precision measures what that costs"
    never = {
        "losslessness": _NO_DRAFTS if not manifest.draft_method.drafts else "",
        "parity": "" if exact else rounds,
        "precision": "the engine is in fp32, which precisions are measured against" if exact else "",
    }
    return {part: why for part, why in never.items() if why}


def _begun(folder: Path, manifest: Manifest, only: Sequence[str]) -> Verification:
    """Of what was asked for, nothing is done yet."""
    left_out = tuple(part for part in PARTS if only and part not in only)
    not_needed = {part: why for part, why in _not_needed(manifest).items() if part not in left_out}
    to_come = tuple(part for part in PARTS if part not in (*left_out, *not_needed))
    return Verification(
        str(folder),
        manifest.product_version,
        checkpoints={half: part.origin.source for half, part in manifest.parts.items()},
        multiplied=lead_sentence(manifest.precision),
        not_needed=not_needed,
        left_out=left_out,
        to_come=to_come,
    )


def _with_text(folder: Path, manifest: Manifest, prompts: Sequence[Prompt], done: Verification) -> Verification:
    if "text" not in done.to_come:
        return done
    return _kept(folder, _reached(replace(done, text=compare_text(folder, manifest, prompts)), "text"))


def _reached(done: Verification, part: str) -> Verification:
    return replace(done, to_come=tuple(each for each in done.to_come if each != part))


def verify_elsewhere(
    folder: Path,
    manifest: Manifest,
    why: str,
    *,
    prompts: Sequence[Prompt] | None = None,
    request: MeasureRequest | None = None,
    only: Sequence[str] = (),
    progress: Progress | None = None,
) -> Verification:
    """Check an engine without running it, as where it cannot run (``why``): its text, and its recipe, emulated."""
    prompts = code_prompts() if prompts is None else prompts
    done = _begun(folder, manifest, only)
    runs = [part for part in done.to_come if part in ("losslessness", "parity")]
    cannot = dict.fromkeys(runs, f"the engine cannot run here: {why}")
    for part in cannot:
        done = _reached(done, part)
    done = _with_text(folder, manifest, prompts, replace(done, cannot=cannot))
    if "precision" in done.to_come:
        precision = measure(folder, manifest, None, request or MeasureRequest(), progress or Quiet())
        done = _reached(replace(done, precision=precision), "precision")
    return _kept(folder, done)


def _kept(folder: Path, verification: Verification) -> Verification:
    """Write ``verify.json`` so that a reader sees the old file or the new one, and list it in the manifest.

    At no moment does the manifest list another content than is there: whoever loads the engine meanwhile can.
    """
    path = folder / FILE_NAME
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with remove_on_exit(temporary):
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
