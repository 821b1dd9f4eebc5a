"""The texts and batches of GPU training, computed on a CPU with a tiny random target."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from heads import packed_lessons
from heads.batch_decoder import BatchDecoder
from heads.dialogues import ChatFormat, Dialogue, loops, write_dialogues
from heads.head import HeadShape, load_head, start_head
from heads.lesson_batches import LessonBatches
from heads.packed_lessons import PackedLessons
from heads.states import lessons_of
from heads.waves import WaveDecoder, first_loops, write_wave
from hypothesis import given
from hypothesis import strategies as st
from speculation import generate_alone
from train_heads_on_gpu import groups, train
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

TAPS = (1, 2, 3)
LENGTH = 96
SHAPE = HeadShape(layers=2, intermediate=32, heads=4, kv_heads=2, draft_vocabulary=1024, depth=4)


@pytest.fixture(scope="module")
def written(head_target: LlamaForCausalLM, head_tokenizer: PreTrainedTokenizerFast) -> list[Dialogue]:
    return write_wave(WaveDecoder(head_target, LENGTH), head_tokenizer, range(24), seed=1)


def test_greedy_answers_of_a_wave_are_the_targets_own(
    written: list[Dialogue], head_target: LlamaForCausalLM, head_tokenizer: PreTrainedTokenizerFast
) -> None:
    end = ChatFormat.of(head_tokenizer).end
    assert [dialogue.index for dialogue in written] == list(range(24))
    assert {dialogue.sampled for dialogue in written} == {True, False}
    for dialogue in written:
        prompt, answer = dialogue.ids[: dialogue.answer], dialogue.ids[dialogue.answer :]
        assert head_tokenizer.decode(prompt).endswith(f"{head_tokenizer.eos_token}\n<|answer|>\n")
        assert len(dialogue.ids) == LENGTH or answer[-1] == end or loops(answer)
        if not dialogue.sampled:
            assert generate_alone(head_target, prompt, len(answer)) == answer


def test_waves_answer_the_same_given_turns_as_dialogues_written_one_by_one(
    written: list[Dialogue], head_target: LlamaForCausalLM, head_tokenizer: PreTrainedTokenizerFast
) -> None:
    alone = write_dialogues(BatchDecoder(head_target, 4, LENGTH), head_tokenizer, iter(range(24)), seed=1)
    given_turns = {each.index: each for each in alone if each.kind == "signature" and not each.sampled}
    assert given_turns
    for dialogue in written:
        if dialogue.index in given_turns:
            assert dialogue == given_turns[dialogue.index]


@given(st.lists(st.lists(st.integers(0, 2), min_size=12, max_size=12), min_size=1, max_size=4), st.integers(0, 4))
def test_repetition_is_found_where_it_first_ends(rows: list[list[int]], start: int) -> None:
    found = first_loops(torch.tensor(rows), torch.full((len(rows),), start)).tolist()
    for row, length in zip(rows, found, strict=True):
        ends = [end for end in range(start + 1, len(row) + 1) if loops(row[start:end])]
        assert length == (ends[0] if ends else 0)


def test_batches_are_those_of_lessons_in_a_folder(written: list[Dialogue], head_target: LlamaForCausalLM) -> None:
    ordered = sorted(written, key=lambda dialogue: len(dialogue.ids))
    packed, alone = PackedLessons.of(head_target, ordered, TAPS), lessons_of(head_target, ordered, TAPS)
    to_draft = torch.arange(head_target.config.vocab_size) - 7
    group = [3, 17, 20]
    got = packed.batch(group, to_draft)
    wanted = LessonBatches(alone, to_draft, 1, 1).collate([alone[i] for i in group])
    used = wanted.weight > 0
    torch.testing.assert_close(got.weight, wanted.weight)
    for name in ("ids", "aux", "likely", "chances", "best"):
        torch.testing.assert_close(getattr(got, name)[used], getattr(wanted, name)[used], atol=2e-3, rtol=2e-3)
    answers = torch.cat([lesson.ids[lesson.answer :] for lesson in alone])
    assert torch.equal(packed.answers(), answers)


def test_every_dialogue_has_weights_if_one_is_read_alone(
    written: list[Dialogue], head_target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_lessons, "READ_AT_ONCE", len(written) - 1)
    packed = PackedLessons.of(head_target, written, TAPS)
    to_draft = torch.arange(head_target.config.vocab_size)
    assert all(packed.batch([place], to_draft).weight.any() for place in range(len(written)))


def test_an_epoch_has_every_dialogue_at_most_once() -> None:
    epoch = [next(each) for each in [groups(50, 8, seed=3)] for _ in range(6)]
    places = [place for group in epoch for place in group]
    assert len(places) == len(set(places)) == 48


@pytest.mark.parametrize("method", [pytest.param("peagle", marks=pytest.mark.slow), "eagle3"])
def test_training_improves_a_head_and_can_end_by_time(
    method: str, written: list[Dialogue], head_target: LlamaForCausalLM, tmp_path: Path
) -> None:
    lessons = PackedLessons.of(head_target, written, TAPS)
    torch.manual_seed(5)
    head = start_head(head_target, SHAPE, TAPS, 7, method, torch.arange(SHAPE.draft_vocabulary), lessons.aux.float())
    steps, _, curve = train(head, lessons, 8, math.inf, 1, tmp_path / "head", steps=24, report_every=1)
    assert steps == len(curve) == 24
    smooth = [point.loss for point in curve]  # begins with the first batch, which may be an easy one
    losses = [(after - 0.98 * before) / 0.02 for before, after in pairwise(smooth)]
    assert sum(losses[-8:]) < sum(losses[:8])
    assert load_head(tmp_path / "head", head_target).method == method
    steps, seconds, _ = train(head, lessons, 8, 0.2, 1, tmp_path / "head")
    assert steps >= 1
    assert seconds >= 0.2
