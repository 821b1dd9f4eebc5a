"""Measure the accuracy cost of precisions: compare engines of one model on the same text, on their own backend.

for p in fp32 int8 int4; do
    peagle-compile build --model MODEL --draft none --backend onnxruntime --precision $p --out $p
done
python tools/evaluate_precision.py fp32 int8 int4

The first engine is the reference: its tokenizer encodes the text, and for `chat` it writes the judged answers,
greedily. Each passage goes through all engines in turn. `perplexity` is that of the text, +- the standard error of the
change; `KL` is the divergence from the reference's distribution in nats per token, mean and 99th percentile; `same` is
the share of positions with the same most likely token.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from precision_texts import KINDS, Amount, Passages

from peagle.compiler.verify.logits import LogitsTally
from peagle.engines import Engine
from peagle.plugins.errors import PeagleError, UsageError

WINDOW = 512


@dataclass(frozen=True)
class PrecisionRow:
    """The results of an engine on one kind of text.

    ``bytes``: size of the target's files. ``tokens``: predicted tokens. ``change`` of perplexity and its standard
    ``error`` are relative to the reference, ``kl_mean`` and ``kl_p99`` in nats, ``same`` is a share.
    """

    text: str
    engine: str
    precision: str
    bytes: int
    tokens: int
    perplexity: float
    change: float
    error: float
    kl_mean: float
    kl_p99: float
    same: float


def load(folders: Sequence[Path]) -> list[Engine]:
    """Load all engines. Raises ``UsageError`` if one tokenizes differently from the first."""
    engines = [Engine.load(folder, prefix_cache_bytes=0) for folder in folders]
    for each in engines[1:]:
        if _reading(each) != _reading(engines[0]):
            raise UsageError(
                f"{each.folder} tokenizes differently from {engines[0].folder}",
                why="their tokenizers or vocabularies differ, so their distributions cannot be compared",
                fix="pass engines of one model",
            )
    return engines


def _reading(engine: Engine) -> tuple[object, ...]:
    """Return what determines the tokenization."""
    manifest = engine.manifest
    return manifest.files["tokenizer.json"].sha256, manifest.shapes.vocab_size, manifest.eos_token_ids


def compare(engines: Sequence[Engine], passages: Passages) -> list[PrecisionRow]:
    """Compare every engine with the first. A passage goes through all engines before the next one."""
    tallies = [LogitsTally() for _ in engines]
    for number, (ids, given) in enumerate(zip(passages.ids, passages.given, strict=True), 1):
        judged = slice(given - 1, None)
        reference = engines[0].target_logits(ids)[judged]
        for engine, tally in zip(engines, tallies, strict=True):
            logits = reference if engine is engines[0] else engine.target_logits(ids)[judged]
            tally.add(reference, logits, ids[judged])
        print(f"{passages.kind}: {number} of {len(passages.ids)}", file=sys.stderr, flush=True)
    rows = []
    for engine, tally in zip(engines, tallies, strict=True):
        found = tally.comparison()
        rows.append(
            PrecisionRow(
                text=passages.kind,
                engine=engine.folder.name,
                precision=engine.manifest.precision.get("recipe", "unknown"),
                bytes=_size(engine),
                tokens=passages.predicted,
                perplexity=found.perplexity_candidate,
                change=found.perplexity_increase,
                error=found.perplexity_error,
                kl_mean=found.kl_mean,
                kl_p99=found.kl_p99,
                same=found.top1_agreement,
            )
        )
    return rows


def _size(engine: Engine) -> int:
    """Return the bytes of the target's files, without a drafter that shares their embedding table."""
    manifest = engine.manifest
    inside, drafter = Path(manifest.target.file).parent, manifest.drafter
    return sum(
        entry.size
        for name, entry in manifest.files.items()
        if Path(name).parent == inside and not (drafter and name.startswith(drafter.file))
    )


def table(rows: Sequence[PrecisionRow]) -> str:
    """Format the results as text."""
    width = max(len(row.engine) for row in rows)
    lines = [f"{'':{width}} {'MB':>8} {'perplexity':>11} {'change':>9} {'+-':>7} {'KL':>8} {'99%':>7} {'same':>7}"]
    lines += [
        f"{row.engine:{width}} {row.bytes / 1e6:8.1f} {row.perplexity:11.4f} {row.change:+9.2%} {row.error:7.2%} "
        f"{row.kl_mean:8.4f} {row.kl_p99:7.3f} {row.same:7.1%}"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", type=Path, nargs="+", metavar="ENGINE")
    parser.add_argument("--texts", nargs="+", choices=KINDS, help="default: all (chat requires a template)")
    parser.add_argument("--windows", type=_positive, help="windows of code and of prose, evenly spaced; default: all")
    parser.add_argument("--window", type=_positive, default=WINDOW, help="tokens of a window; default: %(default)s")
    parser.add_argument("--answers", type=_positive, default=20, help="number of answers; default: %(default)s")
    parser.add_argument("--answer-tokens", type=_positive, default=100, help="tokens per answer; default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write the results to this file")
    arguments = parser.parse_args()
    if arguments.json and not arguments.json.absolute().parent.is_dir():
        parser.error(f"--json {arguments.json}: its folder does not exist")
    amount = Amount(arguments.windows, arguments.window, arguments.answers, arguments.answer_tokens)
    found: list[PrecisionRow] = []
    try:
        engines = load(arguments.engines)
        print(f"Python {platform.python_version()}")
        for kind in arguments.texts or [kind for kind in KINDS if kind != "chat" or engines[0].can_chat]:
            passages = KINDS[kind](engines[0], amount)
            rows = compare(engines, passages)
            print(f"\n{kind}: {passages.predicted} tokens in {len(passages.ids)} passages, digest {passages.digest}")
            print(table(rows), flush=True)
            found += rows
    except PeagleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in found], indent=2) + "\n")


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} must be positive")
    return number


if __name__ == "__main__":
    main()
