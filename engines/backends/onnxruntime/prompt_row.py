"""A single cache row, for prompt chunks and for checks, with its own window as wide as the chunk.

Both graphs are bound to the same arrays, once per shape: the drafter reads the target's output in place.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....plugins.graph_contract import ANCESTORS, written
from ...draft_methods.draft_tree import chain_ancestors
from .loaded_graphs import LOGITS, bind, run, run_for_logits
from .memory import Arrays, SlotArrays
from .pending_columns import FREED, PendingColumns, read_pending
from .sessions import Sessions
from .window import NextWindow, WindowArrays

_WAITING = 64  # columns of small chunks that a drafter pass reads together


class PromptRow:
    """A window of up to ``columns`` columns, the outputs of both graphs, and the bindings of every shape."""

    def __init__(self, sessions: Sessions, slot: SlotArrays, columns: int, emitted: int) -> None:
        i64, i32, f32 = np.int64, np.int32, np.float32
        columns = max(columns, sessions.min_columns)
        self.window, self.forced_next = WindowArrays(columns), np.full(1, -1, i64)
        self.tokens, self.num_tokens = np.zeros((1, emitted), i32), np.zeros(1, i32)
        self._uniform = np.zeros((1, emitted), f32)
        self._features = np.zeros((1, columns, sessions.features), f32)
        self._next = WindowArrays(emitted)
        self._committed: Arrays = {"window_len": np.zeros(1, i32), "draft_len": np.zeros(1, i32)}
        self._sessions, self._slot = sessions, slot
        self.held = PendingColumns(sessions.max_held)  # shared by all rows of a request
        self._chain = sessions.chain(1)
        self._chained = 0  # drafts made by further passes of an autoregressive drafter
        self._targets: dict[tuple[int, int, bool], Any] = {}
        self._ancestors: dict[int, np.ndarray] = {}  # by columns; keeps the bound arrays alive
        self._drafters: dict[tuple[int, int], Any] = {}

    def choose_as(self, arrays: SlotArrays) -> None:
        """Choose tokens by the policy, the numbers and the choice of ``arrays`` from now on; bindings stay valid."""
        self._slot.take(arrays)

    def forget_choice(self) -> None:
        """Drop the numbers and the choice of a request, which has ended before another one uses this row."""
        self._slot.numbers, self._slot.choice = np.zeros(0, np.float32), None

    def verify(self, columns: int, emitted: int) -> None:
        """Run one target pass. Column p decides position p + 1, using the random number of that position."""
        self.held.resume_at(int(self.window.start[0]))
        first = int(self.window.start[0]) + self.window.committed
        numbers = self._slot.numbers[first : first + emitted]
        self._uniform[0, : len(numbers)] = numbers
        choice = self._slot.choice if self.forced_next[0] < 0 else None
        binding = self.target(columns, emitted, shows_logits=choice is not None)
        if choice is None:
            run(self._sessions.target, binding)
        else:
            logits = run_for_logits(self._sessions.target, binding)
            chosen = choice.emit(logits[0], self.window.drafts(), self._uniform[0], self.emitted())
            self.num_tokens[0], self.tokens[0, : len(chosen)] = len(chosen), chosen
        self.tokens[0, self.num_tokens[0] :] = -1

    def score(self, columns: int) -> np.ndarray:
        """Run one target pass over a chunk that is not the prompt's last, and return its logits, f32 [columns,V]."""
        self.window.draft_len[0] = columns - 1  # makes every column an emission column; the emitted tokens are forced
        logits = run_for_logits(self._sessions.target, self.target(columns, columns, shows_logits=True))
        self.window.draft_len[0] = 0
        self.tokens[0, self.num_tokens[0] :] = -1
        return np.asarray(logits[0])

    def target(self, columns: int, emitted: int, *, shows_logits: bool = False) -> Any:
        """Return the target's binding for this shape."""
        columns = max(columns, self._sessions.min_columns)
        key = columns, emitted, shows_logits
        if key not in self._targets:
            caches = self._slot.target_caches
            inputs: Arrays = self.window.arrays(columns) | self._slot.policy | caches
            inputs |= {"forced_next": self.forced_next, "uniform": self._uniform[:, :emitted]}
            if self._sessions.takes_ancestors:
                inputs[ANCESTORS] = self._ancestors[columns] = chain_ancestors(columns)[None]
            outputs: Arrays = {"tokens": self.tokens[:, :emitted], "num_tokens": self.num_tokens}
            outputs |= {"aux_hidden": self._features[:, :columns]} if self._sessions.features else {}
            outputs |= {written(n): c for n, c in caches.items()}
            self._targets[key] = bind(self._sessions.target, inputs, outputs)
            if shows_logits:
                self._targets[key].bind_output(LOGITS)
        return self._targets[key]

    def emitted(self) -> list[int]:
        """Return the tokens that the last pass emitted."""
        tokens: list[int] = self.tokens[0, : self.num_tokens[0]].tolist()
        return tokens

    def can_wait(self, columns: int) -> bool:
        """Return True if the drafter may read the deferred columns, and so many more, later in one pass.

        That pass takes about as long as one over few columns, so running requests wait no longer for it.
        """
        return self.held.count + columns <= min(_WAITING, self.held.capacity)

    def draft(self, k: int) -> None:
        """Run one drafter pass over the columns that ``verify`` committed, after the deferred ones."""
        self._read_held()
        run(self._sessions.drafter, self.drafter(k))
        self._chained = 1

    def extend(self) -> None:
        """Run an autoregressive drafter over its last draft, to get the next one."""
        following, column = self._next, self._chained
        if self._chain:
            last, position = int(following.input_ids[0, column]), int(following.start[0]) + column - 1
            (draft,) = self._chain.extend(0, [last], [position], self._slot.drafter_caches)
            self._chained = column + 1
            following.input_ids[0, self._chained] = draft

    def defer(self) -> None:
        """Defer the columns that ``verify`` committed to the next drafter pass.

        If they do not fit, the first deferred ones are read now.
        """
        count = self.window.committed - 1 + int(self.num_tokens[0])
        if not self.held.has_room(count):
            self._read_held(max(count, FREED))
        if self.held.has_room(count):
            ids = self.window.input_ids[0, :count].tolist()
            self.held.add(ids, self._features[0, :count], int(self.window.start[0]))
        else:
            self.draft(1)

    def drafter(self, k: int) -> Any:
        """Return the drafter's binding for exactly the columns that the last ``verify`` committed.

        The drafter reads the target's arrays in place and skips rejected columns.
        """
        emitted = int(self.num_tokens[0])
        count = self.window.committed - 1 + emitted
        self._committed["window_len"][0], self._committed["draft_len"][0] = count, emitted - 1
        if (count, k) not in self._drafters:
            ids, features = self.window.input_ids[:, :count], self._features[:, :count]
            columns: Arrays = {"input_ids": ids, "aux_hidden": features, "start": self.window.start}
            self._drafters[count, k] = self._bound(k, columns)
        return self._drafters[count, k]

    def draft_logits(self, k: int) -> np.ndarray:
        """Draft, and return the logits of the ``k`` drafts, f32 [K,Vd]."""
        binding = self.drafter(k)
        binding.bind_output("draft_logits")
        self.draft(k)
        logits = [np.asarray(binding.get_outputs()[-1].numpy()[0])]
        if self._chain and k > 1:
            binding = self._chain.binding(0, 1, self._slot.drafter_caches)
            binding.bind_output("draft_logits")
            for _ in range(k - 1):
                self.extend()
                logits.append(np.array(binding.get_outputs()[-1].numpy()[0]))
        return np.concatenate(logits)

    def _read_held(self, max_columns: int | None = None) -> None:
        following, caches = int(self.window.input_ids[0, 0]), self._slot.drafter_caches
        read_pending(self._sessions.drafter, self.held, following, caches, self._chain, 0, max_columns)

    def _bound(self, k: int, columns: Arrays) -> Any:
        caches = self._slot.drafter_caches
        inputs = columns | self._committed | caches
        inputs |= {"tokens": self.tokens[:, : k + 1], "num_tokens": self.num_tokens}
        outputs = {f"next_{name}": array for name, array in self._next.arrays(self._sessions.emitted(k)).items()}
        if self._chain:
            inputs, outputs = inputs | self._chain.reads(0, 1), outputs | self._chain.writes(0, 1)
        return bind(self._sessions.drafter, inputs, outputs | {written(n): c for n, c in caches.items()})

    def advance(self, k: int, following: NextWindow) -> None:
        """Lay out ``following``, the window after the prompt."""
        if k:
            newest, *drafts = self._next.input_ids[0, : k + 1].tolist()
            following.fill(newest, drafts, int(self._next.start[0]))
        else:
            emitted = self.emitted()
            start = int(self.window.start[0]) + self.window.committed - 1 + len(emitted)
            following.fill(emitted[-1], (), start)
