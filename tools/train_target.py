"""Train the demo target and its tokenizer, and write them as a Hugging Face model folder.

python tools/train_target.py --steps 1400

An interrupted run continues from its last checkpoint when the same command is given again. `--steps` may change in
between as long as the decay has not begun: the run is then identical to one started with the new number.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path

import torch
from code_tokenizer import encode_stream, load_tokenizer, train_tokenizer
from corpus import Corpus, load_corpus
from publish import publish
from target_card import TargetRun, target_card
from target_model import held_out_loss, load_target, new_config, next_token_loss
from training import Checkpoint, MuonAndAdam, Windows, default_state, resume, wsd
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

WINDOW = 512
BATCH = 8
WARM_UP = 60
DECAY_SHARE = 0.35
MUON_LR = 0.02
ADAM_LR = 4e-3
WEIGHT_DECAY = 0.05
CLIP = 1.0
CHECKPOINT_EVERY = 50
REPORT_EVERY = 50
REPORT_WINDOWS = 32


def write_folder(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write config.json, model.safetensors in bfloat16, the tokenizer, and generation_config.json."""
    end = int(tokenizer.eos_token_id)
    shipped = copy.deepcopy(model).to(torch.bfloat16)
    shipped.generation_config = GenerationConfig(bos_token_id=end, eos_token_id=end, pad_token_id=end, do_sample=False)
    shipped.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # transformers 5 writes a class name that earlier releases do not know; both can load this one.
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(settings, indent=2) + "\n")


def ship(
    out: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, corpus: Corpus, run: TargetRun
) -> None:
    """Publish the current weights, then measure the published files and write the card."""
    publish(out, lambda folder: write_folder(folder, model, tokenizer))
    held_out = encode_stream(load_tokenizer(out), [file.text for file in corpus.held_out])
    shipped = load_target(out)
    card = target_card(run, corpus, held_out_loss(shipped, held_out), len(held_out), shipped, load_tokenizer(out))
    publish(out, lambda folder: (folder / "README.md").write_text(card))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1400, help="optimizer steps of 4,096 tokens")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("compiler/bundled/demo/target"), help="model folder to write")
    parser.add_argument("--state", type=Path, default=default_state("target.pt"), help="checkpoint file")
    parser.add_argument(
        "--publish-every", type=int, default=0, help="also write the folder every N steps (0: at the end)"
    )
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    steps: int = arguments.steps
    torch.manual_seed(arguments.seed)
    corpus = load_corpus()
    tokenizer = train_tokenizer(file.text for file in corpus.train)
    stream = encode_stream(tokenizer, [file.text for file in corpus.train])
    held_out = encode_stream(tokenizer, [file.text for file in corpus.held_out])
    model = Qwen3ForCausalLM(new_config(len(tokenizer), int(tokenizer.eos_token_id)))
    matrices = {name for name, weight in model.named_parameters() if weight.dim() == 2 and ".layers." in name}
    optimizer = MuonAndAdam(model, matrices, MUON_LR, ADAM_LR, WEIGHT_DECAY)
    windows = Windows(stream, WINDOW, BATCH, arguments.seed)

    first, seconds_before = 0, 0.0
    settings = {"--seed": str(arguments.seed), "the corpus": corpus.digest[:12]}
    checkpoint = resume(arguments.state, steps, DECAY_SHARE, settings)
    if checkpoint is not None:
        model.load_state_dict(checkpoint.model)
        optimizer.load_state_dict(checkpoint.optimizers)
        first, seconds_before = checkpoint.step, checkpoint.seconds
    parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{len(corpus.train)} files, {len(stream):,} tokens, {parameters:,} parameters, {steps} steps", flush=True)

    loss_of = torch.compile(next_token_loss, dynamic=False)
    started = time.monotonic()
    model.train()
    for step in range(first, steps):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, windows.at(step))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step(wsd(step, steps, WARM_UP, DECAY_SHARE))
        done, seconds = step + 1, seconds_before + time.monotonic() - started
        if done % REPORT_EVERY == 0 or done == steps:
            with torch.autocast("cpu", torch.bfloat16):
                held = held_out_loss(model, held_out, REPORT_WINDOWS)
            print(f"{seconds:6.0f}s  step {done}/{steps}  train {loss.item():.3f}  held-out {held:.3f}", flush=True)
        if done % CHECKPOINT_EVERY == 0 or done == steps:
            weights, states = model.state_dict(), optimizer.state_dict()
            Checkpoint(done, steps, seconds, weights, states, settings).save(arguments.state)
        if arguments.publish_every and done % arguments.publish_every == 0 and done != steps:
            ship(arguments.out, model, tokenizer, corpus, TargetRun(done, steps, arguments.seed, seconds, len(stream)))
    seconds = seconds_before + time.monotonic() - started
    ship(arguments.out, model, tokenizer, corpus, TargetRun(steps, steps, arguments.seed, seconds, len(stream)))
    print(f"done: {arguments.out}", flush=True)


if __name__ == "__main__":
    main()
