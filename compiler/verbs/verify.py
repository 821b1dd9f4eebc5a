"""``peagle-compile verify``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from ...plugins.errors import EnvironmentProblem, UsageError, VerificationError
from ...plugins.optional_packages import require
from ..checkpoints.known_pairs import CHAIN, HEADS
from ..checkpoints.without_head import NGRAM
from ..console.printing import columns, emit, interruptible
from .flags.shared_flags import EngineFolder, Json, Threads
from .flags.speaks import Voice, speaks

if TYPE_CHECKING:
    from ...engines.folder.manifest import Manifest
    from ..verify import Verification
    from ..verify.measure_precision import MeasureRequest, Reference


@interruptible("verify.json in the engine folder holds the parts that were done")
@speaks
def verify(
    engine: EngineFolder,
    voice: Voice,
    prompts: Annotated[int, typer.Option(min=1, help="How many of the bundled prompts.")] = 24,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens generated after each.")] = 128,
    num_speculative_tokens: Annotated[
        str, typer.Option(metavar="K,K,...", help="Several, with commas: each K is compared with plain decoding.")
    ] = "1,3,5,8",
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="ngram",
            help="Look drafts up in the text. (default: the engine's, which peagle or eagle3 names)",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most prompts at once, against each alone. (default: 4 on a CPU, else 1)",
            show_default=False,
        ),
    ] = None,
    acceptance_tolerance: Annotated[
        float, typer.Option(help="Above 0: count what lossy drafts change, and what they gain, instead of judging.")
    ] = 0.0,
    data: Annotated[
        Path | None,
        typer.Option(
            help="JSON Lines to measure the precision on: text, messages or input_ids in each line. (default: bundled "
            "texts that nothing is calibrated with)",
            show_default=False,
        ),
    ] = None,
    max_perplexity_increase: Annotated[
        float | None,
        typer.Option(min=0, help="In percent. (default: the limit of the precision)", show_default=False),
    ] = None,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Find the layers that cost most, and what to leave wide with --exclude.")
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="streamed|pair",
            help="Compare with the target in FP32 layer by layer, one in memory at a time (logits alone), or with the "
            "whole pair. (default: streamed for engines that run on a GPU, else pair)",
            show_default=False,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PART,PART,...",
            help="Check these parts alone: losslessness (needs the engine alone), text, parity, precision. "
            "(default: all)",
            show_default=False,
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Prove that speculation changes no token, and measure what the precision costs.

    losslessness: greedy and seeded sampling, with speculation on and off, alone and among others. text: tokenizer,
    token ids, chat template and end-of-text tokens against the checkpoint. parity: logits against torch, for an FP32
    engine. precision: for every other one perplexity, logits, layers, greedy text and acceptance length against the
    same pair in FP32; on a GPU perplexity and logits alone, unless --reference pair.

    All but the first take the checkpoints that the engine was built from. A part that cannot be checked has not passed:
    the exit code is 3 then, unless --only leaves the part out, and 4 if a part failed. Writes verify.json into the
    engine's folder, after each part, and its hash into engine.json.

    Example: peagle-compile verify demo-engine
    """
    depths = _depths(num_speculative_tokens)
    from ...engines.requests.arguments import number

    tolerance = number("--acceptance-tolerance", acceptance_tolerance, 0, 1)
    if draft not in (None, NGRAM, CHAIN, *HEADS):
        raise UsageError(
            f"--draft {draft} cannot be compared with plain decoding", fix="`--draft ngram`, or leave it out"
        )
    parts = tuple(part.strip() for part in only.split(",")) if only is not None else ()
    from ...engines.folder.checks import check_files
    from ...engines.folder.manifest import Manifest
    from ..bundled.prompts import code_prompts
    from ..verify import FILE_NAME, WITH_THE_PAIR, require_parts, verify_folder
    from ..verify.printing import lines

    manifest = Manifest.read(engine)
    # The host of a GPU may have neither checkpoints nor what reads them: what they are for is not checked then.
    if {*parts} & {*WITH_THE_PAIR} or not (parts or manifest.backend.gpus):
        require("export", "verifying")
    require_parts(manifest, parts)
    request = _request(manifest, data, max_perplexity_increase, bisect, reference)
    request.check()
    with voice.work() as progress:
        with progress.step("check the files", sum(entry.size for entry in manifest.files.values())) as advance:
            check_files(manifest.files, engine, advance=advance)
        verification = verify_folder(
            engine,
            manifest,
            threads=threads,
            prompts=code_prompts(prompts),
            max_tokens=max_tokens,
            k=depths,
            draft=draft,
            batch=batch_size,
            acceptance_tolerance=tolerance,
            request=request,
            only=parts,
            progress=progress,
        )
    if as_json:
        emit(verification.as_json())
    else:
        print(columns(lines(verification)))
    if verification.status == "failed":
        raise VerificationError(
            "verification failed",
            why="; ".join(_failures(verification)),
            fix=_fix(verification, engine / FILE_NAME),
        )
    if not verification.passed:
        raise _not_checked(verification)


