"""Compare an engine with plain decoding up to a number of tokens, and record every finished comparison in a file."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ...engines.backends.onnxruntime.kernels import library_of
from ...engines.draft_options import drafting_methods
from ...engines.folder.manifest import Manifest
from ...plugins.errors import UsageError
from ..bundled.prompts import varied_prompts
from ..console.progress import Progress, Quiet
from ..console.progress_lines import Tokens
from ..hardware.machine import inspect_machine, processor_in_words, versions_in_words
from ..pipeline.reports.engine_contents import REPORT, REPORT_PAGE, VERIFY_REPORT
from ..precision.recipes import in_words
from .certificate import Certificate, ComparedEngine, ComparedOptions, ComparingMachine
from .losslessness import POLICIES, Losslessness, compare_on_and_off

if TYPE_CHECKING:
    from ...engines import Engine

DEFAULT_TOKENS = 100_000
REPORTS = (VERIFY_REPORT, REPORT, REPORT_PAGE)  # its text needs none of them
_MIN_PROMPTS = 10  # of a comparison, so that a record does not have a line for every few tokens


@dataclass(frozen=True)
class CertificateRequest:
    """The file of the record, the number of compared tokens that it shall reach, and the engine's number of threads."""

    path: Path
    tokens: int = DEFAULT_TOKENS
    threads: int | None = None


def certify(
    engine: Engine,
    request: CertificateRequest,
    max_tokens: int,
    depths: Sequence[int],
    progress: Progress,
    *,
    exact: bool = True,
    draft: str | None = None,
    batch: int = 1,
) -> Losslessness:
    """Compare speculation on and off until the record has ``request.tokens`` tokens; return all of it as one result.

    A record that exists is continued. Draft methods take turns, all that the engine has unless ``draft`` names one, and
    each turn has prompts and seeds of its own. The file is written after each comparison. ``depths``, ``exact`` and
    ``batch`` are those of ``compare_on_and_off``. Raises ``UsageError`` for a file that is no such record, or is the
    record of another engine, other options or another machine, and for one that changed meanwhile.
    """
    manifest, path = engine.manifest, request.path
    methods = (draft,) if draft else tuple(each.name for each in drafting_methods(manifest))
    options = ComparedOptions(
        drafts=methods,
        k=(0, *depths) if batch > 1 else tuple(depths),
        policies=tuple(POLICIES),
        batch=batch,
        max_tokens=max_tokens,
        threads=request.threads,
    )
    now = _now()
    machine = ComparingMachine(
        machine=processor_in_words(),
        gpus=tuple(gpu.in_words for gpu in inspect_machine().gpus) if manifest.backend.gpus else (),
        kernels=_kernels(engine.folder, manifest),
        versions=versions_in_words(),
    )
    command = _command(engine.folder, request, options, depths, draft)
    record = Certificate(_compared(engine.folder, manifest), options, machine, command, began=now, ended=now)
    written = Certificate.read(path) if path.exists() else None
    if written is not None:
        continued = written.continued_as(record, path)
        record = continued if written.tokens_compared < request.tokens else written  # as it is in the file
    count = max(_MIN_PROMPTS, batch * (batch + 1) // 2)
    longest = min(max_tokens, max(engine.max_seq_len // 2, 1))
    total_tokens = count * len(options.policies) * len(options.k) * longest  # tokens of a comparison
    missing = math.ceil((request.tokens - record.tokens_compared) / total_tokens) * total_tokens
    with progress.step("compare speculation on and off", Tokens(max(missing, 0))) as say:
        while record.tokens_compared < request.tokens:
            turn, at = divmod(len(record.comparisons), len(methods))
            compared = compare_on_and_off(
                engine,
                varied_prompts(turn * count, count),
                max_tokens,
                depths,
                Quiet(),
                exact=exact,
                draft=methods[at],
                batch=batch,
                first_seed=turn * count,
                on_compared=say,
            )
            record = record.with_comparison(compared, turn * count, _now())
            _require_unchanged(path, written)
            record.write(path)
            written = record
    return record.losslessness(path)


def _require_unchanged(path: Path, written: Certificate | None) -> None:
    """Raise ``UsageError`` if the file has another record than ``written``, which this run has read or written last."""
    if path.exists() and (written is None or Certificate.read(path).seal != written.seal):
        raise UsageError(
            f"{path} changed during the comparison",
            why="another run has written it, and its comparisons would be lost",
            fix="wait until no other run writes this file, then run the same command again to continue it",
        )


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _kernels(folder: Path, manifest: Manifest) -> str:
    """Return the instruction set that the engine's CPU kernels use here; empty without kernels."""
    from ...plugins.cpu.self_test import instructions_of  # slow

    library = library_of(folder, manifest)
    return instructions_of(library) if library else ""


def _compared(folder: Path, manifest: Manifest) -> ComparedEngine:
    files = sorted((name, entry.sha256) for name, entry in manifest.files.items() if name not in REPORTS)
    return ComparedEngine(
        name=folder.resolve().name,
        fingerprint=hashlib.sha256(repr(files).encode()).hexdigest(),
        product_version=manifest.product_version,
        backend=manifest.backend.name,
        lowering=manifest.backend.lowering,
        precision=in_words(manifest.precision),
        max_seq_len=manifest.shapes.max_seq_len,
        checkpoints={
            component: f"{part.origin.id} ({part.origin.revision})" for component, part in manifest.parts.items()
        },
    )


def _command(
    folder: Path, request: CertificateRequest, options: ComparedOptions, depths: Sequence[int], draft: str | None
) -> str:
    """Return the command line that makes or continues the record, with names in place of paths."""
    words: list[object] = ["peagle-compile", "verify", folder.resolve().name, "--only", "losslessness"]
    words += ["--certificate", request.path.name, "--tokens", request.tokens, "--max-tokens", options.max_tokens]
    words += ["--num-speculative-tokens", ",".join(map(str, depths)), "--batch-size", options.batch]
    words += ["--draft", draft] if draft else []
    words += ["--threads", request.threads] if request.threads is not None else []
    return shlex.join(map(str, words))
