"""Converts the tensors of a request to engine options. Every tensor that changes the answer is honoured or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ....plugins.errors import UsageError, nearest
from ...policy.drafts_per_round import AUTO, NumSpeculativeTokens
from ...requests.params import SamplingParams

# Tensor -> sampling parameter. Tensor names are those of TensorRT-LLM's models, and vLLM's for the rest.
SAMPLING = {
    "max_tokens": "max_tokens", "min_tokens": "min_tokens", "temperature": "temperature", "top_k": "top_k",
    "top_p": "top_p", "min_p": "min_p", "random_seed": "seed", "stop_words": "stop", "bad_words": "bad_words",
    "ignore_eos": "ignore_eos",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
}  # fmt: skip
JSON = "sampling_parameters"
_PROMPTS = ("text_input", "messages", "input_ids")
_COUNT = "num_speculative_tokens"
_OF_DRAFTS = (_COUNT, "draft")
_AUTO = -1  # stands for "auto", because this tensor holds integers
_NOT_REPORTED = frozenset({"logprobs", "prompt_logprobs"})  # no output tensor exists for them
_PARAMS = frozenset(field.name for field in fields(SamplingParams)) - _NOT_REPORTED
_SEVERAL = ("stop", "bad_words")
# Request parameters that Triton and its clients set by themselves and that do not change the text.
_OF_TRITON = ("id", "priority", "timeout", "binary_data_output", "sequence_id", "sequence_start", "sequence_end")
_DIGITS = 19


@dataclass(frozen=True)
class TensorOptions:
    """Options of a request: a ``prompt`` (text or token ids), or ``messages`` with the fields that belong to them."""

    prompt: str | tuple[int, ...] | None
    messages: Any
    template_arguments: Any
    params: SamplingParams
    num_speculative_tokens: NumSpeculativeTokens | None
    draft: str | None
    streams: bool
    shows_ids: bool


class InputTensors:
    """The input tensors of a request, by name."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def texts(self, name: str) -> list[str]:
        """Return all strings of a tensor. Raises ``UsageError`` for bytes that are not UTF-8."""
        found = []
        for each in self._tensors[name].reshape(-1):
            try:
                found.append(each.decode() if isinstance(each, bytes) else str(each))
            except UnicodeDecodeError as error:
                raise UsageError(f"{name} is not valid UTF-8 at byte {error.start}", fix="send text in UTF-8") from None
        return found

    def one(self, name: str) -> Any:
        """Return the only value of a tensor as a Python object. Raises ``UsageError`` unless it has exactly one."""
        tensor = self._tensors[name]
        if tensor.size != 1:
            raise UsageError(f"{name} has {tensor.size} values", why="exactly one is allowed", fix="send one value")
        value = tensor.reshape(-1)[0]
        if tensor.dtype == np.object_:
            return self.texts(name)[0]
        if tensor.dtype == np.float32:
            return float(str(value))  # 0.1, not float32's 0.10000000149
        return value.item()

    def flag(self, name: str) -> bool:
        """Return True if a tensor is present and true."""
        return name in self._tensors and bool(self.one(name))

    def ids(self, name: str) -> tuple[int, ...]:
        """Return all numbers of a tensor."""
        return tuple(self._tensors[name].reshape(-1).tolist())

    def json(self, name: str) -> Any:
        """Return the parsed JSON of a tensor, or None if it is absent. Raises ``UsageError``."""
        if name not in self._tensors:
            return None
        try:
            return json.loads(self.one(name), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name} is not valid JSON: {error}", fix="send valid JSON") from None


def parse_tensors(inputs: InputTensors) -> TensorOptions:
    """Return the options in the tensors of a request. Raises ``UsageError`` that names the tensor."""
    prompts = [name for name in _PROMPTS if name in inputs]
    if len(prompts) != 1:
        raise UsageError(
            f"the request has {len(prompts)} prompts: {', '.join(prompts)}" if prompts else "the request has no prompt",
            fix=f"send exactly one of {', '.join(_PROMPTS)}",
        )
    params, drafts = _sampling(inputs)
    is_text, is_chat = "text_input" in inputs, "messages" in inputs
    if "chat_template_kwargs" in inputs and not is_chat:
        raise UsageError("chat_template_kwargs requires messages", fix="send messages, or remove chat_template_kwargs")
    return TensorOptions(
        prompt=None if is_chat else inputs.one("text_input") if is_text else inputs.ids("input_ids"),
        messages=inputs.json("messages"),
        template_arguments=inputs.json("chat_template_kwargs"),
        params=_params(params),
        num_speculative_tokens=drafts.get(_COUNT),
        draft=drafts.get("draft"),
        streams=inputs.flag("stream"),
        shows_ids=inputs.flag("return_token_ids"),
    )


def require_known(parameters: str, inputs: Collection[str]) -> None:
    """Raise ``UsageError`` for a request field that is not one of the model's ``inputs``.

    Triton's ``generate`` endpoint turns such fields into parameters. ``parameters`` is the JSON of
    ``InferenceRequest.parameters``.
    """
    for name in json.loads(parameters or "{}"):
        if name not in _OF_TRITON and not name.startswith("triton_"):
            near = nearest(name, inputs, 1)
            raise UsageError(
                f"{name} is not an input of this model",
                fix=f"did you mean {near[0]}?" if near else "remove the input",
            )


def _sampling(inputs: InputTensors) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the sampling parameters and the draft options by name, from tensors and JSON; each may be given once."""
    found: dict[str, Any] = {}
    for tensor, name in SAMPLING.items():
        if tensor in inputs:
            found[name] = inputs.texts(tensor) if name in _SEVERAL else inputs.one(tensor)
    drafts = {name: inputs.one(name) for name in _OF_DRAFTS if name in inputs}
    if drafts.get(_COUNT) == _AUTO:
        drafts[_COUNT] = AUTO
    more = {} if JSON not in inputs else inputs.json(JSON)
    if not isinstance(more, dict):
        raise UsageError(f"{JSON} is not a JSON object", fix='send an object such as {"temperature": 0.8}')
    for name, value in more.items():
        if name in found or name in drafts:
            raise UsageError(
                f"{name} is given twice", why=f"the input is both a tensor and in {JSON}", fix="send it once"
            )
        if name in _OF_DRAFTS:
            drafts[name] = value
        elif name in _PARAMS:
            found[name] = _READ.get(name, _unchanged)(value)
        else:
            near = nearest(name, [*_PARAMS, *_OF_DRAFTS], 1)
            raise UsageError(
                f"{JSON}: unknown parameter {name!r}",
                fix=f"did you mean {near[0]}?" if near else "remove the parameter",
            )
    if inputs.flag("return_log_probs"):
        found["logprobs"] = 0
    return found, drafts


def _params(values: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(**values)
    except TypeError as error:  # a value of a type that cannot be compared
        raise UsageError(
            f"invalid sampling parameters: {error}", fix="give every parameter a value of its documented type"
        ) from None


def _biases(value: Any) -> Any:
    """Return the biases by token id; JSON keys are strings."""
    if not isinstance(value, dict):
        return value
    found = {}
    for token, amount in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < _DIGITS):
            raise UsageError(
                f"logit_bias: {token[:100]!r} is not a token id",
                why="each key must be the number of a token",
                fix='send an object such as {"11": -5.0}',
            )
        found[int(token)] = amount
    return found


def _unchanged(value: Any) -> Any:
    return value


_READ: dict[str, Callable[[Any], Any]] = {"logit_bias": _biases}


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")
