"""Train a head on text written by its target (see make_head_data.py), and write it in vLLM's flat layout.

python tools/train_head.py --method peagle --out build/heads/peagle
python tools/train_head.py --method eagle3 --out build/heads/eagle3
python tools/train_head.py --method peagle --data build/prose --out build/heads/prose --begin-like FOLDER

An interrupted run continues from its last checkpoint when the same command is given again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from drafter_start import tap_layers
from heads.data_folder import DataFolder
from heads.head import METHODS, Head, HeadShape, Method, begin_like, load_head, save_head, start_head
from heads.head_card import EarlierRun, HeadRun
from heads.head_rows import compute_rows, kept_anchors
from heads.lesson_batches import Batch, LessonBatches
from heads.sparse_loss import SparseCrossEntropy
from heads.target import TargetFiles, fast_dtype
from publish import publish
from torch import Tensor
from training import Checkpoint, MuonAndAdam, digest, read_checkpoint, resume, wsd

# Either file is below 16 MB. EAGLE-3 heads usually have one layer; P-EAGLE gains from a second.
SHAPES: dict[Method, HeadShape] = {
    "peagle": HeadShape(layers=2, intermediate=512, heads=8, kv_heads=4, draft_vocabulary=4864, depth=8),
    "eagle3": HeadShape(layers=1, intermediate=1024, heads=8, kv_heads=4, draft_vocabulary=6400, depth=6),
}
MAX_HEAD_BYTES = 16_000_000

KEEP, MIN = 0.75, 0.15
ADAPTING = 0.05  # learning rates of a head that begins with the weights of another, by those of a new one
HARD_SHARE = 0.5  # share of the loss against the target's first choice, the only one that is proposed

WARM_UP = 30
DECAY_SHARE = 0.5
MUON_LR = 0.02
ADAM_LR = 1e-3
WEIGHT_DECAY = 0.02
CLIP = 1.0
REPORT_EVERY = 10


@dataclass(frozen=True)
class Step:
    """The result of one batch: the loss, and first-choice agreement with the target by depth."""

    loss: Tensor
    agreement: Tensor


def learn(head: Head, batch: Batch, keep: float, generator: torch.Generator, dtype: torch.dtype) -> Step:
    """Return the loss of `head` on a batch, with COD sampling: each depth keeps some rows of the one before."""
    depths = head.drafter.config.num_speculative_tokens
    anchors = kept_anchors(batch.ids.shape[1] - 1, depths, keep, MIN, generator)
    with torch.autocast(batch.ids.device.type, dtype, enabled=dtype != torch.float32):
        rows = compute_rows(head, batch.ids, batch.aux, anchors)
    label = rows.anchor + rows.depth + 1
    weight = batch.weight[:, label]
    used = weight > 0
    weight = weight[used]
    best = batch.best[:, label][used]
    share = batch.chances[:, label][used] * weight[:, None]
    share[:, 0] += HARD_SHARE * weight * (best >= 0)
    loss, choices = SparseCrossEntropy.apply(
        rows.hidden[used].float(), head.drafter.lm_head.weight, batch.likely[:, label][used], share, dtype
    )
    hits = (
        ((choices == best) * weight)
        .new_zeros(depths)
        .index_add(0, rows.depth.expand_as(used)[used], (choices == best) * weight)
    )
    total = weight.new_zeros(depths).index_add(0, rows.depth.expand_as(used)[used], weight)
    return Step(loss / weight.sum(), hits / total.clamp_min(1e-9))


def optimizer_for(head: Head) -> MuonAndAdam:
    """Return Muon for the matrices of the blocks and `fc`, and AdamW for the other trained parameters."""
    drafter = head.drafter
    matrices = {name for name, weight in drafter.named_parameters() if weight.dim() == 2 and "layer" in name}
    return MuonAndAdam(drafter, matrices | {"fc.weight"}, MUON_LR, ADAM_LR, WEIGHT_DECAY)


def train(
    head: Head,
    optimizer: MuonAndAdam,
    batches: LessonBatches,
    state: Path,
    steps: int,
    seed: int,
    dtype: torch.dtype,
    checkpoint_seconds: float = 120,
    publish_head: Callable[[], None] = lambda: None,
    begin_with: Checkpoint | None = None,
    rate: float = 1.0,
    run: dict[str, str] | None = None,
) -> float:
    """Train to step `steps` from `state` if it exists, otherwise from `begin_with` (a finished run) or from scratch.

    Returns the total seconds of all sessions, including those of the other run.

    `rate` is a factor on all learning rates. `publish_head` is called after each checkpoint, so that a head can be
    measured during training, and at the end, also if nothing was left to train. `run` has the run's settings: see
    `Checkpoint`.
    """
    run = run or {}
    checkpoint = resume(state, steps, DECAY_SHARE, run)
    first = 0 if checkpoint is None else checkpoint.step
    checkpoint = checkpoint or begin_with
    seconds_before = 0.0 if checkpoint is None else checkpoint.seconds
    if checkpoint is not None:
        if not torch.equal(checkpoint.model.pop("draft_ids", torch.empty(0)), head.draft_ids):
            raise SystemExit(
                "the checkpoint belongs to a head with another draft vocabulary: its rows are those of other tokens. "
                "Begin with a checkpoint of the same data folder, or with the finished head, using --begin-like."
            )
        head.unit = checkpoint.model.pop("unit")
        head.load_trained(checkpoint.model)
        optimizer.load_state_dict(checkpoint.optimizers)
    started = saved = time.monotonic()
    agreement = torch.empty(0)
    for step in range(first, steps):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
        result = learn(head, batches.at(step), KEEP, generator, dtype)
        result.loss.backward()
        torch.nn.utils.clip_grad_norm_([w for w in head.drafter.parameters() if w.requires_grad], CLIP)
        optimizer.step(rate * wsd(step, steps, WARM_UP, DECAY_SHARE))
        agreement = result.agreement if step == first else 0.9 * agreement + 0.1 * result.agreement
        done, now = step + 1, time.monotonic()
        seconds = seconds_before + now - started
        if done % REPORT_EVERY == 0 or done == steps:
            by_depth = " ".join(f"{share:.2f}" for share in agreement.tolist())
            print(f"{seconds:6.0f}s  step {done}/{steps}  loss {result.loss:.3f}  agreement {by_depth}", flush=True)
        if now - saved >= checkpoint_seconds or done == steps:
            saved = now
            weights = head.trained() | {"unit": head.unit, "draft_ids": head.draft_ids}
            Checkpoint(done, steps, seconds, weights, optimizer.state_dict(), run).save(state)
            if done < steps:
                publish_head()
    publish_head()
    return seconds_before + time.monotonic() - started


def run_file(data: Path, state: str) -> Path:
    """Return the path of a run's record for its card, beside the checkpoint `state`.pt."""
    return data / f"{state}-run.json"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS, required=True)
    parser.add_argument("--data", type=Path, default=Path("build/smollm2-training"), help="folder of make_head_data.py")
    parser.add_argument("--out", type=Path, required=True, help="head folder to write")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=8, help="dialogues in each step")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--begin-with", type=Path, metavar="FILE", help="checkpoint of a finished run on the same data "
                        "to go on from (its -run.json beside it), with a learning rate that rises and falls once "
                        "more")  # fmt: skip
    parser.add_argument("--begin-like", type=Path, metavar="FOLDER", help="head of the same method to adapt to the "
                        "text of one domain, with lower learning rates")  # fmt: skip
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    method: Method = arguments.method
    torch.manual_seed(arguments.seed)
    data = DataFolder(arguments.data)
    made = data.description()
    files = TargetFiles.find(made.target)
    target = files.model(torch.float32)
    lessons = data.lessons()
    shape = SHAPES[method]
    other = None if arguments.begin_like is None else load_head(arguments.begin_like, target)
    draft_ids = data.draft_vocabulary(shape.draft_vocabulary, None if other is None else other.draft_ids)
    taps = tap_layers(target.config.num_hidden_layers)
    # The first row of a dialogue is an attention sink; its states are by far larger than all others.
    sample = torch.cat([lesson.aux[1:] for lesson in lessons[:32]]).float()
    head = start_head(target, shape, taps, made.mask_id, method, draft_ids, sample)
    if other is not None:
        begin_like(head, other)
    batches = LessonBatches(lessons, head.target_to_draft(), arguments.rows, arguments.seed)
    tokens = sum(len(lesson.ids) for lesson in lessons)
    stored = sum(weight.numel() for weight in head.trained().values())
    dtype = fast_dtype()
    print(
        f"{method}: {stored:,} parameters, taps {taps}, {len(lessons)} dialogues of {tokens:,} tokens, "
        f"{batches.per_epoch} steps an epoch, products in {dtype}",
        flush=True,
    )
    optimizer = optimizer_for(head)
    state = arguments.data / f"{method}.pt"
    begin_with, earlier = None, None
    if arguments.begin_with is not None:
        begin_with = read_checkpoint(arguments.begin_with)
        before = HeadRun.load(run_file(arguments.begin_with.parent, arguments.begin_with.stem))
        earlier = EarlierRun(before.steps, before.seed)
    seconds = train(
        head,
        optimizer,
        batches,
        state,
        arguments.steps,
        arguments.seed,
        dtype,
        publish_head=lambda: publish(arguments.out, lambda folder: save_head(head, folder), MAX_HEAD_BYTES),
        begin_with=begin_with,
        rate=1.0 if other is None else ADAPTING,
        run={
            "--seed": str(arguments.seed),
            "--rows": str(arguments.rows),
            "--begin-with": digest(arguments.begin_with),
            "--begin-like": digest(arguments.begin_like and arguments.begin_like / "model.safetensors"),
            "the target": files.checkpoint.fingerprint[:12],
        },
    )
    HeadRun(
        method=method,
        target=made.target,
        steps=arguments.steps,
        rows=arguments.rows,
        seed=arguments.seed,
        seconds=seconds,
        dialogues=len(lessons),
        tokens=tokens,
        dropped=data.dropped(),
        coverage=data.coverage(draft_ids),
        corpus_digest=made.corpus_digest,
        earlier=earlier,
        begun_like=str(arguments.begin_like or ""),
        kinds=made.kinds,
    ).save(run_file(arguments.data, method))
    print(f"done: {arguments.out}", flush=True)


if __name__ == "__main__":
    main()
