"""Messages in Anthropic's format, whole or streamed as server-sent events."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from ..blocks import AnswerBlock, AnswerBlocks
from ..choices import Choices
from ..problems import CONTEXT_LENGTH_EXCEEDED, HttpRefusal
from ..rendering import Renderer, ReportedTokens, event
from ..usage import speculation, total_acceptance

_DELTAS = {
    "text": ("text_delta", "text"),
    "thought": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
_SIGNATURE = ""  # of reasoning: this server signs nothing
_TYPES = {413: "request_too_large", 500: "api_error", 503: "overloaded_error"}


def error_body(refusal: HttpRefusal) -> dict[str, Any]:
    """Return ``{"type": "error", "error": {type, message}}``."""
    message = refusal.message
    if refusal.code == CONTEXT_LENGTH_EXCEEDED:
        message = f"prompt is too long: {message}"  # agents shorten the conversation when they read this
    return {"type": "error", "error": {"type": _TYPES.get(refusal.status, refusal.kind), "message": message}}


class MessageAnswer(Renderer):
    """A message of the assistant. While a stream waits for tokens, for example while a prompt is read, it pings."""

    patience = 5.0

    def __init__(self, model: str, *, shows_thoughts: bool) -> None:
        self._head = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._blocks = AnswerBlocks(shows_thoughts=shows_thoughts)
        self._called = False

    def body(self, answers: Sequence[ReportedTokens], choices: Choices) -> dict[str, Any]:
        """Return the message."""
        for _ in self._steps(answers[0]):
            pass
        content = [_content(each, each.text) for each in self._blocks.blocks]
        return {**self._head, "content": content, **self._stop(choices), "usage": _usage(choices)}

    def opening(self, choices: Choices) -> Iterator[bytes]:
        """Yield the message without content. Which part of its prompt was cached is known at the end."""
        usage = {"input_tokens": len(choices.prompts[0]), "output_tokens": 0}
        unfinished = {"stop_reason": None, "stop_sequence": None}
        yield _event("message_start", message={**self._head, "content": [], **unfinished, "usage": usage})
        yield _event("ping")

    def pieces(self, tokens: ReportedTokens) -> Iterator[bytes]:
        """Yield the events of the blocks that open, grow and close."""
        return self._steps(tokens)

    def waiting(self) -> Iterator[bytes]:
        """Yield an event without content."""
        yield _event("ping")

    def closing(self, choices: Choices) -> Iterator[bytes]:
        """Yield why the message ended, and its usage."""
        yield _event("message_delta", delta=self._stop(choices), usage=_usage(choices))
        yield _event("message_stop")

    def failure(self, refusal: HttpRefusal) -> Iterator[bytes]:
        """Yield the error."""
        yield event(error_body(refusal), "error")

    def _steps(self, tokens: ReportedTokens) -> Iterator[bytes]:
        self._called = tokens.finish_reason == "tool_calls"
        for step in self._blocks.steps(tokens):
            at = step.block.index
            if step.change == "opens":
                yield _event("content_block_start", index=at, content_block=_content(step.block, ""))
            elif step.change == "grows":
                kind, name = _DELTAS[step.block.kind]
                yield _event("content_block_delta", index=at, delta={"type": kind, name: step.text})
            else:
                if step.block.kind == "thought":  # some clients keep a block only if its signature comes like this
                    signed = {"type": "signature_delta", "signature": _SIGNATURE}
                    yield _event("content_block_delta", index=at, delta=signed)
                yield _event("content_block_stop", index=at)

    def _stop(self, choices: Choices) -> dict[str, Any]:
        """Return the reason that the message ended, and the stop sequence if that was the reason."""
        output, max_tokens = choices.outputs[0], choices.generation.params.max_tokens
        found = output.stop_reason if isinstance(output.stop_reason, str) else None
        if self._called:
            reason, found = "tool_use", None
        elif output.finish_reason == "stop":
            reason = "end_turn" if found is None else "stop_sequence"
        elif output.finish_reason == "length" and len(output.token_ids) < max_tokens:
            reason = "model_context_window_exceeded"
        else:
            reason = "max_tokens"
        return {"stop_reason": reason, "stop_sequence": found}


def _event(kind: str, **content: Any) -> bytes:
    return event({"type": kind, **content}, kind)


def _content(block: AnswerBlock, text: str) -> dict[str, Any]:
    """Return a content block with ``text``, which is the input of a call as JSON."""
    if block.kind == "text":
        return {"type": "text", "text": text}
    if block.kind == "thought":
        return {"type": "thinking", "thinking": text, "signature": _SIGNATURE}
    return {
        "type": "tool_use",
        "id": f"toolu_{block.id}",
        "name": block.name,
        "input": msgspec.Raw(text.encode() or b"{}"),
    }


def _usage(choices: Choices) -> dict[str, Any]:
    """Return the token counts, where cached prompt tokens count separately, and speculation statistics."""
    return {
        "input_tokens": choices.prompted - choices.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": choices.cached,
        "output_tokens": len(choices.outputs[0].token_ids),
        "speculation": speculation(total_acceptance(choices.outputs)),
    }
