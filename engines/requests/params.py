"""Sampling parameters of a request, and their form as graph inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...plugins.errors import UsageError
from ...plugins.graph_contract import POLICY, TENSORS
from .arguments import flag, integer, integers, number, refusal, require_at_most, shown, text_of, texts_of
from .structured_outputs import StructuredOutputsParams, structured_of

GREEDY_BELOW = 1e-5  # smaller temperatures would overflow float32 logits; vLLM uses the same limit
# Limits per request: number and total characters of `stop` and `bad_words`, entries of `logit_bias`, ids in a list.
# They bound the work per token and before the request is queued.
MAX_STOPS = 256
MAX_BAD_WORDS = 1024
MAX_CHARACTERS = 1 << 16
MAX_BIASES = 1 << 16
MAX_IDS = 1 << 19
_FLOAT, _INT = np.finfo(np.float32), np.iinfo(np.int32)


@dataclass(frozen=True)
class SamplingParams:
    """Sampling parameters of a request; names and meanings as in vLLM.

    ``temperature`` 0 is greedy, and so is any value below 1e-5. ``top_k`` <= 0, ``top_p`` 1 and ``min_p`` 0 are off.
    ``seed`` is any int, taken modulo 2**64; None draws a seed, which the result reports. ``stop``, a string or a list
    of strings, ends the text and is not part of it. ``stop_token_ids`` also end the text, even with ``ignore_eos``;
    such a token is the last token id of the result, without text. With ``include_stop_str_in_output``, the stop string,
    or the token if it has text, is part of the text. ``truncate_prompt_tokens`` = n keeps the last n tokens of a longer
    prompt; -1 keeps as many as the context holds in addition to one new token. ``acceptance_tolerance`` > 0 is a lossy
    policy: a draft d is also accepted if p(d) >= (1 - acceptance_tolerance) * max p. The ``Acceptance`` of the result
    reports it. Requests share the prefix cache only with requests of the same ``cache_salt``, any text that is not
    empty; requests without a salt share it with each other.

    ``presence_penalty`` and ``frequency_penalty`` apply to tokens of the text, once and per occurrence.
    ``repetition_penalty`` lowers the logits of tokens in the prompt or the text; 1 is off. ``logit_bias``, a dict or
    pairs, is added to the logits of token ids. ``bad_token_ids`` are never chosen; with ``allowed_token_ids``, only
    those can be chosen. The last token of a bad word (``bad_words``) is not chosen after the word's other tokens,
    unless no other token is left; words are matched by their tokens at the beginning of a text and after a space.
    Before ``min_tokens``, no token is chosen that could end the text, even with ``ignore_eos``. ``logprobs`` = n
    reports the logprob of each token and of the n most likely tokens, from the target's unmodified logits;
    ``prompt_logprobs`` does the same for the prompt. ``structured_outputs`` sets the format of the text; a dict of its
    fields is accepted. Such a text ends where its grammar ends, even before ``min_tokens`` if nothing else may follow.

    An engine that cannot expose logits on the host refuses all parameters of the second paragraph by name. ``stop`` has
    at most 256 strings and ``bad_words`` 1,024, each of 65,536 characters in total; ``logit_bias`` has at most 65,536
    token ids.

    Integers are Python's or NumPy's, not bools or floats. Raises ``UsageError`` with all problems.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    acceptance_tolerance: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    bad_token_ids: Sequence[int] = ()
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] = ()
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        problems = []
        for name, check in _CHECKS.items():
            try:
                object.__setattr__(self, name, check(name, getattr(self, name)))  # the dataclass is frozen
            except UsageError as error:
                problems.append(error)
        if len(problems) == 1:
            raise problems[0]
        if problems:
            raise UsageError("; ".join(each.what for each in problems), fix="change the sampling parameters")
        if self.min_tokens > self.max_tokens:
            raise UsageError(
                f"min_tokens is {self.min_tokens}, which exceeds max_tokens ({self.max_tokens})",
                fix="lower min_tokens, or raise max_tokens",
            )


def _biases(name: str, value: Any) -> tuple[tuple[int, float], ...]:
    """Return biases as pairs of token id and amount, each id once. Raises ``UsageError``."""
    pairs = () if value is None else value.items() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping | list | tuple | None) or not all(
        isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
    ):
        raise refusal(name, "a dict of token ids and biases", value)
    require_at_most(name, len(pairs), MAX_BIASES, "token ids")
    found = [
        (token, float(amount))
        if type(token) is int and token >= 0 and type(amount) in (int, float) and -100 <= amount <= 100
        else (integer(f"a token id of {name}", token, 0), number(f"{name}[{shown(token)}]", amount, -100, 100))
        for token, amount in pairs
    ]
    if len({token for token, _ in found}) < len(found):
        raise refusal(name, "a dict that contains each token id once", value)
    return tuple(sorted(found))


