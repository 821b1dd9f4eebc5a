"""Held-out perplexity of demo engines beside each other, as their backend computes it; the first is the reference.

for p in fp32 fp8 int8 int4; do
    peagle-compile build --model demo --backend onnxruntime --precision $p --out demo-$p
done
python tools/evaluate_precision.py demo-fp32 demo-fp8 demo-int8 demo-int4
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from code_tokenizer import encode_stream, load_tokenizer
from corpus import load_corpus
from target_model import EVAL_WINDOW

from peagle.compiler.verify.logits import Perplexity, perplexity
from peagle.engines import Engine


@dataclass(frozen=True)
class Row:
    """What was found of an engine. ``bytes`` are those of the target's files; ``change`` is relative to the first."""

    engine: str
    precision: str
    bytes: int
    perplexity: float
    change: float
    tokens: int


def windows(target: Path, count: int | None) -> list[list[int]]:
    """Token ids of the held-out files in windows that share a token, ``count`` of them spread evenly."""
    stream = encode_stream(load_tokenizer(target), [file.text for file in load_corpus().held_out]).tolist()
    every = [stream[at : at + EVAL_WINDOW + 1] for at in range(0, len(stream) - EVAL_WINDOW, EVAL_WINDOW)]
    return every if count is None else every[:: max(1, len(every) // count)][:count]


def measured(folder: Path, texts: list[list[int]]) -> tuple[Perplexity, Engine]:
    """Of an engine's own logits; the last token of a window is predicted, not read."""
    engine = Engine.load(folder)
    return perplexity(engine.target_logits, texts), engine


def row(folder: Path, texts: list[list[int]], reference: float | None) -> Row:
    """Of one engine, held against the perplexity of another."""
    found, engine = measured(folder, texts)
    inside = Path(engine.manifest.target.file).parent
    size = sum(entry.size for name, entry in engine.manifest.files.items() if Path(name).parent == inside)
    change = found.value / (reference or found.value) - 1
    kind = str(engine.manifest.precision.get("recipe") or engine.manifest.precision["weights"])
    return Row(folder.name, kind, size, found.value, change, found.tokens)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", type=Path, nargs="+")
    parser.add_argument("--target", type=Path, default=Path("compiler/bundled/demo/target"), help="for its tokenizer")
    parser.add_argument("--windows", type=int, help=f"of {EVAL_WINDOW} tokens, spread evenly. (default: all)")
    parser.add_argument("--json", type=Path, help="also write what was found here")
    arguments = parser.parse_args()
    texts = windows(arguments.target, arguments.windows)
    rows: list[Row] = []
    for folder in arguments.engines:
        rows.append(row(folder, texts, rows[0].perplexity if rows else None))
        each = rows[-1]
        print(
            f"{each.engine:20} {each.precision:6} {each.bytes / 1e6:8.1f} MB  perplexity {each.perplexity:.4f}  "
            f"({each.change:+.2%})  {each.tokens} tokens",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
