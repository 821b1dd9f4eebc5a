"""Tokens that the host chooses from the target's logits: penalties, biases, bans; and logprobs of whatever is chosen.

A token depends on the ones before it alone, so drafts change nothing: column by column, each knows what was emitted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...plugins.errors import UsageError
from ..folder.manifest import Manifest
from .params import SamplingParams, policy_of
from .results import TokenLogprob

_CHANGING = {
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": (),
    "bad_token_ids": (), "min_tokens": 0,
}  # fmt: skip


def options_of(params: SamplingParams) -> list[str]:
    """Return the names of those options of a request for which the host must see the target's logits."""
    changing = [name for name, off in _CHANGING.items() if getattr(params, name) != off]
    return changing if params.logprobs is None else [*changing, "logprobs"]


def choice_of(
    params: SamplingParams, prompt: Sequence[int], ends: frozenset[int], manifest: Manifest, *, shows_logits: bool
) -> TokenChoice | None:
    """Return what chooses on the host, None where nothing need; ``ends`` are the ids that end the text.

    Raises ``UsageError`` for what the engine's backend cannot do, and for ids that its vocabulary does not have.
    """
    options = options_of(params)
    if not options:
        return None
    if not shows_logits:
        raise UsageError(
            f"this engine cannot do {', '.join(options)}",
            why=f"the target's logits must be on the host for that, and {manifest.backend.name} does not show them",
            fix="leave that out, or build an engine with --backend onnxruntime",
        )
    return TokenChoice(params, prompt, ends, manifest.shapes.vocab_size)


class TokenChoice:
    """Chooses the tokens of one request, and keeps what that depends on.

    As in vLLM: banned ids and, before ``min_tokens``, ``ends`` are out; then biases are added; then what is in the
    prompt or the text is less likely by ``repetition_penalty``, what is in the text by the other two. What remains is
    drawn by the graph's own rule. ``logprobs`` has an entry for each token emitted, of the logits as they were.
    """

    def __init__(self, params: SamplingParams, prompt: Sequence[int], ends: frozenset[int], vocab: int) -> None:
        """Raises ``UsageError`` for ids that the vocabulary of ``vocab`` does not have, and where all are banned."""
        biases = dict(params.logit_bias)
        ids = {"logit_bias": biases, "bad_token_ids": params.bad_token_ids}
        for name, given in ids.items():
            if bad := [i for i in given if i >= vocab]:
                raise UsageError(
                    f"{name}: token id {bad[0]} is out of range",
                    why=f"the target's vocabulary has ids 0..{vocab - 1}",
                    fix=f"change {name}",
                )
        ends = ends if params.min_tokens else frozenset()
        if len(ends.union(params.bad_token_ids)) >= vocab:
            raise UsageError("bad_token_ids bans every token", why="there is none left to choose", fix="ban fewer")
        self._params, self._policy = params, {name: each[0] for name, each in policy_of(params).items()}
        self._changes = options_of(params) not in ([], ["logprobs"])
        self._ends = np.array(sorted(ends), np.int64)
        self._banned = np.array(sorted(set(params.bad_token_ids)), np.int64)
        self._biased, self._bias = np.array([*biases], np.int64), np.array([*biases.values()], np.float32)
        self._repeated = np.zeros(vocab, bool)
        self._repeated[list(prompt)] = True
        self._counts = np.zeros(vocab, np.float32)
        self._length = 0
        self.logprobs: list[TokenLogprob] = []

    def emit(self, logits: np.ndarray, drafts: Sequence[int], uniform: np.ndarray, emitted: Sequence[int]) -> list[int]:
        """Return what a pass emits for this request, whose next tokens are these.

        ``logits`` f32 [columns, V] and ``uniform`` [columns] are those of the emission columns; column j
        decides about ``drafts[j]``. ``emitted`` is what the graph emits, and stays where only logprobs are asked for.
        """
        chosen: list[int] = []
        while len(chosen) <= len(drafts):
            at = len(chosen)
            draft = drafts[at] if at < len(drafts) else -1
            token = self._chosen(logits[at], uniform[at], draft) if self._changes else emitted[at]
            chosen.append(token)
            self._add(token, logits[at])
            if token != draft:
                break
        return chosen

    def _chosen(self, logits: np.ndarray, uniform: float, draft: int) -> int:
        """The token of one column: the draft where it agrees, or is near enough for a lossy policy."""
        from ...plugins.ops.accept_prefix.reference import draw, tolerable

        policy, changed = self._policy, self._changed(logits)
        if tolerable(changed, draft, policy["temperature"], policy["tolerance"]):
            return draft
        cuts = int(policy["top_k"]), float(policy["top_p"]), policy["min_p"]
        return draw(changed, uniform, policy["temperature"], *cuts)

    def _changed(self, logits: np.ndarray) -> np.ndarray:
        """The logits after bans, biases and penalties, f32 [V]."""
        params, changed = self._params, logits.astype(np.float32)  # a copy
        changed[self._banned] = -np.inf
        if self._length < params.min_tokens:
            changed[self._ends] = -np.inf
        changed[self._biased] += self._bias
        if params.repetition_penalty != 1:
            penalty = np.float32(params.repetition_penalty)
            weaker = np.where(changed > 0, changed / penalty, changed * penalty)
            changed = np.where(self._repeated, weaker, changed)
        if params.frequency_penalty or params.presence_penalty:
            changed -= np.float32(params.frequency_penalty) * self._counts
            changed -= np.float32(params.presence_penalty) * (self._counts > 0)
        return changed

    def _add(self, token: int, logits: np.ndarray) -> None:
        self._length += 1
        self._repeated[token] = True
        self._counts[token] += 1
        if self._params.logprobs is not None:
            self.logprobs.append(_logprob(token, logits, self._params.logprobs))


def _logprob(token: int, logits: np.ndarray, count: int) -> TokenLogprob:
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    best = np.argpartition(-wide, count - 1)[:count] if count else np.empty(0, np.int64)
    best = best[np.lexsort((best, -wide[best]))]
    top = tuple((int(i), float(wide[i])) for i in best)
    return TokenLogprob(token, float(wide[token]), 1 + int((wide > wide[token]).sum()), top)
