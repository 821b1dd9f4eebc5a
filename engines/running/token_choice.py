"""Tokens chosen on the host from the target's logits: penalties, biases, bans and grammars; and logprobs.

A token depends only on the tokens before it, so drafts change nothing: columns are processed in order, and each knows
what was emitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np

from ...plugins.errors import UsageError
from ..grammars.path import GrammarPath
from ..requests.params import SamplingParams, policy_of
from ..requests.results import TokenLogprob
from .bad_words import BadWords, require_possible
from .logprobs import logprob_of

_CHANGING = {
    "presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "logit_bias": (),
    "bad_token_ids": (), "allowed_token_ids": None, "bad_words": (), "min_tokens": 0,
    "structured_outputs": None,
}  # fmt: skip
_LOGPROB_OPTIONS = ("logprobs", "prompt_logprobs")
_MIN_PENALTY = 1e-30  # smaller ones would overflow float32 to inf, and turn banned logits into NaN


def options_of(params: SamplingParams) -> list[str]:
    """Return the names of the request's options that need the target's logits on the host."""
    changing = [name for name, off in _CHANGING.items() if getattr(params, name) != off]
    return changing + [name for name in _LOGPROB_OPTIONS if getattr(params, name) is not None]


def choice_of(
    params: SamplingParams,
    prompt: Sequence[int],
    end_ids: frozenset[int],
    bad_words: Sequence[Sequence[int]],
    vocab_size: int,
    *,
    grammar: Callable[[], GrammarPath | None] = lambda: None,
) -> TokenChoice | None:
    """Return an object that chooses tokens on the host, or None if it is not needed.

    ``end_ids`` are the ids that may end the text, ``bad_words`` the tokens of its bad words, and ``grammar`` creates
    the state of its grammar. Raises ``UsageError`` for ids outside the vocabulary.
    """
    _check_ids(params, vocab_size)
    require_possible(bad_words, vocab_size)
    options = options_of(params)
    if not options or options == ["prompt_logprobs"]:
        return None
    return TokenChoice(params, prompt, end_ids, bad_words, vocab_size, grammar())


def _check_ids(params: SamplingParams, vocab: int) -> None:
    """Raise ``UsageError`` for ids outside a vocabulary of ``vocab`` tokens."""
    ids = {"logit_bias": tuple(dict(params.logit_bias)), "allowed_token_ids": params.allowed_token_ids or ()}
    ids |= {name: tuple(getattr(params, name)) for name in ("bad_token_ids", "stop_token_ids")}
    for name, given in ids.items():
        if bad := [i for i in given if i >= vocab]:
            raise UsageError(
                f"{name}: token id {bad[0]} is out of range",
                why=f"the ids of the target's vocabulary are 0 to {vocab - 1}",
                fix=f"change {name}",
            )


class TokenChoice:
    """Chooses the tokens of one request on the host.

    The order is vLLM's. First, bans: ids that the grammar does not allow, banned or not allowed ids, the ends of bad
    words and, before ``min_tokens``, ``end_ids`` (unless the grammar leaves nothing else). Then biases are added. Then
    penalties: ``repetition_penalty`` for tokens of the prompt and the text, the other two for tokens of the text. The
    rest is sampled as in the graph. ``logprobs`` has an entry per emitted token, from the unmodified logits.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        end_ids: frozenset[int],
        bad_words: Sequence[Sequence[int]],
        vocab: int,
        grammar: GrammarPath | None = None,
    ) -> None:
        """Raise ``UsageError`` if every id of the vocabulary is banned."""
        banned = _banned(params, vocab)
        self._ends = np.array(sorted(end for end in end_ids if end < vocab), np.int64)
        banned[self._ends if params.min_tokens else []] = True
        if banned.all():
            options = ", ".join(set(options_of(params)) & {"bad_token_ids", "allowed_token_ids", "min_tokens"})
            raise UsageError(f"{options}: every token is banned", why="no token can be chosen", fix="ban fewer tokens")
        self._params, self._policy = params, {name: each[0] for name, each in policy_of(params).items()}
        self._changes = any(name not in _LOGPROB_OPTIONS for name in options_of(params))
        self._penalizes_repeated = params.repetition_penalty != 1
        self._penalizes_counts = bool(params.frequency_penalty or params.presence_penalty)
        self._grammar = grammar
        self._words = BadWords(bad_words)
        biases = dict(params.logit_bias)
        self._biased, self._bias = np.array([*biases], np.int64), np.array([*biases.values()], np.float32)
        self._prompt, self._vocab = prompt, vocab
        self._length = 0
        self.logprobs: list[TokenLogprob] = []

    # Arrays as long as the vocabulary are made for the first token: many requests may wait.

    @cached_property
    def _banned(self) -> np.ndarray:
        """The ids that are banned throughout the text."""
        return np.flatnonzero(_banned(self._params, self._vocab))

    @cached_property
    def _repeated(self) -> np.ndarray:
        """Flags of the ids that are in the prompt or the text, bool [V]."""
        repeated = np.zeros(self._vocab, bool)
        repeated[list(self._prompt)] = True
        return repeated

    @cached_property
    def _counts(self) -> np.ndarray:
        """Number of times that each id is in the text, f32 [V]."""
        return np.zeros(self._vocab, np.float32)

    def emit(self, logits: np.ndarray, drafts: Sequence[int], uniform: np.ndarray, emitted: Sequence[int]) -> list[int]:
        """Return the tokens that a pass emits for this request.

        ``logits`` f32 [columns, V] and ``uniform`` [columns] are those of the emission columns; column j decides about
        ``drafts[j]``. ``emitted`` is the graph's own emission, which is returned unchanged if only logprobs are
        requested.
        """
        chosen: list[int] = []
        while len(chosen) <= len(drafts):
            at = len(chosen)
            draft = drafts[at] if at < len(drafts) else -1
            token = self._chosen(logits[at], uniform[at], draft) if self._changes else emitted[at]
            chosen.append(token)
            self._add(token, logits[at])
            if token != draft or self.failure:
                break
        if self._grammar:
            self._grammar.verified(len(chosen) - 1)
        return chosen

    def drafts(self, own_drafts: Sequence[int], max_drafts: int) -> Sequence[int]:
        """Return the drafts that a pass verifies instead of a drafter's ``own_drafts``, at most ``max_drafts``."""
        return self._grammar.drafts(own_drafts, max_drafts) if self._grammar else own_drafts

    @property
    def grammar(self) -> GrammarPath | None:
        """The state of the text in its grammar, if it has one."""
        return self._grammar

    @property
    def failure(self) -> UsageError | None:
        """The error after which no token can be chosen; the last chosen tokens are then invalid."""
        return self._grammar.failure if self._grammar else None

    def _chosen(self, logits: np.ndarray, uniform: float, draft: int) -> int:
        """Return the token of one column: the draft if it matches, or is close enough for a lossy policy."""
        from ...plugins.ops.accept_prefix.reference import draw, is_within_tolerance

        policy, changed = self._policy, self._changed(logits)
        if self.failure:
            return int(np.argmax(logits))  # never read
        if is_within_tolerance(changed, draft, policy["temperature"], policy["tolerance"]):
            return draft
        cuts = int(policy["top_k"]), float(policy["top_p"]), policy["min_p"]
        return draw(changed, uniform, policy["temperature"], *cuts)

    def _changed(self, logits: np.ndarray) -> np.ndarray:
        """Return the logits after bans, biases and penalties, f32 [V]."""
        params, changed = self._params, logits.astype(np.float32)  # a copy
        if self._grammar:
            changed[~self._grammar.allowed()] = -np.inf
        changed[self._banned] = -np.inf
        if self._length < params.min_tokens:
            _ban(changed, self._ends)
        if self._grammar and np.isneginf(changed).all():
            self._grammar.fail("every allowed token is banned")
        if self._words:
            _ban(changed, self._words.completing())
        changed[self._biased] += self._bias
        if self._penalizes_repeated:
            penalty = np.float32(max(params.repetition_penalty, _MIN_PENALTY))
            penalized = np.where(changed > 0, changed / penalty, changed * penalty)
            changed = np.where(self._repeated, penalized, changed)
        if self._penalizes_counts:
            changed -= np.float32(params.frequency_penalty) * self._counts
            changed -= np.float32(params.presence_penalty) * (self._counts > 0)
        return changed

    def _add(self, token: int, logits: np.ndarray) -> None:
        self._length += 1
        self._words.add(token)
        if self._penalizes_repeated:
            self._repeated[token] = True
        if self._penalizes_counts:
            self._counts[token] += 1
        if self._grammar:
            self._grammar.advance(token)
        if self._params.logprobs is not None:
            self.logprobs.append(logprob_of(token, logits, self._params.logprobs))


def _banned(params: SamplingParams, vocab: int) -> np.ndarray:
    """Return flags of the ids that are banned by ``bad_token_ids`` or ``allowed_token_ids``, bool [V]."""
    allowed = params.allowed_token_ids
    banned = np.zeros(vocab, bool) if allowed is None else np.ones(vocab, bool)
    banned[list(allowed or ())] = False
    banned[list(params.bad_token_ids)] = True
    return banned


def _ban(changed: np.ndarray, ids: Sequence[int] | np.ndarray) -> None:
    """Ban ids, unless no other is left."""
    before = changed[ids]
    changed[ids] = -np.inf
    if np.isneginf(changed).all():
        changed[ids] = before
