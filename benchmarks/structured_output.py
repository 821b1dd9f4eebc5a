"""Measure the gain from drafts for answers with a JSON schema, and the effect of grammar-forced drafts.

    python benchmarks/structured_output.py ENGINE_DIR [--rounds 3] [--max-tokens 160]

Answers to a few questions are generated in turn: without drafts, with the engine's drafter, and with drafts from the
text; the last two also without grammar-forced drafts and without grammar filtering of other drafts. Every answer must
equal that of plain decoding. The output has tokens per second (best round of each answer), the speedup over plain
decoding, and tokens per round. The first table allows no whitespace between JSON tokens, the second a space or an
indented line.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from peagle.engines import Acceptance, Engine, RequestOutput, SamplingParams
from peagle.engines.running.token_choice import TokenChoice

QUESTIONS = [f"Describe {who} as JSON." for who in ("a painter from Paris", "a Japanese engineer", "an old fisherman")]
WAYS: dict[str, tuple[dict[str, Any], bool]] = {
    "plain": ({"num_speculative_tokens": 0}, True),
    "own drafter, nothing forced": ({}, False),
    "own drafter": ({}, True),
    "from the text, nothing forced": ({"draft": "ngram"}, False),
    "from the text": ({"draft": "ngram"}, True),
}


def text(most: int) -> dict[str, Any]:
    """Return the schema of a text of at most this many characters."""
    return {"type": "string", "maxLength": most}


def thing(**properties: Any) -> dict[str, Any]:
    """Return the schema of an object with exactly these properties."""
    kept = {"required": list(properties), "additionalProperties": False}
    return {"type": "object", "properties": properties, **kept}


SCHEMA = thing(
    name=text(20),
    occupation=text(30),
    age={"type": "integer", "minimum": 0, "maximum": 150},
    address=thing(street=text(20), city=text(20), country=text(20)),
    hobbies={"type": "array", "items": text(12), "minItems": 2, "maxItems": 3},
)


@contextmanager
def drafting(forced: bool) -> Iterator[None]:
    """Enable or disable the grammar's influence on drafts; when disabled, it only verifies them."""
    usual = TokenChoice.drafts
    if not forced:
        TokenChoice.drafts = lambda self, own_drafts, max_drafts: own_drafts  # type: ignore[method-assign]
    try:
        yield
    finally:
        TokenChoice.drafts = usual  # type: ignore[method-assign]


def ask(engine: Engine, question: str, params: SamplingParams, way: str) -> RequestOutput:
    """Return one answer."""
    fields, forced = WAYS[way]
    with drafting(forced):
        return engine.chat([{"role": "user", "content": question}], params, **fields)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=160)
    options = parser.parse_args()
    with Engine.load(options.engine, prefix_cache_bytes=0) as engine:
        for compact in (True, False):
            form = {"json": SCHEMA, "disable_any_whitespace": compact}
            params = SamplingParams(max_tokens=options.max_tokens, structured_outputs=form)
            seconds: dict[tuple[str, str], float] = {}
            outputs: dict[tuple[str, str], RequestOutput] = {}
            for _ in range(options.rounds):
                for question in QUESTIONS:
                    for way in WAYS:
                        output = outputs[way, question] = ask(engine, question, params, way)
                        last = seconds.get((way, question), output.decode_seconds)
                        seconds[way, question] = min(last, output.decode_seconds)
                        if output.token_ids != outputs["plain", question].token_ids:
                            raise SystemExit(f"{way}: the answer to {question!r} differs from plain decoding")
            show(seconds, outputs, compact)


def show(seconds: dict[tuple[str, str], float], outputs: dict[tuple[str, str], RequestOutput], compact: bool) -> None:
    """Print a line for each way."""
    plain = sum(seconds["plain", question] for question in QUESTIONS)
    written = sum(len(outputs["plain", question].token_ids) - 1 for question in QUESTIONS)
    print(f"whitespace: {'none' if compact else 'some'}; {written} tokens after the first token of each answer")
    for way in WAYS:
        took, acceptance = sum(seconds[way, question] for question in QUESTIONS), Acceptance()
        for question in QUESTIONS:
            acceptance.add(outputs[way, question].acceptance)
        forced = (
            f"forced {acceptance.grammar_accepted} of {acceptance.grammar_drafted}"
            if acceptance.grammar_drafted
            else ""
        )
        speed = f"{written / took:7.1f} tok/s  x{plain / took:.2f}"
        print(f"  {way:30} {speed}  {acceptance.tokens_per_round:.2f} per round  {forced}")


if __name__ == "__main__":
    main()
