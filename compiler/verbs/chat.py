"""``peagle-compile chat``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ..chat.answer_view import use_colours
from ..chat.dialogue import Dialogue
from ..chat.piped import talk
from ..chat.terminal import TerminalChat
from ..console.input_text import argument_text
from ..console.printing import interruptible
from .flags.help_text import RUN
from .flags.shared_flags import (
    AcceptanceTolerance,
    Check,
    EngineFolder,
    MaxTokens,
    MinP,
    NumDrafts,
    NumSpeculativeTokens,
    Seed,
    Stop,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    requested_drafts,
)


@interruptible("the answers above were generated before the interruption")
def chat(
    engine: EngineFolder,
    system: System = None,
    max_tokens: MaxTokens = 512,
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft: NumDrafts = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    acceptance_tolerance: AcceptanceTolerance = 0.0,
    no_color: Annotated[
        bool,
        typer.Option("--no-color", help="Disable colors; the variable NO_COLOR does the same.", rich_help_panel=RUN),
    ] = False,
    threads: Threads = None,
    check: Check = "auto",
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Read questions from standard input and print one JSON object per line.",
            rich_help_panel=RUN,
        ),
    ] = False,
) -> None:
    """Chat with an instruction-tuned model in the terminal.

    Answers are printed as they are generated, with text from accepted drafts in green. Ctrl-C stops an answer; Ctrl-D
    ends the chat. If standard input or output is not a terminal, each line of input is one turn of the conversation.

    Example: peagle-compile chat demo-engine --system "Be brief."
    """
    from ...engines import Engine, SamplingParams

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or (),
        acceptance_tolerance=acceptance_tolerance,
    )
    k = requested_drafts(num_speculative_tokens)
    loaded = Engine.load(engine, threads=threads, check=check, draft=draft)
    dialogue = Dialogue(loaded, None if system is None else argument_text("--system", system), max_tokens)
    dialogue.check()
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty() and not as_json:
        colours = use_colours() and not no_color
        code = TerminalChat(loaded, dialogue, params, k, draft, colours=colours).talk()
        raise typer.Exit(code)
    talk(loaded, dialogue, params, k, draft, as_json=as_json)
