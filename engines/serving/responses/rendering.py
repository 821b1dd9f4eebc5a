"""Responses of OpenAI's Responses API, whole or streamed as typed events, and their storage."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from ..blocks import AnswerBlock, AnswerBlocks, BlockStep
from ..choices import Choices
from ..problems import HttpRefusal
from ..rendering import Renderer, ReportedTokens, event
from ..usage import speculation, total_acceptance
from .bodies import ENCRYPTED_REASONING, ResponsesBody
from .conversations import Item, items_of, opaque_reasoning
from .offered_tools import offered_tools

_PREFIXES = {"text": "msg", "thought": "rs", "call": "fc"}  # of item ids
_LISTED_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
_PARTS = {"text": "output_text", "thought": "reasoning_text"}  # types of content parts, and names of their events


class StoredResponse(msgspec.Struct):
    """A response that later requests can retrieve or continue, and the items of its conversation, itself included."""

    response: msgspec.Raw
    items: msgspec.Raw


def listed_items(stored: StoredResponse, identity: str) -> list[Item]:
    """Return the items that a stored response answers, in order, with the fields that items of a list have."""
    response, items = msgspec.json.decode(stored.response), msgspec.json.decode(stored.items)
    before: list[Item] = items[: len(items) - len(response["output"])]
    return [listed_item(each, _number(identity, at)) for at, each in enumerate(before)]


def listed_item(stored: Item, number: str) -> Item:
    """Return a stored item with the fields that items of a list have; without an id, it gets one of the ``number``."""
    item: Item = {
        "type": "message",
        "status": "completed",
        **{key: value for key, value in stored.items() if value is not None},
    }
    item.setdefault("id", f"{_LISTED_PREFIXES[item['type']]}_{number}")
    if item["type"] == "message" and isinstance(item["content"], str):
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        part = {"type": kind, "text": item["content"]}
        item["content"] = [part | ({"annotations": []} if kind == "output_text" else {})]
    return item


def _number(identity: str, place: int) -> str:
    """Return the number of an item's id: those of the response and of its place in the conversation."""
    return f"{identity.removeprefix('resp_')}{place:04}"


