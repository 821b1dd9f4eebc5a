"""``peagle-compile verify``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...engines.draft_methods import METHODS
from ...plugins.errors import UsageError
from ..console.printing import columns, emit, interruptible
from .flags.shared_flags import EngineFolder, Json, Threads
from .flags.speaks import Voice, speaks


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
            metavar="METHOD",
            help=f"Who drafts: {', '.join(each.name for each in METHODS.values() if each.drafts)}. "
            "(default: the engine's own)",
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
        threads=threads,
    )
    with voice.work() as progress:
        verification = verify_path(engine, options, progress)
    if as_json:
        emit(verification.as_json())
    else:
        print(columns(lines(verification)))
    require_passed(verification, engine)


def _depths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"--num-speculative-tokens {text!r} is not a list of numbers from 1", fix="for example 1,3,5,8"
        ) from None
