"""The texts for measuring precision are not calibration texts, and too few are refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from peagle.compiler.precision.calibration.dataset import BUNDLED, KINDS
from peagle.compiler.verify.held_out_texts import HELD_OUT, read_texts
from peagle.plugins.errors import UsageError
from tests.models import VOCAB, Pair

PROMPTS = HELD_OUT.parent
_RUN = 8  # words in a row: six are those of three imports


def words(path: Path) -> list[list[str]]:
    def said(line: dict[str, object]) -> str:
        messages = line.get("messages")
        return " ".join(each["content"] for each in messages) if isinstance(messages, list) else str(line["text"])

    return [said(json.loads(line)).split() for line in path.read_text(encoding="utf-8").splitlines()]


def runs(texts: list[list[str]]) -> set[tuple[str, ...]]:
    return {tuple(text[i : i + _RUN]) for text in texts for i in range(len(text) - _RUN + 1)}


def test_held_out_texts_are_disjoint_from_calibration() -> None:
    held_out = runs(words(HELD_OUT))
    for kind in KINDS:
        assert not held_out & runs(words(BUNDLED / f"{kind}.jsonl"))
    assert not held_out & runs(words(PROMPTS / "code.jsonl"))


def test_the_bundled_texts_are_enough_and_all_different() -> None:
    demo = PROMPTS.parent / "demo" / "target"
    texts = read_texts(None, demo, 2048, 2048)
    assert len(texts.ids) == len(set(texts.ids)) == 16
    assert min(map(len, texts.ids)) > 200
    assert all(a != b for a, b in pairwise(sorted(texts.prompts)))


def test_texts_are_cut_to_the_engine_length(pair: Pair) -> None:
    texts = read_texts(None, pair.target, VOCAB, 64)
    assert texts.longest == 63  # one more is generated
    few = texts.first(3, 20)
    assert (len(few.ids), few.longest) == (3, 20)


def test_a_file_of_the_users_is_read_and_refused_like_calibration_data(pair: Pair, tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"input_ids": list(range(40))}) + "\n")
    assert read_texts(data, pair.target, VOCAB, 64).ids == (tuple(range(40)),)
    data.write_text('{"text": "a"}\n')
    with pytest.raises(UsageError, match="too little text"):
        read_texts(data, pair.target, VOCAB, 64)
    data.write_text('{"text": "a"}\n{"words": 1}\n')
    with pytest.raises(UsageError, match="line 2"):
        read_texts(data, pair.target, VOCAB, 64)
    with pytest.raises(UsageError, match="not a file"):
        read_texts(tmp_path / "absent.jsonl", pair.target, VOCAB, 64)


def test_overlong_name_is_not_treated_as_a_file(pair: Pair) -> None:
    with pytest.raises(UsageError, match="is not a file"):
        read_texts(Path("a" * 300), pair.target, VOCAB, 64)
