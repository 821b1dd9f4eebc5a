"""``/tokenize`` and ``/detokenize``, of texts and of conversations."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peagle.engines import Engine
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from tests.engines.serving.calls import call, error_of
from tests.fixtures.servers import MODEL

PROMPT = "def f(x):\n"


def test_text_and_tokens_turn_into_each_other(server: Server, served_engine: Engine) -> None:
    _, _, content = call(server, "POST", "/tokenize", {"prompt": PROMPT})
    told = json.loads(content)
    assert told["tokens"] == served_engine.tokenizer.encode(PROMPT)
    assert told["count"] == len(told["tokens"])
    assert told["max_model_len"] == served_engine.max_seq_len
    _, _, content = call(server, "POST", "/detokenize", {"tokens": told["tokens"]})
    assert json.loads(content) == {"prompt": PROMPT}


def test_a_conversation_is_tokenized_as_its_template_has_it(server: Server, served_engine: Engine) -> None:
    messages = [{"role": "user", "content": PROMPT}]
    _, _, content = call(server, "POST", "/tokenize", {"messages": messages})
    assert json.loads(content)["tokens"] == served_engine.chat_prompt(messages)[1]


def test_special_tokens_are_added_by_default(server: Server, served_engine: Engine) -> None:
    known = served_engine.tokenizer

    def tokens(**fields: Any) -> Any:
        return json.loads(call(server, "POST", "/tokenize", fields)[2])["tokens"]

    for adds in (True, None):
        assert tokens(prompt=PROMPT, add_special_tokens=adds) == known.encode(PROMPT)
    assert tokens(prompt=PROMPT, add_special_tokens=False) == known.encode(PROMPT, adds_special=False)
    messages = [{"role": "user", "content": PROMPT}]
    assert tokens(messages=messages, add_special_tokens=False) == served_engine.chat_prompt(messages)[1]
    status, _, content = call(server, "POST", "/tokenize", {"messages": messages, "add_special_tokens": True})
    assert (status, error_of(content)["param"]) == (400, "add_special_tokens")


def test_a_conversation_is_tokenized_with_its_tools(calling_server: Server, calling_engine: Engine) -> None:
    messages, tools = [{"role": "user", "content": PROMPT}], [{"type": "function", "function": {"name": "f"}}]
    body = {"messages": messages, "tools": tools, "chat_template_kwargs": {"a": 1}}
    found = json.loads(call(calling_server, "POST", "/tokenize", body)[2])["tokens"]
    assert found == calling_engine.chat_prompt(messages, tools=tools)[1]


def test_a_conversation_is_tokenized_as_it_is_continued(server: Server, served_engine: Engine) -> None:
    messages = [{"role": "user", "content": PROMPT}, {"role": "assistant", "content": "    return"}]
    for options in ({"continue_final_message": True}, {"add_generation_prompt": False}):
        found = json.loads(call(server, "POST", "/tokenize", {"messages": messages, **options})[2])["tokens"]
        assert found == served_engine.chat_prompt(messages, **options)[1]  # type: ignore[arg-type]


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": []}, {"tokens": [0]}])
def test_tokenize_input_is_given_once(server: Server, body: Any) -> None:
    assert call(server, "POST", "/tokenize", body)[0] == 400


@pytest.mark.parametrize("tokens", [[-1], [10**9], [2**70], ["a"]])
def test_tokens_that_are_none_are_refused(server: Server, tokens: Any) -> None:
    assert call(server, "POST", "/detokenize", {"tokens": tokens})[0] == 400


def test_a_template_of_a_request_is_used_if_the_server_trusts_it(server: Server, served_engine: Engine) -> None:
    body = {"messages": [{"role": "user", "content": PROMPT}], "chat_template": "{{ messages[0].content }}!"}
    trusting = Server(served_engine, ServerSettings(MODEL, trusts_request_templates=True), port=0)
    trusting.start()
    try:
        found = json.loads(call(trusting, "POST", "/tokenize", body)[2])["tokens"]
        assert found == served_engine.tokenizer.encode(f"{PROMPT}!")
        asked = {**body, "max_tokens": 4, "return_token_ids": True}
        assert json.loads(call(trusting, "POST", "/v1/chat/completions", asked)[2])["prompt_token_ids"] == found
        status, _, content = call(trusting, "POST", "/v1/chat/completions", {**body, "chat_template": "{% if %}"})
        assert (status, error_of(content)["param"]) == (400, "chat_template")
    finally:
        trusting.stop(at_once=True)
        assert trusting.wait(10)
    assert call(server, "POST", "/tokenize", body)[0] == 400
