"""A whole round on the GPU, captured once in a CUDA graph and replayed without the host in between.

Target and drafter are tables: the logits of a column are the row of its token, the drafts follow another table. So the
round can be computed on the host by the NumPy references, and must give the same text, with speculation and without.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from peagle.plugins.kernels.launch import Launcher
from peagle.plugins.ops import OPS
from tests.gpu.on_device import captured, launcher_of

pytestmark = pytest.mark.gpu

VOCAB, ROWS, K, LENGTH, ROUNDS = 499, 6, 5, 400, 40
COLUMNS = K + 1
MASK_TOKEN = VOCAB - 1
TEMPERATURE = np.array([0, 0, 1, 0.7, 1.3, 1], np.float32)
TOP_K = np.array([0, 0, 0, 20, 0, 0], np.int32)
TOP_P = np.array([1, 1, 1, 1, 0.9, 1], np.float32)
MIN_P = np.array([0, 0, 0, 0, 0, 0.05], np.float32)


def tables() -> tuple[Any, Any]:
    """The target's logits by token, and the drafter's: nearly the same, so that some drafts are accepted."""
    rng = np.random.default_rng(11)
    target = (rng.normal(size=(VOCAB, VOCAB)) * 4).astype(np.float32)
    return target, target + (rng.normal(size=(VOCAB, VOCAB))).astype(np.float32)


def numbers() -> Any:
    return np.random.default_rng(12).random((ROWS, LENGTH), np.float32)


def first_tokens() -> Any:
    return np.arange(ROWS) * 31 % VOCAB


def on_the_host(k: int) -> list[list[int]]:
    """The text of every row by the references, with k drafts a round (0: plain decoding)."""
    target, drafter = tables()
    table = numbers()
    text: list[list[int]] = [[] for _ in range(ROWS)]
    for b in range(ROWS):
        token, start = int(first_tokens()[b]), 0
        drafts: list[int] = []
        while len(text[b]) < ROUNDS:
            window = np.array([[token, *drafts] + [0] * (COLUMNS - 1 - len(drafts))])
            lengths = [np.array([1 + len(drafts)], np.int32), np.array([len(drafts)], np.int32)]
            (uniform,) = OPS["NumbersAt"].reference(table[b : b + 1], np.array([start]), *lengths, columns=COLUMNS)
            row = slice(b, b + 1)
            policy = [TEMPERATURE[row], TOP_K[row], TOP_P[row], MIN_P[row], np.zeros(1, np.float32)]
            tokens, counts = OPS["AcceptPrefix"].reference(
                target[window], window, *lengths, np.array([-1]), uniform, *policy
            )
            emitted = [int(t) for t in tokens[0, : counts[0]]]
            text[b] += emitted
            start += len(emitted)
            token = emitted[-1]
            drafts = []
            for _ in range(k):
                drafts.append(int(np.argmax(drafter[drafts[-1] if drafts else token])))
    return [row[:ROUNDS] for row in text]


class DeviceRound:
    """The state of a round on the device, and what changes it."""

    def __init__(self) -> None:
        import torch

        def on_gpu(array: Any) -> Any:
            return torch.from_numpy(np.ascontiguousarray(array)).cuda()

        self.target, self.drafter = map(on_gpu, tables())
        self.numbers = on_gpu(numbers())
        self.ids = torch.zeros((ROWS, COLUMNS), dtype=torch.int64, device="cuda")
        self.ids[:, 0] = on_gpu(first_tokens())
        self.start = torch.zeros(ROWS, dtype=torch.int64, device="cuda")
        self.window = torch.ones(ROWS, dtype=torch.int32, device="cuda")
        self.draft = torch.zeros(ROWS, dtype=torch.int32, device="cuda")
        self.forced = torch.full((ROWS,), -1, dtype=torch.int64, device="cuda")
        self.policy = [on_gpu(x) for x in (TEMPERATURE, TOP_K, TOP_P, MIN_P, np.zeros(ROWS, np.float32))]
        self.uniform = torch.empty((ROWS, COLUMNS), dtype=torch.float32, device="cuda")
        self.logits = torch.empty((ROWS, COLUMNS, VOCAB), dtype=torch.float32, device="cuda")
        self.tokens = torch.empty((ROWS, COLUMNS), dtype=torch.int32, device="cuda")
        self.counts = torch.empty(ROWS, dtype=torch.int32, device="cuda")
        rows = COLUMNS + COLUMNS - 2
        integers = {"dtype": torch.int64, "device": "cuda"}
        self.row_ids = torch.empty((ROWS, rows), **integers)
        self.row_is_real = torch.empty((ROWS, rows), dtype=torch.bool, device="cuda")
        self.emit_rows = torch.empty((ROWS, K), **integers)
        self.newest = torch.empty(ROWS, **integers)

    def launch(self, name: str, tensors: list[Any], **attributes: int) -> None:
        import torch

        launcher: Launcher = launcher_of(name)
        dims = {"B": ROWS, "E": COLUMNS, "S": COLUMNS, "V": VOCAB, "N": LENGTH}
        pointers = [tensor.data_ptr() for tensor in tensors]
        launcher.launch(torch.cuda.current_stream().cuda_stream, pointers, dims, attributes, "float32")

    def step(self) -> None:
        """One round; only enqueues. The next window takes the place of this one."""
        import torch

        window = [self.window, self.draft]
        self.launch("NumbersAt", [self.numbers, self.start, *window, self.uniform], columns=COLUMNS)
        first = (self.window - 1 - self.draft).long()
        at = (first[:, None] + torch.arange(COLUMNS, device="cuda")).clamp(0, COLUMNS - 1)
        self.logits.copy_(self.target[self.ids.gather(1, at)])
        inputs = [self.logits, self.ids, *window, self.forced, self.uniform, *self.policy]
        self.launch("AcceptPrefix", [*inputs, self.tokens, self.counts])
        inputs = [self.ids, self.start, *window, self.tokens, self.counts]
        following = [torch.empty_like(x) for x in (self.start, self.window, self.draft)]
        outputs = [self.row_ids, self.row_is_real, self.emit_rows, self.newest, *following]
        self.launch("PlaceholderDraft", [*inputs, *outputs], mask_token_id=MASK_TOKEN)
        token = self.newest
        self.ids[:, 0] = token
        for j in range(K):
            token = self.drafter[token].argmax(dim=1)
            self.ids[:, 1 + j] = token
        for state, new in zip((self.start, self.window, self.draft), following, strict=True):
            state.copy_(new)


def replayed() -> tuple[list[list[int]], float]:
    """The text of every row by replays of one captured graph, and the tokens emitted a round."""
    import torch

    DeviceRound().step()  # loads whatever code the capture must not load
    torch.cuda.synchronize()
    state = DeviceRound()
    replay = captured(state.step)
    text: list[list[int]] = [[] for _ in range(ROWS)]
    rounds = 0
    while min(map(len, text)) < ROUNDS:
        replay()
        tokens, counts = state.tokens.cpu().numpy(), state.counts.cpu().numpy()
        for b in range(ROWS):
            text[b] += tokens[b, : counts[b]].tolist()
        rounds += 1
        assert rounds <= ROUNDS, "every round emits at least one token per row"
    return [row[:ROUNDS] for row in text], sum(map(len, text)) / rounds / ROWS


def test_the_captured_round_writes_the_text_of_plain_decoding_on_the_host() -> None:
    plain = on_the_host(0)
    assert on_the_host(K) == plain, "the references themselves must agree"
    text, per_round = replayed()
    assert text == plain
    assert per_round > 1.2, "some drafts must have been accepted for this to say anything"


def test_replay_repeats_the_text() -> None:
    assert replayed()[0] == replayed()[0]
