"""Flags and arguments shared by several verbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import typer

from ....engines.draft_methods import METHODS
from ....plugins.errors import UsageError
from .help_text import DRAFT, RUN, SAMPLING

Number = TypeVar("Number", int, float)

Force = Annotated[
    bool, typer.Option("--force", help="Run every step again instead of reusing cached results.", rich_help_panel=RUN)
]
DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run",
        help="Print estimates (weights, caches, nodes, memory, disk, time) and the expected outcome on this machine; "
        "write nothing.",
    ),
]
IgnoreLimits = Annotated[
    bool,
    typer.Option(
        "--ignore-limits", help="Start even if this machine has too little disk space or memory.", rich_help_panel=RUN
    ),
]
EngineFolder = Annotated[Path, typer.Argument(metavar="ENGINE", help="Engine folder made by `peagle-compile build`.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print only the result, as JSON, on standard output.", rich_help_panel=RUN)
]
_THREADS = "CPU threads. (default: one per 4 MiB of weights, at most one per physical core)"
Threads = Annotated[int | None, typer.Option(min=1, help=_THREADS, show_default=False, rich_help_panel=RUN)]
Check = Annotated[
    Literal["auto", "hashes", "sizes"],
    typer.Option(
        help=(
            "Check of the engine's files against the manifest: hashes compares all hashes; sizes compares only "
            "sizes, which is faster; auto compares hashes, except that for an engine of 1 GB or more, it compares "
            "only the sizes of the weights."
        ),
        rich_help_panel=RUN,
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Hide progress; show only warnings and errors.", rich_help_panel=RUN)
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print details of each step on standard error.", rich_help_panel=RUN)
]
Log = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Append a detailed log, with times and versions, to this file.",
        show_default=False,
        rich_help_panel=RUN,
    ),
]
MaxTokens = Annotated[int, typer.Option(help="Maximum number of tokens to generate.")]
NumSpeculativeTokens = Annotated[
    str | None,
    typer.Option(
        metavar="K|auto",
        help="Tokens drafted per round. 0 disables speculation; auto adapts the number while decoding. (default: the "
        "engine's)",
        show_default=False,
        rich_help_panel=DRAFT,
    ),
]
NumDrafts = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Drafter of the engine, by its name in `drafter list`; or a draft method: "
        + ", ".join(f"{each.name} ({each.help})" for each in METHODS.values() if not each.needs_head)
        + "; or, if the engine has the head, "
        + ", ".join(f"{each.name} ({each.help})" for each in METHODS.values() if each.needs_head)
        + ". (default: the engine's)",
        show_default=False,
        rich_help_panel=DRAFT,
    ),
]
Temperature = Annotated[float, typer.Option(help="Sampling temperature; 0 is greedy.", rich_help_panel=SAMPLING)]
TopK = Annotated[int, typer.Option(help="Sample from the k most likely tokens; 0 keeps all.", rich_help_panel=SAMPLING)]
TopP = Annotated[
    float,
    typer.Option(
        help="Sample from the most likely tokens whose probabilities sum to this value.", rich_help_panel=SAMPLING
    ),
]
MinP = Annotated[
    float,
    typer.Option(
        help="Drop tokens less likely than this fraction of the most likely token's probability.",
        rich_help_panel=SAMPLING,
    ),
]
Seed = Annotated[
    int | None,
    typer.Option(
        help="Random seed. The same seed gives the same text with and without drafts, except at near-ties on "
        "TensorRT. (default: random)",
        show_default=False,
        rich_help_panel=SAMPLING,
    ),
]
Stop = Annotated[
    list[str] | None,
    typer.Option(help="Stop before this text. Can be repeated.", show_default=False, rich_help_panel=SAMPLING),
]
AcceptanceTolerance = Annotated[
    float,
    typer.Option(
        help="If above 0, decoding is lossy: a draft is also accepted if its probability is at least (1 - tolerance) "
        "times that of the most likely token.",
        rich_help_panel=DRAFT,
    ),
]
StopTokenId = Annotated[
    list[int] | None,
    typer.Option(help="Stop at this token id. Can be repeated.", show_default=False, rich_help_panel=SAMPLING),
]
System = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="System message, if the model's chat template takes one.", show_default=False),
]


def requested_drafts(text: str | None) -> int | Literal["auto"] | None:
    """Parse ``--num-speculative-tokens``. Raises ``UsageError`` unless it is a number or ``auto``."""
    if text is None:
        return None
    if text == "auto":
        return "auto"
    try:
        return int(text)
    except ValueError:
        raise UsageError(
            f"--num-speculative-tokens {text} is not valid",
            why="the value is neither a whole number nor auto",
            fix="pass the number of drafts per round, for example 4 (0 for plain decoding), or auto; or omit the "
            "option for the engine's own setting",
        ) from None


def numbers_of(flag: str, text: str, example: str, number: Callable[[str], Number]) -> tuple[Number, ...]:
    """Parse a list of numbers, separated by commas. Raises ``UsageError`` with the ``example``."""
    try:
        return tuple(number(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"{flag} {text!r} is not a list of numbers", fix=f"use numbers such as {example}") from None
