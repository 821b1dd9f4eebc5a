"""A whole round on the GPU, captured once in a CUDA graph and replayed without the host.

Target and drafter are tables: the logits of a column are the row of its token, the drafts follow another table. So the
round can be computed on the host by the NumPy references, and must give the same text, with chains of drafts, with
trees and without drafts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from peagle.plugins.kernels.launch import Launcher
from peagle.plugins.ops import OPS
from tests.gpu.on_device import captured, launcher_of

pytestmark = pytest.mark.gpu

VOCAB, ROWS, K, LENGTH, ROUNDS = 499, 6, 5, 400, 24
COLUMNS = K + 1
PLACES = 4  # candidates of a position
CACHES, HEADS, BYTES = (
    3,
    2,
    32,
)  # of an entry, which is the id of its token as often as it fits, plus its cache and head
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

    def launch(
        self, name: str, tensors: list[Any], dims: Mapping[str, int] = MappingProxyType({}), **attributes: int
    ) -> None:
        import torch

        launcher: Launcher = launcher_of(name)
        dims = {"B": ROWS, "E": COLUMNS, "S": COLUMNS, "V": VOCAB, "N": LENGTH, **dims}
        pointers = [tensor.data_ptr() for tensor in tensors]
        launcher.launch(torch.cuda.current_stream().cuda_stream, pointers, dims, attributes, "float32")

    def step(self) -> None:
        """One round; only enqueues. The next window takes the place of this one."""
        self.verify()
        inputs = [self.logits, self.ids, self.window, self.draft, self.forced, self.uniform, *self.policy]
        self.launch("AcceptPrefix", [*inputs, self.tokens, self.counts])
        following = self.following()
        self.ids[:, 0] = self.newest
        for j, scores in enumerate(self.positions()):
            self.ids[:, 1 + j] = scores.argmax(dim=1)
        self.advance(following)

    def verify(self) -> None:
        """The numbers of the positions that the windows may emit, and the logits of their columns."""
        import torch

        window = [self.window, self.draft]
        self.launch("NumbersAt", [self.numbers, self.start, *window, self.uniform], columns=COLUMNS)
        first = (self.window - 1 - self.draft).long()
        at = (first[:, None] + torch.arange(COLUMNS, device="cuda")).clamp(0, COLUMNS - 1)
        self.logits.copy_(self.target[self.ids.gather(1, at)])

    def following(self) -> list[Any]:
        """The start and the lengths of the next windows."""
        import torch

        inputs = [self.ids, self.start, self.window, self.draft, self.tokens, self.counts]
        following = [torch.empty_like(x) for x in (self.start, self.window, self.draft)]
        outputs = [self.row_ids, self.row_is_real, self.emit_rows, self.newest, *following]
        self.launch("PlaceholderDraft", [*inputs, *outputs], mask_token_id=MASK_TOKEN)
        return following

    def positions(self) -> Iterator[Any]:
        """The drafter's scores of every token, by position; it takes the best of the position before."""
        token = self.newest
        for _ in range(K):
            yield self.drafter[token]
            token = self.drafter[token].argmax(dim=1)

    def advance(self, following: list[Any]) -> None:
        for state, new in zip((self.start, self.window, self.draft), following, strict=True):
            state.copy_(new)


