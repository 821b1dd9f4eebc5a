"""The default calibration texts, and how they are generated."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from calibration_texts.answers import Dialogue, dialogues, essays, useless
from calibration_texts.excerpts import code_excerpts, prose_excerpts
from calibration_texts.least_tokens import beginning, least_tokens
from heads.overlap import runs
from make_calibration_texts import ROOT, TOKENS

from peagle.compiler.bundled.prompts import code_prompts, questions
from peagle.compiler.precision.calibration.dataset import BUNDLED, KINDS
from peagle.compiler.precision.calibration.encoder import Encoder
from peagle.compiler.verify.held_out_texts import HELD_OUT

DEMO = BUNDLED.parents[1] / "demo" / "target"
LINES: dict[str, list[dict[str, Any]]] = {
    kind: [json.loads(line) for line in (BUNDLED / f"{kind}.jsonl").read_text().splitlines()] for kind in KINDS
}
EVERY = [line for lines in LINES.values() for line in lines]


def said(line: dict[str, Any]) -> str:
    return str(line.get("text") or "\n".join(each["content"] for each in line["messages"]))


def test_enough_texts_of_each_kind_name_their_origin() -> None:
    assert len(EVERY) >= 128
    assert min(len(lines) for lines in LINES.values()) >= 36
    assert len({line["id"] for line in EVERY}) == len(EVERY)
    assert {line["from"] for line in EVERY} == {"written", "project", "generated"}
    assert sum((BUNDLED / f"{kind}.jsonl").stat().st_size for kind in KINDS) < 1_000_000


def test_each_has_512_tokens_in_any_vocabulary() -> None:
    assert {line["id"]: count for line in EVERY if (count := least_tokens(said(line))) < 540} == {}


def test_calibration_texts_exclude_evaluation_texts() -> None:
    held_out = [json.loads(line)["text"] for line in HELD_OUT.read_text().splitlines()]
    measured = [*held_out, *(prompt.text for prompt in (*questions(), *code_prompts()))]
    shown = set().union(*map(runs, measured))
    assert [line["id"] for line in EVERY if runs(said(line)) & shown] == []


def test_conversations_have_several_turns_that_alternate() -> None:
    for line in LINES["chat"]:
        roles = [message["role"] for message in line["messages"]]
        assert roles[roles[0] == "system" :] == ["user", "assistant"] * (len(roles) // 2), line["id"]
        assert len(roles) >= 4


@pytest.mark.parametrize(
    ("text", "least"),
    [
        ("def add(self):", 4), ("x += 1; y(z)\n", 7), ("don't", 2), ("(self.head)", 3), ("  \n", 0),
        ("\u6e05\u660e\u524d\u7684", 2),
    ],
)  # fmt: skip
def test_least_tokens_is_a_lower_bound(text: str, least: int) -> None:
    assert least_tokens(text) == least
    assert len(Encoder.open(DEMO).encode(text)) >= least


def test_beginning_ends_at_a_line() -> None:
    text = "a b c\nd e\nf g h i\nj\n"
    assert beginning(text, 4) == "a b c\nd e\n"
    assert beginning(text, 99) == text


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("Too short to say much.", "short"),
        (" ".join(f"word{i}" for i in range(40)), ""),
        (" ".join(f"word{i}" for i in range(40)) + " \U0001f600", "odd signs"),
        ("It is good to read books every day. " * 6, "repeats itself"),
        (" ".join(f"said{i}" for i in range(40)), "repeats what was said"),
    ],
)
def test_unusable_answers_are_dropped(answer: str, why: str) -> None:
    assert useless(answer, " ".join(f"said{i}" for i in range(50))) == why


def test_dialogue_continues_with_usable_answers_or_is_abandoned() -> None:
    dialogue = Dialogue("d", 0, ["What?", "Why?"], "Be kind.", 20)
    dialogue.take("no")
    assert dialogue.next_messages[-1]["content"] == "What?"
    dialogue.take(" ".join(f"word{i}" for i in range(40)))
    assert [each["role"] for each in dialogue.next_messages] == ["system", "user", "assistant", "user"]
    assert not dialogue.failed
    for _ in range(4):
        dialogue.take("no")
    assert dialogue.failed
    assert dialogue.dropped == Counter(short=5)


def test_excerpts_are_long_enough_and_deterministic() -> None:
    for excerpts in (code_excerpts, prose_excerpts):
        found = excerpts(ROOT, TOKENS, 1)
        assert found == excerpts(ROOT, TOKENS, 1)
        assert min(least_tokens(each.text) for each in found) >= TOKENS
        assert len({each.path for each in found}) == len(found)


def test_dialogue_and_essay_beginnings_are_unique() -> None:
    begun = [*dialogues(), *essays()]
    assert len({each.name for each in begun}) == len({each.turns[0] for each in begun}) == len(begun)
