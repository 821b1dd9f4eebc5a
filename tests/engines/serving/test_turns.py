"""Conversations of all APIs as chat messages."""

from __future__ import annotations

from peagle.engines.serving.turns import Turns


def test_an_answer_with_reasoning_text_and_calls_is_one_message() -> None:
    turns = Turns()
    turns.say("user", "Is it warm?")
    turns.think("Look ")
    turns.think("outside.")
    turns.say("assistant", "I look.")
    turns.call("1", "weather", {"unit": "C"})
    turns.call("2", "clock", "{}")
    turns.answer_call("1", "7 C")
    turns.answer_call("2", "noon")
    turns.answer_call("3", "of no call that is here")
    turns.say("user", "And now?")
    turns.say("user", "Tell me.")
    turns.think("It was warm before.")
    turns.say("user", "Well?")
    calls = [
        {"id": "1", "type": "function", "function": {"name": "weather", "arguments": {"unit": "C"}}},
        {"id": "2", "type": "function", "function": {"name": "clock", "arguments": "{}"}},
    ]
    assert turns.messages() == [
        {"role": "user", "content": [{"type": "text", "text": "Is it warm?"}]},
        {
            "role": "assistant",
            "reasoning_content": "Look outside.",
            "content": [{"type": "text", "text": "I look."}],
            "tool_calls": calls,
        },
        {"role": "tool", "tool_call_id": "1", "name": "weather", "content": [{"type": "text", "text": "7 C"}]},
        {"role": "tool", "tool_call_id": "2", "name": "clock", "content": [{"type": "text", "text": "noon"}]},
        {"role": "tool", "tool_call_id": "3", "content": [{"type": "text", "text": "of no call that is here"}]},
        {"role": "user", "content": [{"type": "text", "text": "And now?"}, {"type": "text", "text": "Tell me."}]},
        {"role": "assistant", "content": "", "reasoning_content": "It was warm before."},  # it was cut
        {"role": "user", "content": [{"type": "text", "text": "Well?"}]},
    ]
