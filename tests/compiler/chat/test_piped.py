"""``chat`` without a terminal: every line of input is a question of one dialogue."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from tests.fixtures.commands import Run

FEW = ("--max-tokens", 8)
QUESTIONS = ["def main(", "x ="]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> object:
    def pipe(*questions: str | bytes) -> None:
        content = b"\n".join(each if isinstance(each, bytes) else each.encode() for each in questions)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return pipe


def test_every_line_is_a_turn_of_one_dialogue(cli: Run, talking_engine: Path, lines: object) -> None:
    engine, params = Engine.load(talking_engine, threads=1), SamplingParams(max_tokens=8)
    messages, expected = [{"role": "system", "content": "Code."}], []
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        expected.append(engine.chat(messages, params).text)
        messages.append({"role": "assistant", "content": expected[-1]})
    lines(QUESTIONS[0], "", QUESTIONS[1])  # type: ignore[operator]
    done = cli("chat", talking_engine, *FEW, "--system", "Code.")
    assert (done.code, done.out) == (0, "".join(f"{text}\n" for text in expected))
    lines(*QUESTIONS)  # type: ignore[operator]
    printed = cli("chat", talking_engine, *FEW, "--system", "Code.", "--json").out.splitlines()
    assert [json.loads(line)["text"] for line in printed] == expected


def test_full_context_drops_the_oldest_turns(cli: Run, talking_engine: Path, lines: object) -> None:
    lines(*["x = 1; " * 200] * 3)  # type: ignore[operator]
    done = cli("chat", talking_engine, "--max-tokens", 4, "--json")
    assert done.code == 0
    sizes = [json.loads(line)["prompt_tokens"] for line in done.out.splitlines()]
    assert len(sizes) == 3
    assert max(sizes) < Engine.load(talking_engine, threads=1).max_seq_len
    assert "warning: the context is full; the oldest" in done.err


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        ([b"d\xffef"], 2, "line 1 of standard input is not UTF-8"),
        (["x = 1; " * 9000], 2, "the conversation has"),
        ([], 0, ""),
    ],
)
def test_unanswerable_input_is_reported(
    cli: Run, talking_engine: Path, lines: object, asked: list[str | bytes], code: int, said: str
) -> None:
    lines(*asked)  # type: ignore[operator]
    done = cli("chat", talking_engine, *FEW)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_engine_without_chat_template_fails_immediately(
    cli: Run, demo_engine: Path, engine: Path, lines: object
) -> None:
    lines("Hi")  # type: ignore[operator]
    done = cli("chat", demo_engine)
    assert done.code == 2
    assert "has no chat template" in done.err
    (engine / "chat_template.jinja").write_text("{{ raise_exception('System role not supported') }}")
    done = cli("chat", engine, "--system", "Be brief.")
    assert done.code == 2
    assert "why: the template's message is 'System role not supported'" in done.err
    (engine / "chat_template.jinja").write_text("{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}")
    assert cli("chat", engine).code == 3
    (engine / "chat_template.jinja").write_text("{{ 'x' * 9999999999 }}")
    done = cli("run", engine, "--chat", "--prompt", "Hi")
    assert done.code == 3
    assert "the model's chat template was stopped" in done.err


def test_run_answers_one_question(cli: Run, talking_engine: Path) -> None:
    answer = Engine.load(talking_engine, threads=1).chat(
        [{"role": "system", "content": "Code."}, {"role": "user", "content": "def main("}], SamplingParams(max_tokens=8)
    )
    done = cli("run", talking_engine, *FEW, "--chat", "--system", "Code.", "--prompt", "def main(")
    assert (done.code, done.out) == (0, answer.text + "\n")
    done = cli("run", talking_engine, "--system", "Code.", "--prompt", "x")
    assert done.code == 2
    assert "add --chat" in done.err
