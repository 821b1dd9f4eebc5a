"""Answers of the assistant's, as OpenAI's API has them: messages, and calls of tools in them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ...requests.results import Delta, RequestOutput
from ...text.answer_styles import AnswerReader, reader_of
from ...text.tool_calls import ToolCall
from .options import Asked
from .rendering import Answer, Logprobs, Runs, Told


class ChatAnswer(Answer):
    """Messages of the assistant's."""

    prefix, whole_name, piece_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(self, model: str, token_text: Callable[[int], str], asked: Asked) -> None:
        super().__init__(model, token_text, asked)
        self._opened: set[int] = set()
        self._readers: dict[int, AnswerReader | None] = {}

    def pieces(self, index: int, delta: Delta) -> Iterator[dict[str, Any]]:
        """Say who speaks first, then the rest."""
        if index not in self._opened:
            self._opened.add(index)
            content = {"delta": {"role": "assistant", "content": ""}}
            yield self.piece([{"index": index, **content, "logprobs": None, "finish_reason": None}])
        yield from super().pieces(index, delta)

    def _told(self, index: int, given: RequestOutput | Delta, runs: Runs) -> Told:
        """What is said, the calls in it where there are tools, and what was thought where that is told apart."""
        told, asked = super()._told(index, given, runs), self.asked
        if index not in self._readers:
            certain = bool(asked.must_call)
            self._readers[index] = reader_of(asked.style, asked.tools, asked.most_calls, are_certain=certain)
        reader = self._readers[index]
        if reader is None:
            return told
        text, calls, shown = "", list[ToolCall](), list[tuple[str, bool]]()
        pieces = told.runs if asked.style == "channels" else ((told.text, False),)
        for at, (piece, drafted) in enumerate(pieces or (("", False),)):
            is_last = told.finish_reason is not None and at + 1 >= len(pieces)
            said, found = reader.push(piece, is_last=is_last)
            text, calls, shown = text + said, calls + found, [*shown, (said, drafted)]
        reason = "tool_calls" if reader.count and told.finish_reason == "stop" else told.finish_reason
        if asked.style == "channels":  # what stands between is not shown
            told = replace(told, runs=[each for each in shown if each[0]])
        return replace(told, text=text, calls=calls, thought=reader.take_thought(), finish_reason=reason)

    def text(self, told: Told) -> dict[str, Any]:
        """A message."""
        message: dict[str, Any] = {"role": "assistant", "content": told.text, "refusal": None}
        if told.thought:
            message["reasoning_content"] = told.thought
        if told.calls:
            message["content"] = told.text.strip() or None
            message["tool_calls"] = [self._call(call) for call in told.calls]
        return {"message": message}

    def text_piece(self, told: Told) -> dict[str, Any]:
        """What is added to the message."""
        delta: dict[str, Any] = {"content": told.text} if told.text else {}
        if told.thought:
            delta["reasoning_content"] = told.thought
        if told.calls:
            delta["tool_calls"] = [{"index": call.at, **self._call(call)} for call in told.calls]
        return {"delta": delta}

    @staticmethod
    def _call(call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}

    def add_prompts(self, whole: dict[str, Any], found: list[Any]) -> None:
        """Beside the choices, which have one prompt."""
        whole["prompt_logprobs"] = found[0]

    def logprobs(self, index: int, found: Logprobs) -> dict[str, Any]:
        """An object for each token."""
        del index
        content = [
            {**self._token(each.token_id, each.logprob), "top_logprobs": [self._token(*pair) for pair in each.top]}
            for each in found
            if each is not None
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}
