"""Dialogues written by the target itself: one user turn and its answer each, many at once, appended to a file."""

from __future__ import annotations

import fcntl
import json
import os
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from .batch_decoder import BatchDecoder
from .user_turns import user_turn

USER_TOKENS = 100  # at most, of a user turn written by the target
USER_TEMPERATURE = 0.8
# Most answers are greedy, like most use of drafts; the others show the head contexts that greedy text never reaches.
SAMPLED_SHARE, ANSWER_TEMPERATURE = 0.2, 0.7
# An answer that repeats a piece (of at most this many tokens) this often will not stop by itself.
LOOP_TOKENS, LOOPS = 32, 4
REPORT_EVERY = 60  # seconds


@dataclass(frozen=True)
class Dialogue:
    """Token ids of one dialogue in the target's chat format; the answer starts at `answer`."""

    index: int
    kind: str
    sampled: bool
    answer: int
    ids: list[int]


@dataclass(frozen=True)
class ChatFormat:
    """The token ids around the turns, taken from the chat template itself."""

    before: list[int]
    between: list[int]
    end: int

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
        """Read the format.

        Raises ``SystemExit`` unless the template puts the user turn verbatim between fixed texts.
        """
        probe = "SOMETHING"
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": probe}], tokenize=False, add_generation_prompt=True
        )
        before, found, between = text.partition(probe)
        end = tokenizer.eos_token
        if not found or probe in between or not between.startswith(end):
            raise SystemExit(f"the chat template does not end a user turn with {end!r}: {text!r}")
        outside = (before, between.removeprefix(end))
        first, second = (tokenizer.encode(part, add_special_tokens=False) for part in outside)
        return ChatFormat(first, second, tokenizer.eos_token_id)


def loops(ids: list[int]) -> bool:
    """Return True if `ids` end in LOOPS repetitions of one short piece."""
    for period in range(1, LOOP_TOKENS + 1):
        tail = ids[-LOOPS * period :]
        if len(tail) == LOOPS * period and tail[period:] == tail[:-period]:
            return True
    return False


