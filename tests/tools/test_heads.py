"""A head trained from start to end with a tiny random target, and the steps that its numbers rely on."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from heads.acceptance import Acceptance, drafts_everywhere, measure
from heads.batch_decoder import BatchDecoder
from heads.data_folder import DataFolder
from heads.dialogues import append_dialogues, loops, read_dialogues
from heads.head import METHODS, Head, HeadShape, Method, begin_like, load_head, save_head, start_head
from heads.head_rows import all_anchors, compute_rows
from heads.lesson_batches import Batch, LessonBatches
from heads.overlap import Held
from heads.sparse_loss import SparseCrossEntropy
from heads.states import Lesson
from heads.user_turns import KINDS, indices_of, user_turn
from peagle_module import CausalCache
from safetensors.torch import load_file
from speculation import generate_alone, generate_together
from torch.nn import functional
from train_head import learn, optimizer_for, train
from training import Checkpoint, read_checkpoint
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from peagle.graphs.drafters import read_drafter
from peagle.graphs.targets import family_for

TAPS = (1, 2, 3)
STEPS = 18
SHAPE = HeadShape(layers=2, intermediate=32, heads=4, kv_heads=2, draft_vocabulary=1024, depth=4)


@pytest.fixture(scope="module")
def data(
    head_target: LlamaForCausalLM, head_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> DataFolder:
    folder = DataFolder(tmp_path_factory.mktemp("data"))
    append_dialogues(folder.text_file(0), BatchDecoder(head_target, 8, 96), head_tokenizer, list(range(24)), seed=1)
    folder.write_states(head_target, head_tokenizer, TAPS, Held(["def has_close_elements(numbers):"]), unfinished=False)
    return folder


@pytest.fixture(scope="module")
def lessons(data: DataFolder) -> list[Lesson]:
    return data.lessons()


def _new_head(head_target: LlamaForCausalLM, lessons: list[Lesson], method: Method) -> Head:
    torch.manual_seed(5)
    size = SHAPE.draft_vocabulary
    aux = torch.cat([lesson.aux for lesson in lessons]).float()
    return start_head(head_target, SHAPE, TAPS, 7, method, torch.arange(size), aux)


class _Killed(LessonBatches):
    """Batches of a run that is interrupted when it asks for the one of step `stop`."""

    stop: int

    def at(self, step: int) -> Batch:
        if step == self.stop:
            raise KeyboardInterrupt
        return super().at(step)


def _loss(head: Head, lessons: list[Lesson]) -> float:
    batch = LessonBatches(lessons, head.target_to_draft(), len(lessons), seed=1).at(0)
    return float(learn(head, batch, 1.0, torch.Generator().manual_seed(1), torch.float32).loss.detach())


def test_slots_at_different_positions_give_the_logits_of_the_model(head_target: LlamaForCausalLM) -> None:
    torch.manual_seed(1)
    decoder = BatchDecoder(head_target, 3, 24)
    rows = [torch.randint(1000, (length,)).tolist() for length in (5, 9, 14)]
    for slot, row in enumerate(rows):
        torch.testing.assert_close(
            decoder.prefill(slot, torch.tensor(row)), head_target(torch.tensor([row])).logits[0, -1]
        )
    for _ in range(3):
        for row in rows:
            row.append(int(torch.randint(1000, ())))
        logits = decoder.step(torch.tensor([row[-1] for row in rows]), torch.tensor([len(row) - 1 for row in rows]))
        for slot, row in enumerate(rows):
            torch.testing.assert_close(
                logits[slot], head_target(torch.tensor([row])).logits[0, -1], atol=1e-3, rtol=1e-4
            )


def test_text_resumes_after_a_kill(
    head_target: LlamaForCausalLM, head_tokenizer: PreTrainedTokenizerFast, data: DataFolder, tmp_path: Path
) -> None:
    whole = read_dialogues(data.text_file(0))
    assert sorted(dialogue.index for dialogue in whole) == list(range(24))
    cut = tmp_path / "text-0.jsonl"
    cut.write_text(data.text_file(0).read_text()[:-200])
    assert len(read_dialogues(cut)) == 23
    for _ in range(2):  # the second time there is nothing to do
        append_dialogues(cut, BatchDecoder(head_target, 2, 96), head_tokenizer, list(range(24)), seed=1)
    again = {dialogue.index: dialogue for dialogue in read_dialogues(cut)}
    assert len(again) == 24
    for dialogue in whole:
        assert again[dialogue.index] == dialogue


def test_answers_start_after_the_chat_format_and_greedy_ones_are_the_targets_own(
    head_target: LlamaForCausalLM, head_tokenizer: PreTrainedTokenizerFast, data: DataFolder
) -> None:
    for dialogue in read_dialogues(data.text_file(0)):
        assert head_tokenizer.decode(dialogue.ids[: dialogue.answer]).endswith(
            f"{head_tokenizer.eos_token}\n<|answer|>\n"
        )
        if not dialogue.sampled:
            prompt, answer = dialogue.ids[: dialogue.answer], dialogue.ids[dialogue.answer :]
            assert generate_alone(head_target, prompt, len(answer)) == answer


def test_repetition_is_noticed_at_the_fourth_time() -> None:
    piece = [5, 6, 7, 6]
    assert loops([1, 2, *piece * 4])
    assert not loops([1, 2, *piece * 3])


@pytest.mark.parametrize(
    ("text", "shared"),
    [
        ("one two three four five six seven eight nine ten eleven twelve thirteen fourteen", True),
        ("see: One, two; three four five six seven eight nine ten eleven twelve (thirteen)", True),
        ("one two three four five six seven eight nine ten eleven twelve and thirteen", False),
        ("please: def truncate_number (x): return x", True),
        ("the word truncate_number alone is no function", False),
        ("Tell me, why do we have leap years", True),
    ],
)
def test_shared_word_runs_and_function_names_are_found(text: str, shared: bool) -> None:
    thirteen = "one two three four five six seven eight nine ten eleven twelve thirteen"
    held = Held([thirteen, "def truncate_number(number: float):", "Why do we have leap years?"])
    assert (held.shown_in(text) is not None) == shared


def test_sparse_loss_is_the_cross_entropy_with_its_gradients() -> None:
    torch.manual_seed(2)
    hidden, weight = torch.randn(7, 6, requires_grad=True), torch.randn(20, 6, requires_grad=True)
    likely, share = torch.randint(20, (7, 3)), torch.rand(7, 3)
    loss, choices = SparseCrossEntropy.apply(hidden, weight, likely, share, torch.float32)
    got = torch.autograd.grad(loss * 2, (hidden, weight))
    logits = hidden @ weight.T
    wanted = -(share * functional.log_softmax(logits, -1).gather(-1, likely)).sum()
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(got, torch.autograd.grad(wanted * 2, (hidden, weight)))
    assert choices.tolist() == logits.argmax(-1).tolist()


def test_acceptance_read_off_the_text_is_that_of_the_loop(
    head_target: LlamaForCausalLM, lessons: list[Lesson], tmp_path: Path
) -> None:
    save_head(_new_head(head_target, lessons, "peagle"), tmp_path)
    head = load_head(tmp_path, head_target)  # with the units multiplied in, as the loop reads it
    lesson = lessons[0]
    prompt = lesson.ids[: lesson.answer].tolist()
    wanted = generate_together(head_target, head.drafter, prompt, 24, SHAPE.depth)
    ids = torch.tensor(prompt + generate_alone(head_target, prompt, 40))
    aux = torch.cat([head_target.model(ids[None], output_hidden_states=True).hidden_states[tap] for tap in TAPS], -1)[0]
    lesson = replace(lesson, ids=ids, aux=aux)
    got = measure(head, [lesson], SHAPE.depth).accepted
    assert got[: len(wanted.accepted) - 1] == wanted.accepted[:-1]


def test_acceptance_counts_the_tokens_of_the_target_and_the_share_of_each_position() -> None:
    result = Acceptance(count=3, tokens=10, accepted=[3, 0, 1, 2])
    assert result.length == 2.5
    assert result.by_position == [0.75, 0.5, 0.25]


def test_chained_drafts_match_one_pass_per_token(head_target: LlamaForCausalLM, lessons: list[Lesson]) -> None:
    head = _new_head(head_target, lessons, "eagle3")
    ids, aux = lessons[0].ids[:20], lessons[0].aux[:20].float()
    table = drafts_everywhere(head, ids, aux, 3)
    drafter = head.drafter
    for anchor in (0, 7, 16):
        cache, positions = CausalCache(), torch.arange(anchor + 1)
        x = drafter.blocks(ids[None, 1 : anchor + 2], head.features(aux[None, : anchor + 1]), positions, cache)[:, -1:]
        for depth in range(3):
            drafted = drafter.lm_head(drafter.norm(x)).argmax(-1)
            assert drafted.item() == table[anchor, depth]
            at = anchor + depth + 1
            if at + 1 < len(ids):
                x = drafter.blocks(ids[None, at + 1 : at + 2], x, torch.tensor([at]), cache)


@pytest.mark.parametrize("method", ["peagle", pytest.param("eagle3", marks=pytest.mark.slow)])
def test_training_improves_a_head_and_resumes(
    method: Method, head_target: LlamaForCausalLM, lessons: list[Lesson], tmp_path: Path
) -> None:
    def run(state: Path, stop: int = STEPS) -> Head:
        head = _new_head(head_target, lessons, method)
        batches = _Killed(lessons, head.target_to_draft(), 6, seed=1)
        batches.stop = stop
        train(head, optimizer_for(head), batches, state, STEPS, 1, torch.float32, checkpoint_seconds=0)
        return head

    whole = run(tmp_path / "whole.pt")
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "parts.pt", stop=5)
    parts = run(tmp_path / "parts.pt")
    for name, weight in whole.trained().items():
        torch.testing.assert_close(parts.trained()[name], weight, msg=name)
    assert _loss(whole, lessons) < _loss(_new_head(head_target, lessons, method), lessons) - 0.2

    published, head = [], _new_head(head_target, lessons, method)
    batches = LessonBatches(lessons, head.target_to_draft(), 6, seed=1)
    train(head, optimizer_for(head), batches, tmp_path / "whole.pt", STEPS, 1, torch.float32,
          publish_head=lambda: published.append(_loss(head, lessons)))  # fmt: skip
    assert published == [_loss(whole, lessons)]  # a run that is complete publishes its head again

    further = _new_head(head_target, lessons, method)
    batches = LessonBatches(lessons, further.target_to_draft(), 6, seed=2)
    state, finished = tmp_path / "further.pt", read_checkpoint(tmp_path / "whole.pt")
    train(further, optimizer_for(further), batches, state, 4, 2, torch.float32, begin_with=finished)
    assert _loss(further, lessons) < _loss(whole, lessons)

    save_head(whole, tmp_path / "head")
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    described = head_target.config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    spec = read_drafter(config, shapes, family_for(described).describe(described).with_taps(TAPS))
    assert spec.strategy == ("parallel" if method == "peagle" else "autoregressive")
    assert spec.shared == ("embed_tokens.weight",)
    again = load_head(tmp_path / "head", head_target)
    assert again.method == method
    assert _loss(again, lessons) == pytest.approx(_loss(whole, lessons), rel=0.02)


def test_checkpoint_with_another_draft_vocabulary_is_refused(
    head_target: LlamaForCausalLM, lessons: list[Lesson], tmp_path: Path
) -> None:
    def run(head: Head, state: str, begin_with: Checkpoint | None = None) -> None:
        batches = LessonBatches(lessons, head.target_to_draft(), 6, seed=1)
        train(head, optimizer_for(head), batches, tmp_path / state, 1, 1, torch.float32, begin_with=begin_with)

    run(_new_head(head_target, lessons, "eagle3"), "first.pt")
    other = _new_head(head_target, lessons, "eagle3")
    other.draft_ids = other.draft_ids + 1
    with pytest.raises(SystemExit, match="another draft vocabulary"):
        run(other, "second.pt", read_checkpoint(tmp_path / "first.pt"))
    assert not (tmp_path / "second.pt").exists()


@pytest.mark.parametrize("method", METHODS)
def test_head_that_begins_like_another_scores_the_tokens_of_both_alike(
    method: Method, head_target: LlamaForCausalLM, lessons: list[Lesson], tmp_path: Path
) -> None:
    save_head(_new_head(head_target, lessons, method), tmp_path)
    other = load_head(tmp_path, head_target)
    aux = torch.cat([lesson.aux for lesson in lessons]).float()
    torch.manual_seed(6)
    head = start_head(head_target, SHAPE, TAPS, 7, method, torch.arange(500, 500 + SHAPE.draft_vocabulary), aux)
    begin_like(head, other)
    ids, states = lessons[0].ids[None], lessons[0].aux[None].float()
    anchors = all_anchors(ids.shape[1] - 1, 3, ids.device)
    ours, theirs = (each.drafter.lm_head(compute_rows(each, ids, states, anchors).hidden) for each in (head, other))
    torch.testing.assert_close(ours[..., :524], theirs[..., 500:], atol=2e-3, rtol=2e-3)


def test_vocabulary_of_another_head_changes_only_where_its_tokens_never_occur(
    data: DataFolder, lessons: list[Lesson]
) -> None:
    occur = Counter(token for lesson in lessons for token in lesson.ids.tolist())
    unseen = next(token for token in itertools.count() if token not in occur)
    rare = min(occur, key=lambda token: (occur[token], token))
    (often, _), *_ = occur.most_common(1)
    assert data.draft_vocabulary(2, torch.tensor([rare, unseen])).tolist() == sorted([rare, often])


def test_dialogues_of_one_domain_are_those_of_its_kinds() -> None:
    chosen = indices_of(["other"], 9, seed=3)
    assert [index for index in range(chosen[-1] + 1) if user_turn(index, 3).kind == "other"] == chosen
    assert indices_of(KINDS, 9, seed=3) == list(range(9))


def test_batches_cover_every_lesson_once_in_an_epoch(head_target: LlamaForCausalLM, lessons: list[Lesson]) -> None:
    head = _new_head(head_target, lessons, "eagle3")
    batches = LessonBatches(lessons, head.target_to_draft(), 6, seed=1)
    seen = list(itertools.chain.from_iterable(batches.at(step).ids.tolist() for step in range(batches.per_epoch)))
    assert len(seen) == len(lessons)
    width = max(map(len, seen))
    padded = sorted(row + [0] * (width - len(row)) for row in seen)
    assert padded == sorted(lesson.ids.tolist() + [0] * (width - len(lesson.ids)) for lesson in lessons)