class ResponseAnswer(Renderer):
    """One response.

    ``count`` returns the number of tokens of a text. ``store`` keeps an encoded ``StoredResponse`` under an id, and
    returns whether it did.
    """

    patience = 15.0

    def __init__(
        self,
        body: ResponsesBody,
        before: Sequence[Item],
        model: str,
        count: Callable[[str], int],
        store: Callable[[str, bytes], bool],
    ) -> None:
        """``before`` are the items that the body continues. Raises ``HttpRefusal`` for values nested too deeply."""
        self.id = f"resp_{secrets.token_hex(16)}"
        self._head = _head(body, self.id, model)
        self._items = [_echo(each, "input") for each in (*before, *items_of(body))]
        self._offered = offered_tools(body.tools or [])
        self._seals = ENCRYPTED_REASONING in (body.include or ())
        self._keep = store if body.store is not False else None
        self._count = count
        self._blocks = AnswerBlocks()
        self._number = 0  # of the next event
        self._reason: str | None = None

    def body(self, answers: Sequence[ReportedTokens], choices: Choices) -> dict[str, Any]:
        """Return the response, and store it."""
        for _ in self._steps(answers[0]):
            pass
        return self._finished(choices)

    def opening(self, choices: Choices) -> Iterator[bytes]:
        """Yield the response without output."""
        del choices
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))

    def pieces(self, tokens: ReportedTokens) -> Iterator[bytes]:
        """Yield the events of the items that open, grow and close."""
        return self._steps(tokens)

    def waiting(self) -> Iterator[bytes]:
        """Yield the event of the beginning again, because some clients count only events, and no comments."""
        yield self._event("response.in_progress", response={**self._head, "status": "in_progress", "output": []})

    def closing(self, choices: Choices) -> Iterator[bytes]:
        """Yield the response, and store it."""
        response = self._finished(choices)
        yield self._event(f"response.{response['status']}", response=response)

    def refused(self, refusal: HttpRefusal) -> Iterator[bytes]:
        """Yield the whole stream of a response that could not begin."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield from self.failure(refusal)

    def failure(self, refusal: HttpRefusal) -> Iterator[bytes]:
        """Yield the response with the error."""
        error = {"code": refusal.code or refusal.kind, "message": refusal.message}
        yield self._event("response.failed", response={**self._response("failed"), "error": error})

    def _steps(self, tokens: ReportedTokens) -> Iterator[bytes]:
        self._reason = tokens.finish_reason
        for step in self._blocks.steps(tokens):
            yield from self._call_events(step) if step.block.kind == "call" else self._text_events(step)

    def _text_events(self, step: BlockStep) -> Iterator[bytes]:
        """Yield the events of a message or of reasoning, which is one content part."""
        block, name = step.block, _PARTS[step.block.kind]
        position = {"item_id": self._id(block), "output_index": block.index, "content_index": 0}
        logprobs: dict[str, Any] = {"logprobs": []} if block.kind == "text" else {}
        if step.change == "opens":
            yield self._item_event("added", block, "in_progress")
            yield self._event("response.content_part.added", **position, part=_part(block, ""))
        elif step.change == "grows":
            yield self._event(f"response.{name}.delta", **position, delta=step.text, **logprobs)
        else:
            yield self._event(f"response.{name}.done", **position, text=block.text, **logprobs)
            yield self._event("response.content_part.done", **position, part=_part(block, block.text))
            yield self._item_event("done", block, _status(block))

    def _call_events(self, step: BlockStep) -> Iterator[bytes]:
        block, name = step.block, "response.function_call_arguments"
        position = {"item_id": self._id(block), "output_index": block.index}
        if step.change == "opens":
            yield self._item_event("added", block, "in_progress")
        elif step.change == "grows":
            yield self._event(f"{name}.delta", **position, delta=step.text)
        else:
            called = self._offered.member(block.name)
            yield self._event(f"{name}.done", **position, name=called.name, arguments=block.text)
            yield self._item_event("done", block, _status(block))

    def _item_event(self, change: str, block: AnswerBlock, status: str) -> bytes:
        item = self._item(block, status)
        return self._event(f"response.output_item.{change}", output_index=block.index, item=item)

    def _event(self, kind: str, **content: Any) -> bytes:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number, **content}, kind)

    def _id(self, block: AnswerBlock) -> str:
        return f"{_PREFIXES[block.kind]}_{_number(self.id, len(self._items) + block.index)}"

    def _item(self, block: AnswerBlock, status: str) -> Item:
        """Return an output item; while it is in progress, without content."""
        is_open = status == "in_progress"
        item: Item = {"id": self._id(block), "type": "message", "status": status}
        if block.kind == "call":
            called = self._offered.member(block.name)
            call = {"call_id": f"call_{block.id}", "name": called.name, "arguments": "" if is_open else block.text}
            place = {} if called.namespace is None else {"namespace": called.namespace}
            return {**item, "type": "function_call", **call, **place}
        content = [] if is_open else [_part(block, block.text)]
        if block.kind == "text":
            return {**item, "role": "assistant", "content": content}
        secret = {"encrypted_content": opaque_reasoning(block.text)} if self._seals and not is_open else {}
        return {**item, "type": "reasoning", "summary": [], "content": content, **secret}

    def _response(self, status: str) -> dict[str, Any]:
        output = [self._item(each, _status(each)) for each in self._blocks.blocks]
        return {**self._head, "status": status, "output": output}

    def _finished(self, choices: Choices) -> dict[str, Any]:
        """Return the finished response, and store it."""
        is_whole = self._reason in ("stop", "tool_calls")
        response = self._response("completed" if is_whole else "incomplete")
        if not is_whole:
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        response |= {"usage": self._usage(choices), **choices.metrics}
        if self._keep is not None:
            stored = {"response": response, "items": [*self._items, *response["output"]]}
            response["store"] = self._keep(self.id, msgspec.json.encode(stored))
        return response

    def _usage(self, choices: Choices) -> dict[str, Any]:
        written = len(choices.outputs[0].token_ids)
        thought = "".join(each.text for each in self._blocks.blocks if each.kind == "thought")
        return {
            "input_tokens": choices.prompted,
            "input_tokens_details": {"cached_tokens": choices.cached, "cache_write_tokens": 0},
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": min(self._count(thought), written) if thought else 0},
            "total_tokens": choices.prompted + written,
            "speculation": speculation(total_acceptance(choices.outputs)),
        }


def _head(body: ResponsesBody, identity: str, model: str) -> dict[str, Any]:
    """Return what all states of a response have in common: the fields of the request, mostly."""
    return {
        "id": identity,
        "object": "response",
        "created_at": int(time.time()),
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "metadata": body.metadata or {},
        "model": model,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": _echo(body.reasoning or {"effort": None, "summary": None}, "reasoning"),
        "store": body.store is not False,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": _echo(body.text or {"format": {"type": "text"}}, "text"),
        "tool_choice": _echo("auto" if body.tool_choice is None else body.tool_choice, "tool_choice"),
        "tools": _echo(body.tools or [], "tools"),
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def _echo(value: Any, name: str) -> msgspec.Raw:
    """Return a value of the body as JSON, with integers of any size."""
    try:
        return msgspec.Raw(json.dumps(value).encode())
    except RecursionError:
        raise HttpRefusal(400, f"{name} is nested too deeply", param=name) from None


def _status(block: AnswerBlock) -> str:
    return "incomplete" if block.is_cut else "completed"


def _part(block: AnswerBlock, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": _PARTS[block.kind], "text": text}
    return {**part, "annotations": [], "logprobs": []} if block.kind == "text" else part
