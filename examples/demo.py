"""Plain decoding against P-EAGLE on one engine: the text, the speed, and whether the tokens are the same.

    python examples/demo.py ENGINE_DIR

Both run in the same process, in turn on every prompt, so that a slow moment of the machine falls on both.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import dataclass, field

from peagle.compiler.bundled.prompts import code_prompts
from peagle.engines import Acceptance, Engine, SamplingParams

PROMPT = "class Reader:\n    def __init__(self, "
POLICIES = {"greedy": 0.0, "sampled, temperature 0.8": 0.8}


@dataclass
class Run:
    """What one way of decoding did over all prompts."""

    speeds: list[float] = field(default_factory=list)
    tokens: list[tuple[int, ...]] = field(default_factory=list)
    acceptance: Acceptance = field(default_factory=Acceptance)

    def speed(self) -> str:
        low, _, high = statistics.quantiles(self.speeds, n=4)
        return f"{statistics.median(self.speeds):.0f} ({low:.0f} to {high:.0f})"


def compare(engine: Engine, temperature: float, max_tokens: int, repeats: int) -> tuple[Run, Run]:
    """Plain decoding and P-EAGLE on the bundled prompts, interleaved."""
    plain, speculative = Run(), Run()
    ways = [(plain, 0), (speculative, engine.num_speculative_tokens)]
    for repeat in range(repeats):
        for seed, prompt in enumerate(code_prompts()):
            params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed, ignore_eos=True)
            for run, k in ways if repeat % 2 == 0 else reversed(ways):
                (output,) = engine.generate([prompt.text], params, num_speculative_tokens=k)
                run.speeds.append((len(output.token_ids) - 1) / output.decode_seconds)
                run.tokens.append(output.token_ids)
                run.acceptance.add(output.acceptance)
    return plain, speculative


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare plain decoding with P-EAGLE on one engine.")
    parser.add_argument("engine", help="folder made by `peagle-compile build`")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    engine = Engine.load(arguments.engine)

    print(PROMPT, end="")
    stream = engine.stream(PROMPT, SamplingParams(max_tokens=arguments.max_tokens, temperature=0.6, seed=1))
    for delta in stream:
        print(delta.text, end="", flush=True)

    k = engine.num_speculative_tokens
    print(f"\n\n{len(code_prompts())} prompts, {arguments.max_tokens} tokens each; tokens/s: median (middle half)\n")
    print(f"{'':26}{'plain':>18}{f'P-EAGLE, K = {k}':>18}{'ratio':>7}{'accepted':>10}{'identical':>11}")
    for name, temperature in POLICIES.items():
        plain, speculative = compare(engine, temperature, arguments.max_tokens, arguments.repeats)
        ratio = statistics.median(speculative.speeds) / statistics.median(plain.speeds)
        same = "yes" if plain.tokens == speculative.tokens else "NO"
        length = f"{speculative.acceptance.acceptance_length:.2f}"
        print(f"{name:26}{plain.speed():>18}{speculative.speed():>18}{ratio:>6.2f}x{length:>10}{same:>11}")
    print("\naccepted: tokens per round, the target's own included")


if __name__ == "__main__":
    main()