def _request(
    manifest: Manifest, data: Path | None, increase: float | None, bisect: bool, reference: str | None
) -> MeasureRequest:
    from ..verify.measure_precision import MeasureRequest
    from ..verify.precision_limits import LIMITS, limits_of

    recipe, caches = (manifest.precision.get(name, "") for name in ("recipe", "kv_cache"))
    limits = None
    if recipe in LIMITS and increase is not None:
        limits = replace(limits_of(recipe, caches), perplexity_increase=increase / 100)
    return MeasureRequest(data, bisect, limits, reference=cast("Reference | None", reference))


def _depths(text: str) -> list[int]:
    try:
        depths = [int(part) for part in text.split(",")]
    except ValueError:
        depths = [0]
    if min(depths) < 1:
        raise UsageError(
            f"--num-speculative-tokens {text!r} is not a list of numbers from 1", fix="for example 1,3,5,8"
        )
    return depths


def _failures(verification: Verification) -> list[str]:
    lossless, precision = verification.losslessness, verification.precision
    reasons = []
    if lossless is not None and not lossless.passed:
        differ = f"{lossless.tokens_differing} of {lossless.tokens_compared} tokens differ"
        if not lossless.finite:
            differ = "the target's logits are not numbers: its weights overflow in this precision"
        reasons.append(differ if lossless.tokens_compared else "no token was compared")
    reasons += [f"{check.name}: {check.detail}" for check in verification.text if check.status == "failed"]
    reasons += [
        f"{check.name} differ by {check.largest_difference}"
        for check in verification.parity
        if check.status == "failed"
    ]
    if precision is not None:
        reasons += precision.failures()
    return reasons + [f"{part} was not checked: {why}" for part, why in verification.not_checked.items()]


def _not_checked(verification: Verification) -> EnvironmentProblem:
    """Say what could not be checked, and how to ask for the rest alone."""
    from ..verify import PARTS

    parts = verification.not_checked
    rest = [part for part in PARTS if verification.state(part) in ("passed", "lossy")]
    alone = f"; `--only {','.join(rest)}` checks the rest alone" if rest else ""
    return EnvironmentProblem(
        f"not checked: {', '.join(parts)}",
        why="; ".join(f"{part}: {why}" for part, why in parts.items()),
        fix=f"put the checkpoints back where the engine was built from, and verify where the engine runs{alone}",
    )


def _fix(verification: Verification, path: Path) -> str:
    precision = verification.precision
    if verification.state("text") == "failed":
        return f"build again from the checkpoint, if that is the one you trust; {path} has the details"
    if precision is None or precision.status != "failed":
        return f"{path} has the details; a rebuild with `--lowering std` tells graph from kernel"
    if precision.bisection is None:
        return f"`verify --bisect` finds the layers that cost most and what to --exclude; {path} has the details"
    return f"build again with what the bisection excludes, or in another precision; {path} has the details"
