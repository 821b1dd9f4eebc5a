"""``peagle-compile run``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...plugins.errors import UsageError
from ..console.input_text import argument_text, decoded, file_text
from ..console.printing import columns, emit, interruptible, note
from ..console.result_record import decoding_speed, lossy, record
from ..console.sampling_json import more_parameters
from ..console.streams import is_reader_closed
from .flags.help_text import RUN, SAMPLING
from .flags.shared_flags import (
    AcceptanceTolerance,
    Check,
    EngineFolder,
    Json,
    MaxTokens,
    MinP,
    NumDrafts,
    NumSpeculativeTokens,
    Seed,
    Stop,
    StopTokenId,
    System,
    Temperature,
    Threads,
    TopK,
    TopP,
    requested_drafts,
)
from .profile_file import profile_table, require_replaceable, write_profile

if TYPE_CHECKING:
    from ...engines import Acceptance, RequestOutput

_MAX_BYTES = 64 * 2**20  # of a prompt on standard input: more than any cache holds, and a pipe may never end


@interruptible("the text above was generated before the interruption")
def run(
    engine: EngineFolder,
    text: Annotated[str | None, typer.Argument(metavar="PROMPT", help="Same as --prompt.", show_default=False)] = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="Text to continue. (default: standard input, without its final newline)", show_default=False),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Treat the prompt as a user message and apply the model's chat template.")
    ] = False,
    system: System = None,
    max_tokens: MaxTokens = 128,
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft: NumDrafts = None,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    min_p: MinP = 0.0,
    seed: Seed = None,
    stop: Stop = None,
    stop_token_id: StopTokenId = None,
    acceptance_tolerance: AcceptanceTolerance = 0.0,
    sampling: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="More sampling parameters by their Python names, such as "
            """'{"repetition_penalty": 1.1, "prompt_logprobs": 0}'.""",
            show_default=False,
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Generate JSON that matches the schema in this file.",
            show_default=False,
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    ignore_eos: Annotated[
        bool,
        typer.Option("--ignore-eos", help="Continue past the end-of-text token.", rich_help_panel=SAMPLING),
    ] = False,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print the seed, and speed and acceptance statistics, on standard error.")
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Time every layer, print a summary for prompts and rounds on standard error, and write all times as "
            "JSON to this file. Slows the run down.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ] = None,
    threads: Threads = None,
    check: Check = "auto",
    as_json: Json = False,
) -> None:
    """Generate text from a prompt and print it as it is generated.

    Example: peagle-compile run demo-engine --prompt "def gcd(a, b):" --stats
    """
    if system is not None and not chat:
        raise UsageError("--system requires --chat", why="only a chat has a system message", fix="add --chat")
    full_prompt = _one_prompt(text, prompt)
    from ...engines import Engine, SamplingParams

    flags: dict[str, Any] = {
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "seed": seed,
        "stop": stop or (),
        "stop_token_ids": stop_token_id or (),
        "acceptance_tolerance": acceptance_tolerance,
        "ignore_eos": ignore_eos,
    }
    more = more_parameters("--sampling", sampling, flags)
    if json_schema is not None:
        if more.get("structured_outputs") is not None:
            raise UsageError("--json-schema and --sampling both set an output format", fix="omit one of them")
        more["structured_outputs"] = {"json": file_text("--json-schema", json_schema)}
    params = SamplingParams(**flags, **more)
    if profile is not None:
        require_replaceable(profile)
    k = requested_drafts(num_speculative_tokens)
    loaded = Engine.load(engine, threads=threads, check=check, draft=draft, profile=profile is not None)
    if chat:
        first = [] if system is None else [{"role": "system", "content": argument_text("--system", system)}]
        messages = [*first, {"role": "user", "content": full_prompt}]
        stream = loaded.stream_chat(messages, params, num_speculative_tokens=k, draft=draft)
    else:
        stream = loaded.stream(full_prompt, params, num_speculative_tokens=k, draft=draft)
    for delta in stream:
        if not as_json:
            print(delta.text, end="", flush=True)
        if is_reader_closed():
            return
    output = stream.result
    if as_json:
        emit(record(output))
    else:
        print()
    if stats:
        note(_stats(output))
    elif lossy_note := lossy(output.acceptance):
        note(lossy_note)
    if profile is not None:
        found = loaded.end_profile()
        write_profile(profile, found, engine, output)
        note(profile_table(found))


def _one_prompt(text: str | None, prompt: str | None) -> str:
    if text is not None and prompt is not None:
        raise UsageError(
            "two prompts were given", why="PROMPT and --prompt are the same option", fix="omit one of them"
        )
    text_or_prompt = prompt if text is None else text
    if text_or_prompt is not None:
        return argument_text("the prompt" if prompt is None else "--prompt", text_or_prompt)
    if sys.stdin is None or sys.stdin.isatty():  # None: standard input is closed
        raise UsageError("no prompt was given", fix="add --prompt TEXT, or pipe in a prompt")
    try:
        content = sys.stdin.buffer.read(_MAX_BYTES + 1)
    except OSError as error:  # a write-only handle
        raise UsageError(
            "no prompt was given", why=f"standard input cannot be read: {error.strerror}", fix="add --prompt TEXT"
        ) from None
    if len(content) > _MAX_BYTES:
        raise UsageError(
            f"standard input is longer than {_MAX_BYTES // 2**20} MiB",
            why="no prompt can be that long",
            fix="pipe in a shorter prompt",
        )
    piped = decoded("standard input", content).replace("\r\n", "\n").replace("\r", "\n")
    return piped.removesuffix("\n")  # `echo` and editors append one


def _all_rounds(acceptance: Acceptance) -> str:
    return f"{acceptance.tokens_per_round:.2f} tokens per round over all rounds"


def _stats(output: RequestOutput) -> str:
    acceptance = output.acceptance
    rows = [
        (
            "tokens",
            f"{len(output.token_ids)} after a prompt of {len(output.prompt_token_ids)} ({output.finish_reason})",
        ),
        ("seed", output.seed),
        ("prefill", f"{output.prefill_seconds * 1000:.1f} ms"),
        ("decoding", f"{decoding_speed(output):.1f} tokens/s"),
    ]
    if acceptance.drafted:
        rows += [
            ("acceptance length", f"{acceptance.acceptance_length:.2f} tokens per round"),
            ("drafts accepted", f"{acceptance.accepted} of {acceptance.drafted} in {acceptance.rounds} rounds"),
        ]
        verify, draft = acceptance.milliseconds_per_round
        rows += [("time per round", f"{verify:.1f} ms target, {draft:.1f} ms drafter")] if verify else []
        if lossy_note := lossy(acceptance):
            rows.append(("lossy", lossy_note))
        if acceptance.undrafted:
            rows.append(("rounds without drafts", f"{acceptance.undrafted}: {_all_rounds(acceptance)}"))
    return columns(rows)
