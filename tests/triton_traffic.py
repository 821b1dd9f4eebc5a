"""Clients of Triton's models, with the same requests and expected answers as clients of `serve`."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.traffic import KINDS, PROMPTS, Answer, Asked, BadAnswer, Client, Refused, read_stream

MODEL, WHOLE = "demo", "demo_whole"
LATE_MODEL = "late"  # the model that is loaded and unloaded
OF_TRITON = ("plain", "greedy", "chat", "logprobs", "penalties", "form", "stop")  # the kinds that its models know
_TENSORS = {"seed": "random_seed", "stop": "stop_words"}
_IN_JSON = ("logit_bias", "structured_outputs")


def triton_request(model: str, asked: Asked, *, stream: bool) -> tuple[str, dict[str, Any]]:
    """The path and the body."""
    kind, prompt, seed = asked
    wanted = {"max_tokens": 24, "temperature": 0.8, "seed": seed, **KINDS[kind]}
    body: dict[str, Any] = {"stream": True} if stream else {}
    if wanted.pop("logprobs", None):
        body["return_log_probs"] = True
    more = {name: wanted.pop(name) for name in _IN_JSON if name in wanted}
    if more:
        body["sampling_parameters"] = json.dumps(more)
    body |= {_TENSORS.get(name, name): value for name, value in wanted.items()}
    if kind == "chat":
        body["messages"] = json.dumps([{"role": "user", "content": PROMPTS[prompt]}])
    else:
        body["text_input"] = PROMPTS[prompt]
    return f"/v2/models/{model}/generate{'_stream' if stream else ''}", body


@dataclass
class TritonClient(Client):
    """One that asks Triton's models. The late model may refuse a request, and break off an answer as it is unloaded."""

    of_bad_requests = frozenset({400, 500})  # the server itself, not a model, answers a value of a wrong type with 500
    _model: str = MODEL

    def request(self, asked: Asked, *, stream: bool) -> tuple[str, dict[str, Any], set[int]]:
        """The path, the body, and the statuses with which it may be refused."""
        at_once = MODEL if stream or asked[0] == "logprobs" else WHOLE  # which has no logprobs
        self._model = self.dice.choice((MODEL, at_once, LATE_MODEL))
        path, body = triton_request(self._model, asked, stream=stream)
        drafts = self.dice.choice((None, -1, 0, 2, 4))
        body |= {} if drafts is None else {"num_speculative_tokens": drafts}
        return path, body, {400, 404, 503} if self._model == LATE_MODEL else set()

    def _once(self) -> None:
        try:
            super()._once()
        except Refused:
            if self._model != LATE_MODEL:
                raise
            self.counts["broken off by an unloaded model"] += 1


def triton_answers(address: tuple[str, int], every: Sequence[Asked]) -> dict[Asked, Answer]:
    """What the model answers when nobody else asks."""
    found = {}
    for asked in every:
        path, body = triton_request(MODEL, asked, stream=True)
        connection = http.client.HTTPConnection(*address, timeout=120)
        connection.request("POST", path, json.dumps(body))
        answer = read_stream(connection.getresponse())
        if answer is None:
            raise BadAnswer(asked)
        found[asked] = answer
        connection.close()
    return found
