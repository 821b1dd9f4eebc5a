"""Measure the demo pair on the held-out files, in plain PyTorch.

python tools/evaluate_pair.py                 loss, and tokens per round for K = 1..8, greedy and at temperature 0.8
python tools/evaluate_pair.py --loss-only     only the target's held-out loss
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

from code_tokenizer import encode_stream, load_tokenizer
from corpus import load_corpus
from peagle_module import Drafter, load_drafter
from speculation import generate_alone, generate_together
from target_model import held_out_loss, load_target, perplexity
from torch import Tensor
from transformers import Qwen3ForCausalLM

PROMPTS = 20
PROMPT_TOKENS = 64
NEW_TOKENS = 128
DEPTHS = range(1, 9)
TEMPERATURE = 0.8


@dataclass(frozen=True)
class Row:
    """Results for one number of draft tokens."""

    count: int
    greedy: float
    sampled: float
    identical: int
    reach: list[float]  # share of greedy rounds that accepted at least 1, 2, ... draft tokens


def held_out_prompts(stream: Tensor, prompts: int = PROMPTS) -> list[list[int]]:
    """Return evenly spaced pieces of the held-out stream int64 [T]."""
    stride = (len(stream) - PROMPT_TOKENS) // prompts
    return [stream[i * stride : i * stride + PROMPT_TOKENS].tolist() for i in range(prompts)]


def tokens_per_round(rounds: list[int]) -> float:
    """Return the accepted drafts plus one target token, averaged over all rounds."""
    return 1 + sum(rounds) / len(rounds)


def measure(
    target: Qwen3ForCausalLM, drafter: Drafter, prompts: list[list[int]], wanted: list[list[int]], count: int
) -> Row:
    """Run every prompt greedily and sampled; `wanted` is the target's own output."""
    greedy: list[int] = []
    sampled: list[int] = []
    identical = 0
    for i, prompt in enumerate(prompts):
        run = generate_together(target, drafter, prompt, NEW_TOKENS, count)
        greedy += run.accepted
        identical += run.ids == wanted[i]
        sampled += generate_together(target, drafter, prompt, NEW_TOKENS, count, TEMPERATURE, seed=i).accepted
    reach = [sum(n > i for n in greedy) / len(greedy) for i in range(count)]
    return Row(count, tokens_per_round(greedy), tokens_per_round(sampled), identical, reach)


def measure_pair(target: Qwen3ForCausalLM, drafter: Drafter, held_out: Tensor, counts: list[int]) -> list[Row]:
    """Return one row per entry of `counts`, printed as it is measured."""
    prompts = held_out_prompts(held_out)
    wanted = [generate_alone(target, prompt, NEW_TOKENS) for prompt in prompts]
    rows = []
    for count in counts:
        row = measure(target, drafter, prompts, wanted, count)
        reach = " ".join(f"{share:.2f}" for share in row.reach)
        print(
            f"K={count}  tokens per round: greedy {row.greedy:.2f}, temperature {TEMPERATURE} {row.sampled:.2f};  "
            f"identical to the target alone {row.identical}/{len(prompts)};  accepted at least 1, 2, ...: {reach}",
            flush=True,
        )
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, default=Path("compiler/bundled/demo/target"))
    parser.add_argument("--drafter", type=Path, default=Path("compiler/bundled/demo/drafter"))
    parser.add_argument("--k", type=int, nargs="+", default=list(DEPTHS), help="numbers of drafted tokens to try")
    parser.add_argument("--loss-only", action="store_true")
    arguments = parser.parse_args()
    corpus = load_corpus()
    held_out = encode_stream(load_tokenizer(arguments.target), [file.text for file in corpus.held_out])
    target = load_target(arguments.target)
    loss = held_out_loss(target, held_out)
    print(f"corpus: Python {corpus.python_version}, digest {corpus.digest}")
    print(f"held-out loss {loss:.3f} nats per token, perplexity {perplexity(loss):.2f}", flush=True)
    if not arguments.loss_only:
        measure_pair(target, load_drafter(arguments.drafter), held_out, arguments.k)


if __name__ == "__main__":
    main()