class Slot:
    """A dialogue being written: first the user turn, then the text between turns, then the answer."""

    def __init__(self, index: int, seed: int, tokenizer: PreTrainedTokenizerBase, form: ChatFormat, length: int):
        self.index, self.tokenizer, self.form, self.length = index, tokenizer, form, length
        self.turn = user_turn(index, seed)
        self.chance = np.random.default_rng([seed, index])
        self.sampled = bool(self.chance.random() < SAMPLED_SHARE)
        self.ids = [*form.before, *tokenizer.encode(self.turn.text, add_special_tokens=False)][: length // 2]
        self.start = len(self.ids)
        self.answer = 0
        if not self.turn.complete:
            self._begin_answer()

    @property
    def temperature(self) -> float:
        if self.answer:
            return ANSWER_TEMPERATURE if self.sampled else 0.0
        return USER_TEMPERATURE

    @property
    def done(self) -> bool:
        if not self.answer or len(self.ids) == self.answer:
            return False
        return len(self.ids) >= self.length or self.ids[-1] == self.form.end or loops(self.ids[self.answer :])

    def take(self, token: int) -> list[int]:
        """Append `token` and the format's tokens after it; return what was appended."""
        before = len(self.ids)
        if self.answer or not self._turn_ends(token):
            self.ids.append(token)
        else:
            self._begin_answer()
        return self.ids[before:]

    def _turn_ends(self, token: int) -> bool:
        written, until = self.ids[self.start :], self.turn.until
        if until and until in self.tokenizer.decode(written):
            return True
        return token == self.form.end or len(written) >= self.turn_limit

    @property
    def turn_limit(self) -> int:
        """The most tokens that the target adds to a user turn."""
        return min(USER_TOKENS, self.length // 4)

    def complete_turn(self, written: list[int]) -> None:
        """End the user turn with the tokens that the target wrote for it, as far as the turn reaches."""
        written = written[: -1 if written[-1:] == [self.form.end] else None]
        if until := self.turn.until:
            sizes = range(len(written) + 1)
            written = written[: bisect_left(sizes, True, key=lambda n: until in self.tokenizer.decode(written[:n]))]
        self.ids += written
        self._begin_answer()

    def _begin_answer(self) -> None:
        until = self.turn.until
        if until and until not in self.tokenizer.decode(self.ids[self.start :]):
            self.ids += self.tokenizer.encode(f"\n    {until}\n", add_special_tokens=False)
        self.ids += [self.form.end, *self.form.between]
        self.answer = len(self.ids)

    def dialogue(self) -> Dialogue:
        return Dialogue(self.index, self.turn.kind, self.sampled, self.answer, self.ids)


def choose(logits: Tensor, slots: list[Slot]) -> list[int]:
    """Choose one token per slot from logits float32 [slots, V], each with its dialogue's own random numbers."""
    tokens: list[int] = logits.argmax(-1).tolist()
    drawn = [i for i, slot in enumerate(slots) if slot.temperature > 0]
    if drawn:
        heat = torch.tensor([slots[i].temperature for i in drawn])
        chances = (logits[drawn] / heat[:, None]).softmax(-1).cumsum(-1)
        numbers = torch.tensor([[slots[i].chance.random()] for i in drawn], dtype=torch.float32)
        places = torch.searchsorted(chances, numbers * chances[:, -1:]).clamp_max(logits.shape[-1] - 1)
        for i, token in zip(drawn, places[:, 0].tolist(), strict=True):
            tokens[i] = token
    return tokens


def write_dialogues(
    decoder: BatchDecoder, tokenizer: PreTrainedTokenizerBase, indices: Iterator[int], seed: int
) -> Iterator[Dialogue]:
    """Yield the dialogues of `indices` as they end. A free slot takes the next dialogue at once."""
    form = ChatFormat.of(tokenizer)
    active: dict[int, Slot] = {}
    waiting: dict[int, list[int]] = {}  # committed tokens that were not decoded yet

    def start(place: int) -> None:
        active.pop(place, None)
        index = next(indices, None)
        if index is not None:
            slot = active[place] = Slot(index, seed, tokenizer, form, decoder.length)
            logits = decoder.prefill(place, torch.tensor(slot.ids))
            waiting[place] = slot.take(choose(logits[None], [slot])[0])

    for place in range(decoder.slots):
        start(place)
    while active:
        ids, at = torch.zeros(2, decoder.slots, dtype=torch.int64)
        for place, slot in active.items():
            ids[place], at[place] = waiting[place][0], len(slot.ids) - len(waiting[place])
        places = list(active)
        chosen = choose(decoder.step(ids, at)[places], list(active.values()))
        for place, token in zip(places, chosen, strict=True):
            slot = active[place]
            if not slot.done:
                waiting[place] = waiting[place][1:] or slot.take(token)
            if slot.done:
                yield slot.dialogue()
                start(place)


def read_dialogues(path: Path) -> list[Dialogue]:
    """Read the complete lines of `path`; skip a last line that a kill cut off."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [Dialogue(**json.loads(line)) for line in lines]


def append_dialogues(
    path: Path, decoder: BatchDecoder, tokenizer: PreTrainedTokenizerBase, indices: list[int], seed: int
) -> None:
    """Append those of `indices` that `path` does not hold yet. An interrupted dialogue is written again.

    Ends when the parent process has ended; waits for another process that still writes to `path`.
    """
    parent = os.getppid()
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        known = read_dialogues(path)
        have = {dialogue.index for dialogue in known}
        whole = "".join(json.dumps(asdict(dialogue)) + "\n" for dialogue in known)
        file.truncate(len(whole.encode()))
        started, reported, tokens = monotonic(), monotonic(), 0
        wanted = (index for index in indices if index not in have)
        for dialogue in write_dialogues(decoder, tokenizer, wanted, seed):
            file.write(json.dumps(asdict(dialogue)) + "\n")
            file.flush()
            tokens += len(dialogue.ids)
            if os.getppid() != parent:
                raise SystemExit("the parent process of this worker has ended")
            if monotonic() - reported > REPORT_EVERY:
                reported = monotonic()
                print(f"{path.name}: {tokens:,} tokens, {tokens / (reported - started):.0f} tokens/s", flush=True)
