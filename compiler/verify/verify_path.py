"""Verify the engine at a path: validate the options before reading anything, then run every part."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ...engines.draft_methods import METHODS
from ...engines.folder.checks import check_files
from ...engines.folder.manifest import Manifest
from ...engines.requests.arguments import integer, number
from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.number_formats import NUMBER_FORMATS
from ...plugins.optional_packages import require
from ..bundled.prompts import code_prompts
from ..console.progress import Progress, Quiet
from ..console.progress_lines import Bytes
from ..store.atomic_files import require_writable
from ..store.destination import require_name, require_outside_engines
from .certificate import Certificate
from .certify import DEFAULT_TOKENS, CertificateRequest
from .measure_precision import MeasureRequest, Reference
from .precision_limits import limits_of
from .verify_engine import DEFAULT_K, NEED_CHECKPOINTS, NO_DRAFTS, Verification, require_parts, verify, verify_elsewhere

if TYPE_CHECKING:
    from ...engines import Engine

_BATCH = 4  # on a CPU; every plan for a GPU has room for 1


@dataclass(frozen=True)
class VerifyOptions:
    """Options of ``verify``, named like its flags; ``peagle-compile verify --help`` describes them."""

    prompts: int = 24
    max_tokens: int = 128
    num_speculative_tokens: tuple[int, ...] = DEFAULT_K
    draft: str | None = None
    batch_size: int | None = None
    acceptance_tolerance: float = 0.0
    data: Path | None = None
    max_perplexity_increase: float | None = None
    bisect: bool = False
    reference: str | None = None
    only: tuple[str, ...] = ()
    certificate: Path | None = None
    tokens: int | None = None
    threads: int | None = None

    def check(self) -> None:
        """Raise ``UsageError`` for a value that is invalid for every engine."""
        for name in ("prompts", "max_tokens", "batch_size", "tokens", "threads"):
            if getattr(self, name) is not None:
                integer(f"--{name.replace('_', '-')}", getattr(self, name), 1)
        if not self.num_speculative_tokens or min(self.num_speculative_tokens) < 1:
            requested = ",".join(map(str, self.num_speculative_tokens))
            raise UsageError(
                f"--num-speculative-tokens {requested!r} is not a list of numbers of 1 or more",
                fix="use numbers such as 1,3,5,8",
            )
        number("--acceptance-tolerance", self.acceptance_tolerance, 0, 1)
        if self.max_perplexity_increase is not None:
            number("--max-perplexity-increase", self.max_perplexity_increase, 0)
        drafting = [each.name for each in METHODS.values() if each.drafts]
        if self.draft not in (None, *drafting):
            raise UsageError(
                f"--draft {self.draft} cannot be compared with plain decoding",
                why=f"the methods with drafts are {', '.join(drafting)}",
                fix="use --draft ngram, or omit --draft to use the engine's method",
            )
        self._check_certificate()

    def _check_certificate(self) -> None:
        if self.certificate is None:
            if self.tokens is not None:
                raise UsageError("--tokens needs --certificate FILE", fix="add --certificate FILE, or remove --tokens")
            return
        if self.acceptance_tolerance:
            raise UsageError(
                "--certificate and --acceptance-tolerance cannot be combined",
                why="a certificate records that no token differs, and lossy drafts change tokens",
                fix="omit one of them",
            )
        if self.only and "losslessness" not in self.only:
            raise UsageError(
                f"--certificate and --only {','.join(self.only)} cannot be combined",
                why="a certificate records the losslessness check",
                fix="use --only losslessness, or remove --certificate",
            )
        if not os.path.isdir(self.certificate.parent):
            raise UsageError(
                f"--certificate {self.certificate}: the folder {self.certificate.parent} does not exist",
                fix="create the folder first",
            )
        require_name(self.certificate, "--certificate")
        require_outside_engines(self.certificate, f"--certificate {self.certificate}")
        if os.path.exists(self.certificate):  # before minutes of other work
            Certificate.read(self.certificate)
        require_writable(self.certificate)

    def require_drafts(self, manifest: Manifest) -> None:
        """Raise ``UsageError`` for an option that has no effect on an engine without drafts."""
        options = {"--certificate": self.certificate, "--draft": self.draft}
        given = [flag for flag, value in options.items() if value is not None]
        if given and not manifest.draft_method.drafts:
            raise UsageError(
                f"{' and '.join(given)} cannot be used: {NO_DRAFTS}",
                fix=f"omit {' and '.join(given)}, or build the engine with a head or with --draft ngram",
            )

    def measures(self, manifest: Manifest) -> MeasureRequest:
        """Return the settings of the precision measurement. Raises ``UsageError`` for conflicting options."""
        recipe, caches = (manifest.precision.get(name, "") for name in ("recipe", "kv_cache"))
        limits, increase = None, self.max_perplexity_increase
        if recipe in NUMBER_FORMATS and increase is not None:
            limits = replace(limits_of(recipe, caches), perplexity_increase=increase / 100)
        request = MeasureRequest(self.data, self.bisect, limits, reference=cast("Reference | None", self.reference))
        request.check()
        return request


def verify_path(engine: Path, options: VerifyOptions, progress: Progress | None = None) -> Verification:
    """Compare the files of ``engine`` with its manifest, check every part, and write ``verify.json``.

    If a GPU engine cannot run on this machine, the parts that need no run are checked, and its recipe is emulated.
    Raises ``UsageError`` or ``EnvironmentProblem`` if verification cannot start. Failed checks do not raise; the
    ``Verification`` has them.
    """
    progress = progress or Quiet()
    options.check()
    manifest = Manifest.read(engine)
    # A GPU host may have neither the checkpoints nor the packages to read them; those parts are then not checked.
    if {*options.only} & {*NEED_CHECKPOINTS} or not (options.only or manifest.backend.gpus):
        require("export", "verifying")
    require_parts(manifest, options.only)
    options.require_drafts(manifest)
    request = options.measures(manifest)
    certificate = None
    if options.certificate is not None:
        require_name(engine.resolve().name, "the engine")  # the certificate has this name
        tokens = DEFAULT_TOKENS if options.tokens is None else options.tokens
        certificate = CertificateRequest(options.certificate, tokens, options.threads)
    with progress.step("check the files", Bytes(sum(entry.size for entry in manifest.files.values()))) as advance:
        check_files(manifest.files, engine, advance=advance)
    prompts = code_prompts(options.prompts)
    if options.only == ("text",):
        return verify_elsewhere(engine, manifest, "", prompts=prompts, only=options.only)
    try:
        loaded, slots = _loaded(engine, manifest, options)
    except EnvironmentProblem as error:
        if not manifest.backend.gpus or (options.only and not {"text", "precision"} & {*options.only}):
            raise
        return verify_elsewhere(
            engine, manifest, error.one_line, prompts=prompts, request=request, only=options.only, progress=progress
        )
    return verify(
        loaded,
        prompts=prompts,
        max_tokens=options.max_tokens,
        k=options.num_speculative_tokens,
        draft=options.draft,
        batch=slots,
        acceptance_tolerance=options.acceptance_tolerance,
        request=request,
        only=options.only,
        certificate=certificate,
        progress=progress,
    )


def _loaded(folder: Path, manifest: Manifest, options: VerifyOptions) -> tuple[Engine, int]:
    """Load the engine with slots for the largest batch, and return their number too."""
    from ...engines import Engine

    load = partial(Engine.load, folder, threads=options.threads, check="sizes", prefix_cache_bytes=0)
    slots = options.batch_size or (1 if manifest.backend.gpus else _BATCH)
    try:
        return load(max_batch_size=slots), slots
    except EnvironmentProblem:
        if options.batch_size or slots == 1:
            raise
        return load(max_batch_size=1), 1  # the KV caches of a batch may not fit
