"""Chat completions: assistant messages and their tool calls."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ...answer_styles import ToolCall
from ..choices import Choices
from ..rendering import ReportedTokens
from .options import ResponseOptions
from .rendering import Answer


class ChatAnswer(Answer):
    """Chat completion response."""

    prefix, whole_name, piece_name = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def __init__(
        self,
        model: str,
        token_text: Callable[[int], str],
        token_bytes: Callable[[int], bytes],
        options: ResponseOptions,
    ) -> None:
        """``token_bytes`` returns the bytes of a token, of which clients join the characters of several tokens."""
        super().__init__(model, token_text, options)
        self._token_bytes = token_bytes

    def body(self, answers: Sequence[ReportedTokens], choices: Choices) -> dict[str, Any]:
        """Return the body of a non-streamed response; all choices share one prompt."""
        trimmed = [_trimmed(each) if each.calls else each for each in answers]
        return super().body(trimmed, choices) | self.prompt_ids(answers[0])

    def contents(self, tokens: ReportedTokens) -> Iterator[dict[str, Any]]:
        """Yield the role first, then the deltas."""
        if self.opens(tokens):
            content = {"delta": {"role": "assistant", "content": ""}}
            opening = {"index": tokens.choice, **content, "logprobs": None, "finish_reason": None}
            yield self._of_choice(tokens, opening) | self.prompt_ids(tokens)
        yield from super().contents(tokens)

    def text(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return the ``message`` of a choice."""
        message: dict[str, Any] = {"role": "assistant", "content": tokens.text, "refusal": None}
        if tokens.thought:
            message["reasoning_content"] = tokens.thought
        if tokens.calls:
            message["content"] = tokens.text or None
            message["tool_calls"] = [self._call(call) for call in tokens.calls]
        return {"message": message}

    def text_piece(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return the ``delta`` of a choice."""
        delta: dict[str, Any] = {"content": tokens.text} if tokens.text else {}
        if tokens.thought:
            delta["reasoning_content"] = tokens.thought
        if tokens.calls:
            delta["tool_calls"] = [{"index": call.at, **self._call(call)} for call in tokens.calls]
        return {"delta": delta}

    @staticmethod
    def _call(call: ToolCall) -> dict[str, Any]:
        function = {"name": call.name, "arguments": call.arguments}
        return {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}

    def add_prompts(self, body: dict[str, Any], found: list[Any]) -> None:
        """Add the prompt's logprobs at the top level; all choices share one prompt."""
        body["prompt_logprobs"] = found[0]

    def logprobs(self, tokens: ReportedTokens) -> dict[str, Any]:
        """Return one object per token."""
        content = [
            {**self._token(each.token_id, each.logprob), "top_logprobs": [self._token(*pair) for pair in each.top]}
            for each in tokens.logprobs
            if each is not None
        ]
        return {"content": content, "refusal": None}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self.token_text(token), "logprob": logprob, "bytes": list(self._token_bytes(token))}


def _trimmed(tokens: ReportedTokens) -> ReportedTokens:
    """Return an answer without the white space around its text, also in its runs."""
    start, end = len(tokens.text) - len(tokens.text.lstrip()), len(tokens.text.rstrip())
    runs, at = list[tuple[str, bool]](), 0
    for text, drafted in tokens.runs:
        if visible := text[max(start - at, 0) : max(end - at, 0)]:
            runs.append((visible, drafted))
        at += len(text)
    return replace(tokens, text=tokens.text.strip(), runs=runs)
