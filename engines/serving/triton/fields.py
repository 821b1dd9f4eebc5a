"""From the tensors of a request to what is asked of the engine; whatever changes an answer is honoured, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ....plugins.errors import UsageError, nearest
from ...policy.drafts_per_round import AUTO, DraftsAsked
from ...requests.params import SamplingParams

# Tensor -> the sampling parameter it is, under the names that TensorRT-LLM's models have, and vLLM's for the rest.
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
_AS_MANY_AS_PAY = -1  # in the tensor of that count, which holds no text
_UNTOLD = frozenset({"logprobs", "prompt_logprobs"})  # no tensor has them
_PARAMS = frozenset(field.name for field in fields(SamplingParams)) - _UNTOLD
_SEVERAL = ("stop", "bad_words")
# Parameters of a request that Triton and its clients set by themselves, and that change no text.
_OF_TRITON = ("id", "priority", "timeout", "binary_data_output", "sequence_id", "sequence_start", "sequence_end")
_DIGITS = 19


@dataclass(frozen=True)
class TensorOptions:
    """What a request asks for: a ``prompt``, text or token ids, or else ``messages`` and what goes with them."""

    prompt: str | tuple[int, ...] | None
    messages: Any
    template_arguments: Any
    params: SamplingParams
    num_speculative_tokens: DraftsAsked | None
    draft: str | None
    streams: bool
    shows_ids: bool


class InputTensors:
    """The input tensors of a request by name, those that are there."""

    def __init__(self, tensors: Mapping[str, np.ndarray]) -> None:
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def texts(self, name: str) -> list[str]:
        """All texts of a tensor. Raises ``UsageError`` for bytes that are not UTF-8."""
        found = []
        for each in self._tensors[name].reshape(-1):
            try:
                found.append(each.decode() if isinstance(each, bytes) else str(each))
            except UnicodeDecodeError as error:
                raise UsageError(f"{name} is not UTF-8 from its byte {error.start} on", fix="send UTF-8") from None
        return found

    def one(self, name: str) -> Any:
        """The only value of a tensor, as Python has it. Raises ``UsageError`` for none and for several."""
        tensor = self._tensors[name]
        if tensor.size != 1:
            raise UsageError(f"{name} has {tensor.size} values", why="it takes one", fix="send one")
        value = tensor.reshape(-1)[0]
        if tensor.dtype == np.object_:
            return self.texts(name)[0]
        if tensor.dtype == np.float32:
            return float(str(value))  # 0.1, not the 0.10000000149 that it is in float32
        return value.item()

    def flag(self, name: str) -> bool:
        """Whether a tensor is there and true."""
        return name in self._tensors and bool(self.one(name))

    def ids(self, name: str) -> tuple[int, ...]:
        """All numbers of a tensor."""
        return tuple(self._tensors[name].reshape(-1).tolist())

    def json(self, name: str) -> Any:
        """What the JSON in a tensor says, None where there is none. Raises ``UsageError``."""
        if name not in self._tensors:
            return None
        try:
            return json.loads(self.one(name), parse_constant=_no_number)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{name} is no JSON: {error}", fix="send JSON") from None


def parse_tensors(inputs: InputTensors) -> TensorOptions:
    """What the tensors of a request ask for. Raises ``UsageError`` by the tensor's name."""
    given = [name for name in _PROMPTS if name in inputs]
    if len(given) != 1:
        raise UsageError(
            f"the request has {' and '.join(given)}" if given else "the request has nothing to continue",
            fix=f"send one of {', '.join(_PROMPTS)}",
        )
    params, drafts = _sampling(inputs)
    is_text, is_chat = "text_input" in inputs, "messages" in inputs
    if "chat_template_kwargs" in inputs and not is_chat:
        raise UsageError("chat_template_kwargs is for messages", fix="send messages, or leave it out")
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
    """Refuse fields of a request that are none of the model's ``inputs``. ``generate`` makes parameters of them.

    ``parameters`` are the JSON of ``InferenceRequest.parameters``. Raises ``UsageError`` by the field.
    """
    for name in json.loads(parameters or "{}"):
        if name not in _OF_TRITON and not name.startswith("triton_"):
            near = nearest(name, inputs, 1)
            raise UsageError(
                f"{name} is no field of this model",
                fix=f"did you mean {near[0]}?" if near else "leave it out",
            )


def _sampling(inputs: InputTensors) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sampling parameters by name, and what is said of drafts: of tensors, and of the JSON, each once."""
    found: dict[str, Any] = {}
    for tensor, name in SAMPLING.items():
        if tensor in inputs:
            found[name] = inputs.texts(tensor) if name in _SEVERAL else inputs.one(tensor)
    drafts = {name: inputs.one(name) for name in _OF_DRAFTS if name in inputs}
    if drafts.get(_COUNT) == _AS_MANY_AS_PAY:
        drafts[_COUNT] = AUTO
    more = {} if JSON not in inputs else inputs.json(JSON)
    if not isinstance(more, dict):
        raise UsageError(f"{JSON} is no JSON object", fix='send one, such as {"temperature": 0.8}')
    for name, value in more.items():
        if name in found or name in drafts:
            raise UsageError(f"{name} is said twice", why=f"by a tensor and in {JSON}", fix="say it once")
        if name in _OF_DRAFTS:
            drafts[name] = value
        elif name in _PARAMS:
            found[name] = _READ.get(name, _as_it_is)(value)
        else:
            near = nearest(name, [*_PARAMS, *_OF_DRAFTS], 1)
            raise UsageError(
                f"{JSON} has {name!r}, which is not known here",
                fix=f"did you mean {near[0]}?" if near else "leave it out",
            )
    if inputs.flag("return_log_probs"):
        found["logprobs"] = 0
    return found, drafts


def _params(given: dict[str, Any]) -> SamplingParams:
    try:
        return SamplingParams(**given)
    except TypeError as error:  # a value that no comparison takes
        raise UsageError(f"the sampling parameters cannot be read: {error}", fix="change them") from None


def _biases(value: Any) -> Any:
    """Amounts by token id, which are texts in JSON."""
    if not isinstance(value, dict):
        return value
    found = {}
    for token, amount in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < _DIGITS):
            raise UsageError(f"logit_bias: {token[:100]!r} is no token id", fix="send ids in digits")
        found[int(token)] = amount
    return found


def _as_it_is(value: Any) -> Any:
    return value


_READ: dict[str, Callable[[Any], Any]] = {"logit_bias": _biases}


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")