def _ids(name: str, value: Any) -> tuple[int, ...]:
    """Return token ids as a tuple. Raises ``UsageError``."""
    if value is not None and not isinstance(value, list | tuple):
        raise refusal(name, "a list of token ids", value)
    require_at_most(name, len(value or ()), MAX_IDS, "token ids")
    return integers(name, value or (), 0)


def _allowed(name: str, value: Any) -> tuple[int, ...] | None:
    """Return token ids as a tuple; None allows all. Raises ``UsageError``, also for an empty list."""
    if value is not None and isinstance(value, list | tuple) and not value:
        raise UsageError(
            f"{name} is empty",
            why="no token could be chosen",
            fix="remove the parameter, or list at least one token id",
        )
    return None if value is None else _ids(name, value)


def _words(name: str, value: Any) -> tuple[str, ...]:
    """Return words as a tuple. Raises ``UsageError``, also for a word that is only spaces."""
    words = texts_of(name, value, max_count=MAX_BAD_WORDS, max_characters=MAX_CHARACTERS)
    if any(not word.strip() for word in words):
        raise refusal(name, "a str or a list of strings that do not consist only of spaces", value)
    return words


def _count(name: str, value: Any) -> int | None:
    """Return the number of top tokens to report; None for none. Raises ``UsageError``."""
    return None if value is None else integer(name, value, 0, 20)


def _tokens_to_keep(name: str, value: Any) -> int | None:
    """Return the number of prompt tokens to keep; -1 for the context, None for all. Raises ``UsageError``."""
    if value is None or (value == -1 and not isinstance(value, bool | float)):
        return None if value is None else -1
    return integer(name, value, 1, fix=f"set {name} to 1 or more, or to -1 for the context length")


def _salt(name: str, value: Any) -> str | None:
    """Return a salt of the prefix cache, None for none. Raises ``UsageError``, also for an empty one."""
    if value == "":
        raise UsageError(
            f"{name} is empty",
            why="an empty salt is easy to guess",
            fix="set the salt to a secret string, or remove the parameter",
        )
    return None if value is None else text_of(name, value)


_CHECKS: Mapping[str, Callable[[str, Any], Any]] = {
    "max_tokens": lambda name, value: integer(name, value, 1),
    "temperature": lambda name, value: number(name, value, 0),
    "top_k": integer,
    "top_p": lambda name, value: number(name, value, 0, 1, is_above=True),
    "min_p": lambda name, value: number(name, value, 0, 1),
    "seed": lambda name, value: None if value is None else integer(name, value),
    "stop": lambda name, value: texts_of(name, value, max_count=MAX_STOPS, max_characters=MAX_CHARACTERS),
    "stop_token_ids": _ids,
    "ignore_eos": flag,
    "acceptance_tolerance": lambda name, value: number(name, value, 0, 1),
    "presence_penalty": lambda name, value: number(name, value, -2, 2),
    "frequency_penalty": lambda name, value: number(name, value, -2, 2),
    "repetition_penalty": lambda name, value: number(name, value, 0, 2, is_above=True),
    "logit_bias": _biases,
    "bad_token_ids": _ids,
    "allowed_token_ids": _allowed,
    "bad_words": _words,
    "min_tokens": lambda name, value: integer(name, value, 0),
    "logprobs": _count,
    "prompt_logprobs": _count,
    "structured_outputs": structured_of,
    "include_stop_str_in_output": flag,
    "truncate_prompt_tokens": _tokens_to_keep,
    "cache_salt": _salt,
}


def params_of(params: Any, count: int) -> list[SamplingParams]:
    """Return one policy per prompt; None is the default. Raises ``UsageError``."""
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, list | tuple):
        raise refusal("params", "SamplingParams or a list of them", params)
    for index, each in enumerate(params):
        if not isinstance(each, SamplingParams):
            raise refusal(f"params[{index}]", "SamplingParams", each)
    if len(params) != count:
        raise UsageError(
            f"params has {len(params)} SamplingParams for {count} prompts",
            fix="pass one for all prompts, or one for each prompt",
        )
    return list(params)


def policy_of(params: SamplingParams) -> dict[str, np.ndarray]:
    """Return the sampling inputs of one row, each ``[1]`` in the graph's dtype, clipped to its range."""
    cut = {
        "temperature": 0.0 if params.temperature < GREEDY_BELOW else min(params.temperature, float(_FLOAT.max)),
        "top_k": min(max(params.top_k, 0), int(_INT.max)),
        "top_p": max(params.top_p, float(_FLOAT.tiny)),
    }
    values = {"tolerance": params.acceptance_tolerance, **vars(params), **cut}
    return {name: np.array([values[name]], TENSORS[name].dtype) for name in POLICY}
