"""Run every check of one engine and write the results to ``verify.json``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...engines.folder.checks import owner_of
from ...engines.folder.manifest import Manifest, is_engine
from ...engines.folder.records import FileEntry
from ...plugins.errors import EnvironmentProblem, UsageError
from ..bundled.prompts import Prompt, code_prompts
from ..console.progress import Progress, Quiet
from ..pipeline.reports.engine_contents import VERIFY_REPORT
from ..precision.recipes import MULTIPLIED, lead_sentence
from ..store.atomic_files import replacing, require_writable, writing
from ..store.locks import locked
from .certify import CertificateRequest, certify
from .engine_origin import is_reference
from .engine_text import TextCheck, compare_text
from .losslessness import Losslessness, compare_on_and_off
from .measure_precision import MeasureRequest, measure
from .parity import Parity, checkpoint_problem, compare_with_sources
from .precision_cost import Precision, finite
from .verdict import Status, combined_status

if TYPE_CHECKING:
    from ...engines import Engine

State = Status | Literal["lossy", "left out", "not reached", "not needed"]
FILE_NAME = VERIFY_REPORT
DEFAULT_K = (1, 3, 5, 8)
PARTS = ("losslessness", "text", "parity", "precision")
NEED_CHECKPOINTS = ("parity", "precision")  # these need the checkpoints of all components
_STATUS_OF: dict[State, Status] = {
    "passed": "passed", "failed": "failed", "not checked": "not checked",
    "lossy": "passed", "not reached": "not checked",
}  # fmt: skip
NO_DRAFTS = "the engine has no drafter and does not speculate, so its output always equals that of plain decoding"


@dataclass(frozen=True)
class Verification:
    """Results of ``verify``.

    ``checkpoints``: path of the reference checkpoint of each component, from the engine's manifest. ``multiplied``: the
    engine's note about matmuls that do not run in the type of its recipe. ``cannot``: parts that could not be checked,
    with the reason. ``not_needed``: parts that do not apply to this engine, with the reason. ``left_out``: parts that
    were not requested. ``remaining``: parts that have not run yet.
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
    remaining: tuple[str, ...] = ()

    @property
    def status(self) -> Status:
        """Combined verdict of the requested parts. Lossy drafts have no verdict of their own and count as passed."""
        return combined_status(_STATUS_OF[state] for part in PARTS if (state := self.state(part)) in _STATUS_OF)

    @property
    def passed(self) -> bool:
        """True if every requested part was checked and none failed."""
        return self.status == "passed"

    @property
    def not_checked(self) -> dict[str, str]:
        """Parts that could not be checked, with the reasons."""
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
        """Return the state of a part."""
        if part in self.left_out:
            return "left out"
        if part in self.remaining:
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
        return combined_status(check.status for check in (self.text if part == "text" else self.parity))

    def _reason(self, part: str) -> str:
        if part in self.cannot:
            return self.cannot[part]
        if part == "precision" and self.precision:
            return self.precision.skipped or f"no limits are defined for {self.precision.recipe}"
        checks = self.text if part == "text" else self.parity
        return "; ".join(dict.fromkeys(check.detail for check in checks if check.status == "not checked"))


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
    certificate: CertificateRequest | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check ``engine`` and write ``verify.json`` into its folder.

    ``k``: numbers of speculative tokens to compare. Values above the engine's maximum are skipped; if none is left, the
    maximum is used. ``draft``: a draft method to use instead of the engine's. ``batch``: largest number of concurrent
    prompts; the engine must have that many slots. An ``acceptance_tolerance`` above 0 makes drafts lossy: changed
    tokens are counted, without a verdict. ``only``: parts to check; all if empty. ``certificate``: compare on and off
    until this record is complete, on prompts of its own. The file is written after each part, so an interrupted run
    keeps the finished parts.
    """
    require_writable(engine.folder / FILE_NAME)
    progress, request = progress or Quiet(), request or MeasureRequest()
    prompts = code_prompts() if prompts is None else prompts
    max_k = engine.manifest.speculation.max_num_speculative_tokens
    depths = [i for i in dict.fromkeys(k) if i <= max_k] or [max_k]
    exact = is_reference(engine.manifest.precision) or not engine.manifest.backend.gpus
    done = _initial(engine.folder, engine.manifest, only)
    if "losslessness" in done.remaining:
        if certificate is None:
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
        else:
            compared = certify(engine, certificate, max_tokens, depths, progress, exact=exact, draft=draft, batch=batch)
        done = _save(
            engine.folder, engine.manifest, _finished(replace(done, losslessness=compared), "losslessness"), progress
        )
    done = _with_text(engine.folder, engine.manifest, prompts, done)
    if "parity" in done.remaining:
        parity = compare_with_sources(engine, prompts, progress, request.passes(engine.manifest))
        done = _save(engine.folder, engine.manifest, _finished(replace(done, parity=parity), "parity"), progress)
    if "precision" in done.remaining:
        precision = measure(engine.folder, engine.manifest, engine, request, progress)
        done = _save(
            engine.folder, engine.manifest, _finished(replace(done, precision=precision), "precision"), progress
        )
    return done


def require_parts(manifest: Manifest, only: Sequence[str]) -> None:
    """Raise if a part in ``only`` cannot be checked.

    ``UsageError`` if the part is unknown or does not apply to this engine, ``EnvironmentProblem`` if a checkpoint is
    missing or has changed.
    """
    inapplicable = _not_needed(manifest)
    for part in only:
        if part not in PARTS:
            fix = f"use one or more of {', '.join(PARTS)}, separated by commas"
            raise UsageError(f"--only {part!r} is not a check of verify", fix=fix)
        if part in inapplicable:
            others = [name for name in PARTS if name not in inapplicable]
            raise UsageError(
                f"--only {part} does not apply: {inapplicable[part]}", fix=f"use --only {','.join(others)}"
            )
        if part == "losslessness":
            continue
        needed = manifest.parts if part in NEED_CHECKPOINTS else {"target": manifest.target}
        for component, origin in ((name, each.origin) for name, each in needed.items()):
            if why := checkpoint_problem(origin):
                raise EnvironmentProblem(
                    f"--only {part} needs the checkpoint of the {component}, which cannot be used: {why}",
                    why=f"the engine was built from {origin.source}, and {part} compares the engine with this "
                    f"checkpoint",
                    fix="restore the checkpoint at that path, or use --only losslessness, which needs no checkpoint",
                )


def _not_needed(manifest: Manifest) -> dict[str, str]:
    """Return the parts that do not apply to this engine, with the reasons."""
    exact, kind = is_reference(manifest.precision), manifest.precision.get("recipe")
    lossy = (
        f"only fp32 engines match torch's logits, and the engine is in {kind}; the precision check measures this "
        "difference"
    )
    inapplicable = {
        "losslessness": NO_DRAFTS if not manifest.draft_method.drafts else "",
        "parity": "" if exact else lossy,
        "precision": "the engine is in fp32, the reference that precisions are compared with" if exact else "",
    }
    return {part: why for part, why in inapplicable.items() if why}


def _initial(folder: Path, manifest: Manifest, only: Sequence[str]) -> Verification:
    """Return a verification whose requested parts have not run yet."""
    left_out = tuple(part for part in PARTS if only and part not in only)
    not_needed = {part: why for part, why in _not_needed(manifest).items() if part not in left_out}
    remaining = tuple(part for part in PARTS if part not in (*left_out, *not_needed))
    return Verification(
        str(folder),
        manifest.product_version,
        checkpoints={component: part.origin.source for component, part in manifest.parts.items()},
        multiplied=lead_sentence(manifest.precision),
        not_needed=not_needed,
        left_out=left_out,
        remaining=remaining,
    )


def _with_text(folder: Path, manifest: Manifest, prompts: Sequence[Prompt], done: Verification) -> Verification:
    if "text" not in done.remaining:
        return done
    return _save(folder, manifest, _finished(replace(done, text=compare_text(folder, manifest, prompts)), "text"))


def _finished(done: Verification, part: str) -> Verification:
    return replace(done, remaining=tuple(each for each in done.remaining if each != part))


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
    """Check an engine that cannot run here for the reason ``why``: its text, and its recipe by emulation."""
    require_writable(folder / FILE_NAME)
    prompts = code_prompts() if prompts is None else prompts
    done = _initial(folder, manifest, only)
    runs = [part for part in done.remaining if part in ("losslessness", "parity")]
    cannot = dict.fromkeys(runs, f"the engine cannot run on this machine: {why}")
    for part in cannot:
        done = _finished(done, part)
    done = _with_text(folder, manifest, prompts, replace(done, cannot=cannot))
    if "precision" in done.remaining:
        precision = measure(folder, manifest, None, request or MeasureRequest(), progress or Quiet())
        done = _finished(replace(done, precision=precision), "precision")
    return _save(folder, manifest, done, progress)


def _save(
    folder: Path, checked: Manifest, verification: Verification, progress: Progress | None = None
) -> Verification:
    """Write ``verify.json`` atomically and list it in the manifest.

    Raises ``UsageError`` if the folder no longer has the files of ``checked``. The manifest drops its entry before the
    file changes, so the engine can be loaded at any moment. Waits for a drafter that is being added to the engine or
    removed from it, which changes the manifest too.
    """
    path = folder / FILE_NAME
    with writing(folder, 0), locked(Path(os.path.realpath(folder)), progress):
        _require_unchanged(folder, checked)
        with replacing(path) as temporary:
            temporary.write_text(json.dumps(verification.as_json(), indent=2, allow_nan=False) + "\n")
            _set_entry(folder, None)
        _set_entry(folder, FileEntry.of(path))
    return verification


def _require_unchanged(folder: Path, checked: Manifest) -> None:
    """Raise ``UsageError`` if the engine, or the drafter that was checked with it, was replaced during the checks."""
    if not is_engine(folder):
        return
    owners = ("", checked.drafter_name)
    used = {name: each for name, each in checked.files.items() if name != FILE_NAME and owner_of(name) in owners}
    if not used.items() <= Manifest.read(folder).files.items():
        raise UsageError(
            f"{folder} was changed while it was being verified",
            why=f"the results belong to files that no longer exist, so they are not in {FILE_NAME}",
            fix="run the same command again",
        )


def _set_entry(folder: Path, entry: FileEntry | None) -> None:
    """Set the entry of ``verify.json`` in the manifest, or remove it if ``entry`` is None."""
    if not is_engine(folder):
        return
    manifest = Manifest.read(folder)
    files = {name: each for name, each in manifest.files.items() if name != FILE_NAME}
    files = dict(sorted((files | ({FILE_NAME: entry} if entry else {})).items()))
    if files != manifest.files:
        replace(manifest, files=files).write(folder)
