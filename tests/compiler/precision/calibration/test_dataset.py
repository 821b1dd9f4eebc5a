"""Calibration files: errors name the line, and the selection does not depend on the order of lines."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.precision.calibration import dataset
from peagle.compiler.precision.calibration.dataset import BUNDLED, KINDS, SampleLimits, Samples, bundled, read_jsonl
from peagle.compiler.precision.calibration.encoder import Encoder
from peagle.plugins.errors import BuildError, UsageError
from tests.models import VOCAB, Pair
from tests.tokenizer_files import PADDING, PANICS, TRUNCATION

SMALL = SampleLimits(max_samples=3, max_length=6, min_tokens=1)
CHAT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"


def written(path: Path, *lines: Any) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "not valid JSON"), ("[1]", "not a JSON object"), ({}, "none of text"), ({"prompt": "x"}, "none of text"),
        ({"text": "x", "input_ids": [1]}, "both text and input_ids"),
        ({"text": ""}, "empty"), ({"text": 1}, "not a string"),
        ({"messages": []}, "messages"), ({"messages": [{"role": "user"}]}, "a role and a content"),
        ({"input_ids": []}, "empty"), ({"input_ids": [1.0]}, "integers"), ({"input_ids": [True]}, "integers"),
        ({"input_ids": [VOCAB]}, f"token id {VOCAB}"), ({"input_ids": [-1]}, "token id -1"),
        ('{"input_ids": ' + "[" * 100_000, "not valid JSON"),
    ],
)  # fmt: skip
def test_a_malformed_line_is_named(line: Any, said: str, tmp_path: Path) -> None:
    path = written(tmp_path / "data.jsonl", {"input_ids": [1, 2]}, "", line)
    with pytest.raises(UsageError, match=rf"line 3 is not a calibration sample\n  why: .*{said}"):
        read_jsonl(path, None, VOCAB, SMALL)


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "has no sample"), (b"\n\n", "has no sample"), (b'{"text": "\xff"}', "cannot read"), (None, "cannot read")],
)
def test_a_file_without_samples_is_refused(content: bytes | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "data.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_jsonl(tmp_path / "data.jsonl", None, VOCAB, SMALL)


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_MAX_LINE", 2**20)
    with pytest.raises(UsageError, match=r"/dev/zero, line 1 .*\n.*more than 1,048,576 characters"):
        read_jsonl(Path("/dev/zero"), None, VOCAB, SMALL)


def test_samples_tokenized_for_another_model_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_jsonl(written(tmp_path / "data.jsonl", {"input_ids": [VOCAB]}), None, VOCAB, SMALL)
    assert "tokenizer of this model" in caught.value.fix


def test_too_few_tokens_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "data.jsonl", {"input_ids": list(range(50))})
    with pytest.raises(UsageError, match=r"too little text for calibration: .* has 6 tokens in 1 sample"):
        read_jsonl(path, None, VOCAB, SampleLimits(max_length=6, min_tokens=7))


MORE = "add texts similar to those that the model will process"


@pytest.mark.parametrize(
    ("limits", "fix"),
    [
        (SampleLimits(max_samples=1, max_length=100), "increase --calib-samples, or increase --calib-length"),
        (SampleLimits(max_samples=2, max_length=120), f"increase --calib-samples, or {MORE}"),
        (SampleLimits(max_samples=9, max_length=80), f"increase --calib-length, or {MORE}"),
        (SampleLimits(max_samples=9, min_tokens=500), MORE),
    ],
)
def test_limits_that_leave_too_few_tokens_are_named(limits: SampleLimits, fix: str, tmp_path: Path) -> None:
    path = written(tmp_path / "data.jsonl", *({"input_ids": [i, *[5] * 119]} for i in (2, 3, 4)))
    with pytest.raises(UsageError, match="too little text") as caught:
        read_jsonl(path, None, VOCAB, limits)
    assert caught.value.fix == fix


def test_text_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"line 1 .*\n.*no tokenizer"):
        read_jsonl(written(tmp_path / "data.jsonl", {"text": "x"}), None, VOCAB, SMALL)


def test_the_choice_is_by_content(tmp_path: Path) -> None:
    lines = [{"input_ids": [i] * 9} for i in range(20)]
    first = read_jsonl(written(tmp_path / "a.jsonl", *lines), None, VOCAB, SMALL)
    second = read_jsonl(written(tmp_path / "b.jsonl", *reversed(lines)), None, VOCAB, SMALL)
    assert first.digest == second.digest
    assert first.ids == second.ids
    assert first.lengths == (6, 6, 6)
    assert first.digest != read_jsonl(written(tmp_path / "c.jsonl", *lines[:4]), None, VOCAB, SMALL).digest


def test_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"input_ids": [1, 2, 3]}')
    assert read_jsonl(path, None, VOCAB, SMALL).ids == ((1, 2, 3),)


def test_text_is_read_with_the_models_tokenizer(pair: Pair, tmp_path: Path) -> None:
    encoder = Encoder.open(pair.target)
    samples = read_jsonl(written(tmp_path / "data.jsonl", {"text": "A1!A1!A1!"}), encoder, VOCAB, SMALL)
    assert samples.ids == (tuple(encoder.encode("A1!A1!")),)


def test_text_is_neither_cut_nor_filled(pair: Pair, tmp_path: Path) -> None:
    whole, path = Encoder.open(pair.target).encode("A1!A1!"), pair.target / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"truncation": TRUNCATION, "padding": PADDING}))
    encoder = Encoder.open(pair.target)
    assert encoder.encode("A1!A1!") == encoder.converse([{"role": "U", "content": "A1!A1!"}]) == whole


def test_a_text_that_the_tokenizer_cannot_encode_names_the_line(pair: Pair, tmp_path: Path) -> None:
    path = pair.target / "tokenizer.json"
    normalizer = {"type": "Replace", "pattern": {"Regex": PANICS}, "content": "x"}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": normalizer}))
    with pytest.raises(UsageError, match=r"line 1 .*\n.*retry-limit-in-match"):
        read_jsonl(written(tmp_path / "data.jsonl", {"text": "A1!A1!"}), Encoder.open(pair.target), VOCAB, SMALL)


def test_messages_go_through_the_chat_template(pair: Pair, tmp_path: Path) -> None:
    path = written(tmp_path / "data.jsonl", {"messages": [{"role": "U", "content": "A"}]})
    plain = read_jsonl(path, Encoder.open(pair.target), VOCAB, SMALL)
    assert plain.ids == (tuple(Encoder.open(pair.target).encode("A")),)
    assert "no chat template" in plain.warnings[0]
    (pair.target / "chat_template.jinja").write_text(CHAT)
    encoder = Encoder.open(pair.target)
    framed = read_jsonl(path, encoder, VOCAB, SMALL)
    assert framed.ids == (tuple(encoder.encode("<U>A")),)
    assert framed.warnings == ()


@pytest.mark.parametrize("is_list", [False, True])
def test_a_template_in_the_configuration_counts(is_list: bool, pair: Pair) -> None:
    begun = "{{ bos_token }}" + CHAT
    stated = [{"name": "tools", "template": "?"}, {"name": "default", "template": begun}] if is_list else begun
    (pair.target / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": stated, "bos_token": {"content": "!"}})
    )
    encoder = Encoder.open(pair.target)
    assert encoder.converse([{"role": "U", "content": "A"}]) == encoder.encode("!<U>A")


def test_template_list_without_default_counts_as_none(pair: Pair, tmp_path: Path) -> None:
    named = [{"name": "tools", "template": "?"}]
    (pair.target / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    path = written(tmp_path / "data.jsonl", {"messages": [{"role": "U", "content": "A"}]})
    assert "no chat template" in read_jsonl(path, Encoder.open(pair.target), VOCAB, SMALL).warnings[0]


def test_a_template_that_refuses_names_the_line(pair: Pair, tmp_path: Path) -> None:
    (pair.target / "chat_template.jinja").write_text("{{ raise_exception('no system prompt') }}")
    path = written(tmp_path / "data.jsonl", {"messages": [{"role": "system", "content": "A"}]})
    with pytest.raises(UsageError, match=r"line 1 .*\n.*no system prompt"):
        read_jsonl(path, Encoder.open(pair.target), VOCAB, SMALL)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"tokenizer\.json"):
        Encoder.open(tmp_path)


DEMO = BUNDLED.parents[1] / "demo" / "target"


def test_bundled_samples_are_the_default() -> None:
    limits = SampleLimits()
    samples = bundled(Encoder.open(DEMO), json.loads((DEMO / "config.json").read_text())["vocab_size"])
    assert len(set(samples.ids)) == limits.max_samples == 128
    assert set(samples.lengths) == {limits.max_length} == {512}


def test_sample_kinds_alternate() -> None:
    encoder = Encoder.open(DEMO)
    lines = [(k, json.loads(line)) for k in KINDS for line in (BUNDLED / f"{k}.jsonl").read_text().splitlines()]
    kinds = {tuple(encoder.encode(each["text"])): kind for kind, each in lines if "text" in each}
    few = bundled(encoder, 4096, SampleLimits(max_samples=6, max_length=99999))
    assert sorted(kinds.get(ids, "chat") for ids in few.ids) == ["chat", "chat", "code", "code", "prose", "prose"]


def test_system_turns_are_dropped_when_the_template_rejects_them(tmp_path: Path) -> None:
    shutil.copy(DEMO / "tokenizer.json", tmp_path)
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}" + CHAT
    (tmp_path / "chat_template.jinja").write_text(refuses)
    samples = bundled(Encoder.open(tmp_path), 4096)
    assert len(samples.ids) == 128
    assert any("rejects system messages" in warning for warning in samples.warnings)


def test_template_with_a_date_renders_deterministically(pair: Pair) -> None:
    (pair.target / "chat_template.jinja").write_text("{{ strftime_now('%Y-%m-%d') }}" + CHAT)
    encoder = Encoder.open(pair.target)
    assert encoder.converse([{"role": "U", "content": "A"}]) == encoder.encode("2026-01-01<U>A")


def test_too_many_samples_requested_is_reported() -> None:
    samples = Samples.of("the set", [[1, 2, 3], [4, 5]])
    assert samples.with_shortage_warnings(None, None).warnings == samples.with_shortage_warnings(2, 3).warnings == ()
    assert samples.with_shortage_warnings(3, None).warnings == ("3 samples were requested, but the set has only 2",)
    assert samples.with_shortage_warnings(2, 4).warnings == (
        "samples of 4 tokens were requested, but the longest of the set has 3",
    )
    assert samples.with_shortage_warnings(3, 4).digest == samples.digest


def test_limits_below_one_are_refused() -> None:
    with pytest.raises(UsageError):
        SampleLimits(max_length=0)
