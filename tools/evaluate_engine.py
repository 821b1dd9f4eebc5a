"""Measure the acceptance length of a compiled demo engine on held-out files.

python tools/evaluate_engine.py demo-engine

It covers more prompts than the PyTorch loop can.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from code_tokenizer import encode_stream, load_tokenizer
from corpus import load_corpus

from peagle.engines import Acceptance, Engine, SamplingParams

PROMPT_TOKENS = 64


def main() -> None:
    """Print tokens per round over prompts spaced evenly over the held-out files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path)
    parser.add_argument("--target", type=Path, default=Path("compiler/bundled/demo/target"), help="for its tokenizer")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--k", type=int, default=8)
    arguments = parser.parse_args()
    stream = encode_stream(load_tokenizer(arguments.target), [file.text for file in load_corpus().held_out]).tolist()
    engine = Engine.load(arguments.engine, prefix_cache_bytes=0)
    params = SamplingParams(max_tokens=arguments.max_tokens, ignore_eos=True)
    total = Acceptance()
    last = len(stream) - PROMPT_TOKENS
    for i in range(arguments.prompts):
        start = i * last // max(1, arguments.prompts - 1)
        prompt = stream[start : start + PROMPT_TOKENS]
        (output,) = engine.generate([prompt], params, num_speculative_tokens=arguments.k)
        total.add(output.acceptance)
    print(f"K = {arguments.k}, greedy: {total.acceptance_length:.2f} tokens per round over {arguments.prompts} prompts")


if __name__ == "__main__":
    main()
