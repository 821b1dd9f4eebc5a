"""``peagle-compile verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...engines.draft_methods import METHODS
from ..console.printing import columns, emit, interruptible
from .flags.help_text import CERTIFICATE, PRECISION
from .flags.shared_flags import EngineFolder, Json, Threads, numbers_of
from .flags.verbosity import Verbosity, with_verbosity


@interruptible(
    "verify.json in the engine folder contains the completed checks, and a certificate contains all finished "
    "comparisons"
)
@with_verbosity
def verify(
    engine: EngineFolder,
    verbosity: Verbosity,
    prompts: Annotated[int, typer.Option(min=1, help="Number of bundled prompts to use.")] = 24,
    max_tokens: Annotated[int, typer.Option(min=1, help="Number of tokens to generate for each prompt.")] = 128,
    num_speculative_tokens: Annotated[
        str,
        typer.Option(metavar="K,K,...", help="Numbers of drafts per round; each is compared with plain decoding."),
    ] = "1,3,5,8",
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD",
            help="Draft method: "
            + ", ".join(f"{each.name} ({each.help})" for each in METHODS.values() if each.drafts)
            + ". (default: the engine's)",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Largest batch to compare with single prompts. (default: 4 on a CPU, else 1)",
            show_default=False,
        ),
    ] = None,
    acceptance_tolerance: Annotated[
        float,
        typer.Option(
            help=(
                "If above 0, report the number of tokens that lossy acceptance changes and the gain in acceptance "
                "length, without a verdict."
            )
        ),
    ] = 0.0,
    data: Annotated[
        Path | None,
        typer.Option(
            help="JSON Lines file to measure precision on, with text, messages or input_ids on each line. (default: "
            "bundled held-out texts)",
            show_default=False,
            rich_help_panel=PRECISION,
        ),
    ] = None,
    max_perplexity_increase: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest accepted perplexity increase, in percent. (default: the limit of the precision)",
            show_default=False,
            rich_help_panel=PRECISION,
        ),
    ] = None,
    bisect: Annotated[
        bool,
        typer.Option(
            "--bisect",
            help="Rank layers by quantization cost and suggest layers to --exclude.",
            rich_help_panel=PRECISION,
        ),
    ] = False,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="streamed|pair",
            help="FP32 reference: streamed runs the target with one layer in memory at a time and compares only "
            "perplexity and logits; pair loads the whole pair. (default: streamed for GPU engines, else pair)",
            show_default=False,
            rich_help_panel=PRECISION,
        ),
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(
            metavar="PART,PART,...",
            help="Run only these checks: losslessness (needs no checkpoints), text, parity, precision. (default: all)",
            show_default=False,
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=(
                "Compare the draft methods of the engine with plain decoding, in turns with new prompts, until "
                "--tokens tokens have been compared, and record the result in this JSON file. With few tokens, not "
                "every method has a turn. After Ctrl-C, the same command continues from the finished comparisons."
            ),
            show_default=False,
            rich_help_panel=CERTIFICATE,
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of tokens to compare for the certificate. (default: 100000)",
            show_default=False,
            rich_help_panel=CERTIFICATE,
        ),
    ] = None,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Check that speculation does not change the output, and measure the accuracy cost of the precision.

    There are four checks. The losslessness check compares the output with speculation to the output without it, for
    greedy decoding and seeded sampling, and for single prompts and batches. The text check compares the tokenizer,
    token ids, chat template and end-of-text tokens with those of the checkpoint. The parity check compares the logits
    of an FP32 engine with those of torch. The precision check compares any other engine with the same pair (target and
    drafter) in FP32, by perplexity, logits, layers, greedy text and acceptance length. For a GPU engine, it compares
    only perplexity and logits, unless you pass --reference pair.

    All checks except losslessness need the checkpoints that the engine was built from. The exit code is 4 if a check
    fails, and 3 if a check cannot run; --only selects the checks to run. After each check, the command updates
    verify.json in the engine folder and the hash of verify.json in engine.json. --certificate writes a separate
    record, which contains its own hash.

    Example: peagle-compile verify demo-engine
    """
    depths = numbers_of("--num-speculative-tokens", num_speculative_tokens, "1,3,5,8", int)
    parts = tuple(part.strip() for part in only.split(",")) if only is not None else ()
    from ..verify.failures import require_passed
    from ..verify.printing import lines
    from ..verify.verify_path import VerifyOptions, verify_path

    options = VerifyOptions(
        prompts=prompts,
        max_tokens=max_tokens,
        num_speculative_tokens=depths,
        draft=draft,
        batch_size=batch_size,
        acceptance_tolerance=acceptance_tolerance,
        data=data,
        max_perplexity_increase=max_perplexity_increase,
        bisect=bisect,
        reference=reference,
        only=parts,
        certificate=certificate,
        tokens=tokens,
        threads=threads,
    )
    with verbosity.work() as progress:
        verification = verify_path(engine, options, progress)
    if as_json:
        emit(verification.as_json())
    else:
        print(columns(lines(verification)))
    require_passed(verification, engine)
