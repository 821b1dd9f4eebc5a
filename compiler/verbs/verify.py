"""``peagle-compile verify``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...plugins.errors import UsageError, VerificationError
from ..console import columns, emit, interruptible
from .common import EngineFolder, Json, Threads

if TYPE_CHECKING:
    from ..verify import Verification


@interruptible("nothing was written")
def verify(
    engine: EngineFolder,
    prompts: Annotated[int, typer.Option(min=1, help="How many of the bundled prompts.")] = 24,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens generated after each.")] = 128,
    num_speculative_tokens: Annotated[
        str, typer.Option(help="The values of K to compare with plain decoding.")
    ] = "1,3,5,8",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Prove that speculation changes no token, and that the graphs compute what torch computes.

    Greedy and seeded sampling, with speculation on and off; then logits against the checkpoints the engine was built
    from, where torch is installed and they still exist. Writes verify.json into the engine folder.

    Example: peagle-compile verify demo-engine
    """
    depths = _depths(num_speculative_tokens)
    from ...engines import Engine
    from ..progress import shown
    from ..prompt_set import code_prompts
    from ..verify import FILE_NAME
    from ..verify import verify as run_verify

    loaded = Engine.load(engine, threads=threads)
    with shown() as progress:
        found = run_verify(loaded, prompts=code_prompts(prompts), max_tokens=max_tokens, k=depths, progress=progress)
    if as_json:
        emit(found.as_json())
    else:
        print(_summary(found))
    if not found.passed:
        raise VerificationError(
            "the engine does not do what it promises",
            why="; ".join(_failures(found)),
            fix=f"{engine / FILE_NAME} has the details; a rebuild with `--lowering std` tells graph from kernel",
        )


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


def _failures(found: Verification) -> list[str]:
    lossless = found.losslessness
    reasons = [
        f"{check.name} differ by {check.largest_difference}" for check in found.parity if check.status == "failed"
    ]
    if not lossless.passed:
        reasons.insert(0, f"{lossless.tokens_differing} of {lossless.tokens_compared} tokens differ")
    return reasons


def _summary(found: Verification) -> str:
    lossless = found.losslessness
    rows = [
        ("compared", f"{lossless.prompts} prompts x {lossless.max_tokens} tokens, K = {lossless.k}"),
        ("policies", ", ".join(lossless.policies)),
        ("differing", f"{lossless.tokens_differing} of {lossless.tokens_compared} tokens"),
    ]
    rows += [(f"acceptance length, {name}", f"{length:.2f}") for name, length in lossless.acceptance_length.items()]
    rows += [
        (
            f"first difference, {d.policy}, K = {d.k}, {d.prompt}",
            f"position {d.position}: {d.plain} became {d.speculative}, logits {d.margin:.2e} apart",
        )
        for d in lossless.divergences[:10]
    ]
    for check in found.parity:
        number = "" if check.largest_difference is None else f" ({check.largest_difference:.1e} of the largest)"
        rows.append((check.name, f"{check.status}: {check.detail}{number}"))
    rows.append(("result", "passed" if found.passed else "FAILED"))
    return columns(rows)
