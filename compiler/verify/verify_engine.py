"""Everything that is checked of one engine, and the file that keeps it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.folder.manifest import Manifest
from ...plugins.errors import EnvironmentProblem
from ..bundled.prompts import Prompt, code_prompts
from ..console.half_made import half_made
from ..console.progress import Progress, Quiet
from .engine_origin import is_reference, loses_without_running
from .losslessness import Losslessness, compare_on_and_off
from .measure_precision import MeasureRequest, measure
from .parity import Parity, compare_with_sources
from .precision_cost import Precision, finite

if TYPE_CHECKING:
    from ...engines import Engine

FILE_NAME = "verify.json"
DEFAULT_K = (1, 3, 5, 8)
_NO_DRAFTER = "the engine has no drafter, so every text is plain decoding's"


@dataclass(frozen=True)
class Verification:
    """All that ``verify`` found out.

    ``losslessness`` is None where the engine cannot run, or has no drafter: ``not_run`` says which.
    """

    engine: str
    product_version: str
    losslessness: Losslessness | None
    parity: tuple[Parity, ...] = field(default=())
    precision: Precision | None = None
    not_run: str = ""

    @property
    def passed(self) -> bool:
        """Whether something was checked and nothing failed; a check that could not be made does not fail."""
        verdicts = [check.status for check in self.parity]
        verdicts += [self.precision.status] if self.precision else []
        checked = self.losslessness.passed if self.losslessness else "passed" in verdicts
        return checked and "failed" not in verdicts

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``verify.json``."""
        lossless, precision = self.losslessness, self.precision
        return finite(
            {
                "passed": self.passed,
                "engine": self.engine,
                "product_version": self.product_version,
                "losslessness": {"passed": lossless.passed, **asdict(lossless)} if lossless else None,
                "not_run": self.not_run,
                "parity": [asdict(check) for check in self.parity],
                "precision": precision.as_json() if precision else None,
            }
        )


def verify_folder(
    folder: Path,
    manifest: Manifest,
    *,
    threads: int | None = None,
    prompts: Sequence[Prompt] | None = None,
    max_tokens: int = 128,
    k: Sequence[int] = DEFAULT_K,
    request: MeasureRequest | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check the engine in ``folder``, whose files were compared with ``manifest``; see ``verify``.

    Where it cannot run, its recipe is emulated. Raises ``EnvironmentProblem`` for one that cannot be emulated either.
    """
    from ...engines import Engine

    try:
        engine = Engine.load(folder, threads=threads, check_hashes=False)
    except EnvironmentProblem as error:
        _require_emulation(manifest, error)
        return verify_elsewhere(folder, manifest, error.what, request=request, progress=progress)
    return verify(engine, prompts=prompts, max_tokens=max_tokens, k=k, request=request, progress=progress)


def verify(
    engine: Engine,
    *,
    prompts: Sequence[Prompt] | None = None,
    max_tokens: int = 128,
    k: Sequence[int] = DEFAULT_K,
    request: MeasureRequest | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check ``engine`` and write ``verify.json`` into its folder; a K that it has no room for is left out.

    Of one without a drafter the logits are checked, and what its precision costs.
    """
    progress = progress or Quiet()
    prompts = code_prompts() if prompts is None else prompts
    most = engine.manifest.speculation.max_num_speculative_tokens
    depths = [i for i in k if i <= most] or [most]
    exact = is_reference(engine.manifest.precision) or not engine.manifest.backend.gpus
    drafts = engine.manifest.drafter is not None
    losslessness = compare_on_and_off(engine, prompts, max_tokens, depths, progress, exact=exact) if drafts else None
    parity = _unlike_torch(engine.manifest) or compare_with_sources(engine, prompts, progress)
    precision = measure(engine.folder, engine.manifest, engine, request or MeasureRequest(), progress)
    why = "" if drafts else _NO_DRAFTER
    return _kept(
        engine.folder,
        Verification(str(engine.folder), engine.manifest.product_version, losslessness, parity, precision, why),
    )


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
    return _kept(folder, Verification(str(folder), manifest.product_version, None, precision=precision, not_run=why))


def _require_emulation(manifest: Manifest, error: EnvironmentProblem) -> None:
    """Raise where nothing of an engine that cannot run here would show; ``error`` is why it cannot."""
    if not manifest.backend.gpus:
        raise error
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
    """Write ``verify.json`` so that a reader sees the old file or the new one."""
    path = folder / FILE_NAME
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with half_made(temporary):
        temporary.write_text(json.dumps(verification.as_json(), indent=2, allow_nan=False) + "\n")
        temporary.replace(path)
    return verification