class TreeRound(DeviceRound):
    """The same round with trees of drafts, which the host never sees, and caches with an entry for every column."""

    def __init__(self) -> None:
        import torch

        super().__init__()
        self.skipped = torch.zeros((ROWS, COLUMNS), dtype=torch.int64, device="cuda")
        self.path = torch.empty((ROWS, COLUMNS), dtype=torch.int32, device="cuda")
        shape = (CACHES, ROWS + 1, HEADS, LENGTH + COLUMNS, BYTES)  # one row more than there are requests
        self.entries = torch.zeros(shape, dtype=torch.int8, device="cuda")

    def step(self) -> None:
        import torch

        self.verify()
        self.write_entries()
        column = torch.arange(COLUMNS, device="cuda")
        skips = (self.skipped[:, :, None] >> column) & 1
        ancestors = (skips == 0) & (column < column[:, None])
        uniform = self.uniform.gather(1, ancestors.sum(dim=2))  # the window begins with the newest token
        inputs = [self.logits, self.ids, self.window, self.draft, self.forced, uniform, *self.policy, ancestors]
        self.launch("AcceptTree", [*inputs, self.tokens, self.counts, self.path])
        sizes = dict(zip("NPHTW", self.entries.shape, strict=True))
        self.launch("CloseUp", [self.entries, self.start, self.path, self.entries], sizes)
        following = self.following()
        self.ids[:, 0] = self.newest
        likely = [torch.topk(torch.log_softmax(scores, dim=1), PLACES) for scores in self.positions()]
        ids, scores = (torch.stack([getattr(each, name) for each in likely], 1) for name in ("indices", "values"))
        self.launch("GrowTree", [self.ids, ids, scores, self.ids, self.skipped], {"D": K, "C": PLACES})
        self.advance(following)

    def write_entries(self) -> None:
        """Imitate the target's attention: an entry for every column, including drafts that will be rejected."""
        import torch

        rows, columns = torch.arange(ROWS, device="cuda"), torch.arange(COLUMNS, device="cuda")
        entry = self.ids.contiguous().view(torch.int8).reshape(ROWS, COLUMNS, 1, 1, 8).repeat(1, 1, 1, 1, BYTES // 8)
        caches, heads = (torch.arange(n, dtype=torch.int8, device="cuda") for n in (CACHES, HEADS))
        entry = entry + (caches[:, None, None] * HEADS + heads[:, None])
        self.entries[:, rows[:, None], :, self.start[:, None] + columns] = entry


def replays(state: DeviceRound, text: list[list[int]]) -> Iterator[None]:
    """Replay one captured graph until every row of ``text`` is full; stop after each round."""
    import torch

    type(state)().step()  # loads whatever code the capture must not load
    torch.cuda.synchronize()
    replay, rounds = captured(state.step), 0
    while min(map(len, text)) < ROUNDS:
        replay()
        tokens, counts = state.tokens.cpu().numpy(), state.counts.cpu().numpy()
        for b in range(ROWS):
            text[b] += tokens[b, : counts[b]].tolist()
        rounds += 1
        assert rounds <= ROUNDS, "every round emits at least one token per row"
        yield


def replayed(state: DeviceRound) -> tuple[list[list[int]], float]:
    """The text of every row, and the tokens emitted a round."""
    text: list[list[int]] = [[] for _ in range(ROWS)]
    rounds = len([*replays(state, text)])
    return [row[:ROUNDS] for row in text], sum(map(len, text)) / rounds / ROWS


def test_the_captured_round_writes_the_text_of_plain_decoding_on_the_host() -> None:
    plain = on_the_host(0)
    assert on_the_host(K) == plain, "the references themselves must agree"
    text, per_round = replayed(DeviceRound())
    assert text == plain
    assert per_round > 1.2, "some drafts must have been accepted for this to say anything"


def test_a_captured_round_of_trees_writes_the_same_text_and_leaves_an_entry_for_every_token_of_it() -> None:
    state, scattered = TreeRound(), 0
    text: list[list[int]] = [[] for _ in range(ROWS)]
    for _ in replays(state, text):
        path = state.path.cpu().numpy()
        scattered += int(((path > 0) & (path != np.arange(COLUMNS))).sum())
    assert [row[:ROUNDS] for row in text] == on_the_host(0)
    assert scattered > ROWS, "some accepted paths must have left a chain for this to say anything"
    entries, start = state.entries.cpu().numpy(), state.start.cpu().numpy()
    shift = np.arange(CACHES * HEADS, dtype=np.int8).reshape(CACHES, HEADS, 1, 1)
    for b, row in enumerate(text):
        committed = np.array([first_tokens()[b], *row])[: start[b]]
        own = np.tile(committed[:, None].view(np.int8), BYTES // 8)
        np.testing.assert_array_equal(entries[:, b, :, : start[b]], own + shift)
    assert not entries[:, ROWS:].any()


def test_replay_repeats_the_text() -> None:
    assert replayed(DeviceRound())[0] == replayed(DeviceRound())[0]
