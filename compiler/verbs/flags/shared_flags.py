"""Flags and arguments that are spelt once for all verbs that have them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from ....engines.draft_methods import METHODS
from ....plugins.errors import UsageError

Force = Annotated[bool, typer.Option("--force", help="Make every step anew.")]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print the plan (weights, caches, nodes, memory, disk, time), and how it would end here; write nothing.",
    ),
]
IgnoreLimits = Annotated[
    bool, typer.Option("--ignore-limits", help="Begin though this machine has too little disk or memory for it.")
]
EngineFolder = Annotated[Path, typer.Argument(metavar="ENGINE", help="Engine folder made by `peagle-compile build`.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output, and nothing else.")]
_THREADS = "CPU threads. (default: one for each 4 MiB of weights, one per core at most)"
Threads = Annotated[int | None, typer.Option(min=1, help=_THREADS, show_default=False)]
Check = Annotated[
    Literal["hashes", "sizes"],
    typer.Option(help="Compare the files with the manifest by hash, or by size alone, which takes no time."),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress; warnings and errors are still told.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Say more about each step, on standard error.")]
Log = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Add everything that is done and told, with times and versions, to this file.",
        show_default=False,
    ),
]
MaxTokens = Annotated[int, typer.Option(help="Tokens to generate at most.")]
NumSpeculativeTokens = Annotated[
    str | None,
    typer.Option(
        metavar="K|auto",
        help="Tokens drafted per round: 0 is plain decoding, auto as many as pay. (default: the engine's)",
        show_default=False,
    ),
]
DraftAsked = Annotated[
    str | None,
    typer.Option(
        metavar="METHOD",
        help="Who drafts: "
        + ", ".join(f"{each.name} ({each.help})" for each in METHODS.values() if not each.needs_head)
        + ", or with such a head "
        + ", ".join(each.name for each in METHODS.values() if each.needs_head)
        + ". (default: the engine's own)",
        show_default=False,
    ),
]
Temperature = Annotated[float, typer.Option(help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Sample among the k likeliest tokens; 0 is all.")]
TopP = Annotated[float, typer.Option(help="Sample within this much probability.")]
MinP = Annotated[float, typer.Option(help="Leave out tokens below this share of the likeliest.")]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Same seed, same text, with speculation on or off. (default: drawn, see --stats)", show_default=False
    ),
]
Stop = Annotated[list[str] | None, typer.Option(help="Stop before this text; may be repeated.", show_default=False)]
AcceptanceTolerance = Annotated[
    float,
    typer.Option(
        help="Above 0 is lossy: accept drafts too whose probability is at least 1 minus this, of the likeliest token's."
    ),
]
StopTokenId = Annotated[list[int] | None, typer.Option(help="Stop at this token; may be repeated.", show_default=False)]
System = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="System message, for models whose template has one.", show_default=False),
]


def drafts_asked(text: str | None) -> int | Literal["auto"] | None:
    """What ``--num-speculative-tokens`` says. Raises ``UsageError`` for what is neither a number nor ``auto``."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        why, fix = "it is a number, or auto", "0 is plain decoding, and left out it is what the engine was built with"
        raise UsageError(f"--num-speculative-tokens {text} is no number", why=why, fix=fix) from None
