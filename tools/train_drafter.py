"""Train the P-EAGLE head of the demo target, and write it in the flat checkpoint layout.

python tools/train_drafter.py --steps 2400

The head learns to reproduce the target's own next-token distributions, mostly on text that the target wrote itself.
An interrupted run continues from its last checkpoint when the same command is given again; see train_target.py.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch
from code_tokenizer import encode_stream, load_tokenizer
from corpus import load_corpus
from drafter_card import DrafterRun, drafter_card
from drafter_rows import RowAttention, sample_rows
from drafter_start import TRAINED_DEPTH, new_drafter, target_states
from evaluate_pair import DEPTHS, measure_pair
from own_text import WINDOW, load_or_write
from peagle_module import Drafter, load_drafter, save_drafter
from publish import publish
from target_model import load_target
from torch import Tensor
from torch.nn import functional
from training import Checkpoint, MuonAndAdam, Windows, default_state, resume, wsd
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

# Windows per step: the target's own text, greedy and sampled, and text of the library.
GREEDY_BATCH, SAMPLED_BATCH, TEXT_BATCH = 4, 1, 1

KEEP = 0.8
MIN = 0.2
HARD_SHARE = 0.5

WARM_UP = 30
DECAY_SHARE = 0.5
MUON_LR = 0.02
ADAM_LR = 2e-3
WEIGHT_DECAY = 0.02
CLIP = 1.0
REPORT_EVERY = 25
CHECKPOINT_EVERY = 50


def row_losses(
    drafter: Drafter, ids: Tensor, aux: Tensor, logits: Tensor, anchor: Tensor, depth: Tensor
) -> tuple[Tensor, Tensor]:
    """Map ids [B, T], aux and logits [B, T, .] to the loss and to first-choice agreement, [B, R] each.

    The row of (anchor, depth) is at position p = anchor + depth and learns the target's distribution at p + 1, with
    extra weight on its first choice, because only first choices are proposed.
    """
    at = anchor + depth
    real = (depth == 0)[None, :]
    row_ids = torch.where(real, ids[:, 1:][:, at], drafter.config.ptd_token_id)
    row_aux = torch.where(real[..., None], aux[:, at], drafter.mask_hidden)
    hidden = drafter(row_ids, row_aux, at, RowAttention(anchor, depth, ids.shape[1] - 1, TRAINED_DEPTH))
    wanted = logits[:, at + 1].float()
    guess = functional.log_softmax(drafter.lm_head(hidden).float(), -1)
    best = wanted.argmax(-1)
    soft = -(wanted.softmax(-1) * guess).sum(-1)
    hard = -guess.gather(-1, best[..., None])[..., 0]
    return soft + HARD_SHARE * hard, guess.argmax(-1) == best


def ship(
    out: Path,
    drafter: Drafter,
    target: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    held_out: Tensor,
    run: DrafterRun,
) -> None:
    """Publish the weights, then measure the published files (before the end, one depth only) and write the card."""
    publish(out, lambda folder: save_drafter(drafter, folder))
    counts = list(DEPTHS) if run.step == run.steps else [TRAINED_DEPTH]
    rows = measure_pair(target, load_drafter(out), held_out, counts)
    card = drafter_card(run, target, load_drafter(out), tokenizer, rows)
    publish(out, lambda folder: (folder / "README.md").write_text(card))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--own-batches", type=int, default=16, help="batches of text that the target writes first")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--target", type=Path, default=Path("compiler/bundled/demo/target"), help="model folder to read"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("compiler/bundled/demo/drafter"), help="drafter folder to write"
    )
    parser.add_argument("--state", type=Path, default=default_state("drafter.pt"), help="checkpoint file")
    parser.add_argument("--publish-every", type=int, default=0, help="also write the folder every N steps")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    steps, seed = int(arguments.steps), int(arguments.seed)
    torch.manual_seed(seed)
    corpus = load_corpus()
    tokenizer = load_tokenizer(arguments.target)
    stream = encode_stream(tokenizer, [file.text for file in corpus.train])
    held_out = encode_stream(tokenizer, [file.text for file in corpus.held_out])
    target = load_target(arguments.target)
    weights_digest = hashlib.sha256((arguments.target / "model.safetensors").read_bytes()).hexdigest()
    drafter, scale = new_drafter(target, int(tokenizer.mask_token_id), stream[: 24 * 512].view(24, 512))
    taps = drafter.config.aux_layers
    blocks = {name for name, weight in drafter.named_parameters() if weight.dim() == 2 and "layer" in name}
    # A normal step in `fc` would be amplified by its large inputs, and one in `mask_hidden` would be negligible.
    factors = {"fc.weight": 1 / scale, "mask_hidden": scale}
    optimizer = MuonAndAdam(drafter, blocks | {"fc.weight"}, MUON_LR, ADAM_LR, WEIGHT_DECAY, factors)

    first, seconds_before = 0, 0.0
    settings = {"--seed": str(seed), "--own-batches": str(arguments.own_batches), "the target": weights_digest[:12]}
    checkpoint = resume(arguments.state, steps, DECAY_SHARE, settings)
    if checkpoint is not None:
        drafter.load_state_dict(checkpoint.model)
        optimizer.load_state_dict(checkpoint.optimizers)
        first, seconds_before = checkpoint.step, checkpoint.seconds

    # The text belongs to one target: the file name contains the digest of the weights that wrote it.
    own_file = arguments.state.with_name(f"own-text-{weights_digest[:12]}-{arguments.own_batches}-{seed}.pt")
    own = load_or_write(own_file, target, stream, arguments.own_batches, seed)
    text = Windows(stream, WINDOW, TEXT_BATCH, seed)
    parameters = sum(weight.numel() for weight in drafter.parameters())
    rows_of_text = f"{len(own.greedy)} greedy and {len(own.sampled)} sampled rows"
    print(f"{parameters:,} parameters, taps {taps}, {rows_of_text}, {steps} steps", flush=True)

    losses_of = torch.compile(row_losses, dynamic=False)
    agreement = torch.zeros(TRAINED_DEPTH)
    started = time.monotonic()
    for step in range(first, steps):
        ids = torch.cat([own.at(step, GREEDY_BATCH, SAMPLED_BATCH), text.at(step)])
        rows = torch.Generator().manual_seed(seed * 1_000_003 + step)
        anchor, depth = sample_rows(ids.shape[1] - 1, TRAINED_DEPTH, KEEP, MIN, rows)
        with torch.autocast("cpu", torch.bfloat16):
            aux, logits = target_states(target, ids, taps)
            losses, agrees = losses_of(drafter, ids, aux, logits, anchor, depth)
        loss = losses.mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), CLIP)
        optimizer.step(wsd(step, steps, WARM_UP, DECAY_SHARE))
        now = torch.stack([agrees[:GREEDY_BATCH, depth == d].float().mean() for d in range(TRAINED_DEPTH)])
        agreement = now if step == first else 0.95 * agreement + 0.05 * now
        done, seconds = step + 1, seconds_before + time.monotonic() - started
        if done % REPORT_EVERY == 0 or done == steps:
            by_depth = " ".join(f"{share:.2f}" for share in agreement.tolist())
            print(f"{seconds:6.0f}s  step {done}/{steps}  loss {loss.item():.3f}  agreement {by_depth}", flush=True)
        if done % CHECKPOINT_EVERY == 0 or done == steps:
            weights, states = drafter.state_dict(), optimizer.state_dict()
            Checkpoint(done, steps, seconds, weights, states, settings).save(arguments.state)
        if arguments.publish_every and done % arguments.publish_every == 0 and done != steps:
            run = DrafterRun(done, steps, seed, seconds, own, arguments.own_batches, weights_digest)
            ship(arguments.out, drafter, target, tokenizer, held_out, run)
    seconds = seconds_before + time.monotonic() - started
    run = DrafterRun(steps, steps, seed, seconds, own, arguments.own_batches, weights_digest)
    ship(arguments.out, drafter, target, tokenizer, held_out, run)
    print(f"done: {arguments.out}", flush=True)


if __name__ == "__main__":
    main()
