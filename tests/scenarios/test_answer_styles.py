"""Models that write calls like Llama 3, or use channels like GPT-OSS: answers to clients, complete and streamed.

The engine's own words are forced by forms, so that the model says what a model of that kind would.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from peagle.engines import Engine, SamplingParams
from peagle.engines.answer_styles import DEFAULT, STYLES, AnswerStyle
from peagle.engines.answer_styles.channels import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START
from peagle.engines.serving.anthropic.bodies import MessagesBody, OutputConfig, SpokenMessage
from peagle.engines.serving.anthropic.conversations import conversation_of
from peagle.engines.serving.generation import Conversation
from peagle.engines.serving.openai.bodies import ChatBody
from peagle.engines.serving.openai.options import generation_of as chat_generation_of
from peagle.engines.serving.reasoning import styled
from peagle.engines.serving.responses.bodies import ResponsesBody
from peagle.engines.serving.responses.conversations import generation_of, opened
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import Limits, ServerSettings
from peagle.engines.text.tokenizer import Tokenizer
from tests.engines.serving.calls import call, events

pytest.importorskip("llguidance")

LLAMA = """{% if tools %}{# ipython: {"name": "f", "parameters": {}} #}{{ tools | length }} tools{% endif %}
{%- for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}
{%- endfor %}"""
CHANNELS = """{% if tools %}namespace functions {{ tools | length }}{% endif %}
{%- for m in messages %}{{ '<|start|>' + m.role }}
{%- if m.role == 'assistant' %}{{ '<|channel|>final<|message|>' + (m.content or '') }}
{%- else %}{{ '<|message|>' + m.content }}{% endif %}{{ '<|end|>' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"""
SCHEMA = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {**SCHEMA, "additionalProperties": False}}}
    for name in ("f", "g")
]
MESSAGES: Any = [{"role": "user", "content": "def f(x):"}]
THOUGHT, SAID = "Warm or not?", "It is warm."


@dataclass(frozen=True)
class Talking:
    """An engine whose answers are of a style, and the client of its server."""

    style: AnswerStyle
    engine: Engine
    server: Server
    client: OpenAI

    def asked(self, words: str, **more: Any) -> Any:
        """The options of a chat whose answer is ``words``, in the notation of grammars."""
        options = {"model": "demo", "messages": MESSAGES, "max_tokens": 150, "temperature": 0, **more}
        return {**options, "extra_body": {"structured_outputs": {"grammar": f"start: {words}"}}}


def _with_markers(folder: Path) -> None:
    """Give the tokenizer the tokens of channels, in place of its last words."""
    path = folder / "tokenizer.json"
    known = json.loads(path.read_text())
    merges, vocab = known["model"]["merges"], known["model"]["vocab"]
    for marker in (CHANNEL, MESSAGE, START, END, CALL, RETURN, CONSTRAIN):
        at = next(i for i in range(len(merges) - 1, 0, -1) if all("".join(merges[i]) not in other for other in merges))
        token = vocab.pop("".join(merges.pop(at)))
        vocab[marker] = token
        known["added_tokens"].append({**known["added_tokens"][0], "id": token, "content": marker})
    known["added_tokens"].sort(key=lambda each: each["id"])
    path.write_text(json.dumps(known))


def _talking(style: AnswerStyle, talking_engine: Path, folder: Path) -> Iterator[Talking]:
    shutil.copytree(talking_engine, folder)
    if style.marks_reasoning:
        _with_markers(folder)
    (folder / "chat_template.jinja").write_text(CHANNELS if style.marks_reasoning else LLAMA)
    with (
        Engine.load(talking_engine, max_batch_size=2, threads=1) as same,
        Engine(folder, same.manifest, same._backend, Tokenizer(folder, same.manifest.eos_token_ids)) as engine,
    ):
        server = Server(engine, ServerSettings("demo", limits=Limits(choices=4)), port=0)
        server.start()
        with OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
            yield Talking(style, engine, server, client)
        server.stop(immediately=True)
        assert server.wait(10)


@pytest.fixture(scope="module")
def llama(talking_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    yield from _talking(STYLES["llama"], talking_engine, tmp_path_factory.mktemp("llama") / "engine")


@pytest.fixture(scope="module")
def channels(talking_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talking]:
    yield from _talking(STYLES["channels"], talking_engine, tmp_path_factory.mktemp("channels") / "engine")


@pytest.fixture(params=["llama", "channels"])
def talking(request: pytest.FixtureRequest) -> Talking:
    found: Talking = request.getfixturevalue(request.param)
    return found


@dataclass(frozen=True)
class Heard:
    """What a client was told."""

    thought: str
    said: str
    calls: list[tuple[str, Any]]
    reason: str | None


def heard(client: OpenAI, asked: Any) -> Heard:
    """The answer, which is the same whole and streamed."""
    choice: Any = client.chat.completions.create(**asked).choices[0]
    thought = getattr(choice.message, "reasoning_content", None) or ""
    calls = [(each.function.name, json.loads(each.function.arguments)) for each in choice.message.tool_calls or []]
    whole = Heard(thought, choice.message.content or "", calls, choice.finish_reason)
    thought, said, streamed, reason = "", "", list[tuple[str, Any]](), None
    for piece in client.chat.completions.create(**asked, stream=True):
        delta: Any = piece.choices[0].delta
        thought += getattr(delta, "reasoning_content", None) or ""
        said += delta.content or ""
        for each in delta.tool_calls or []:
            assert each.index == len(streamed)
            streamed.append((each.function.name, json.loads(each.function.arguments)))
        reason = piece.choices[0].finish_reason or reason
    assert Heard(thought, said.strip(), streamed, reason) == Heard(
        whole.thought, whole.said.strip(), whole.calls, whole.reason
    )
    return whole


def test_template_determines_the_answer_style(talking: Talking, calling_engine: Engine, served_engine: Engine) -> None:
    assert talking.engine.answer_style == talking.style
    assert (calling_engine.answer_style, served_engine.answer_style) == (STYLES["json"], DEFAULT)


@pytest.mark.parametrize(
    ("choice", "names"),
    [("required", {"f", "g"}), ({"type": "function", "function": {"name": "g"}}, {"g"})],
    ids=["any", "one"],
)
def test_an_answer_that_must_call_does_so(talking: Talking, choice: Any, names: set[str]) -> None:
    for k in (0, 4):
        asked: Any = {"model": "demo", "messages": MESSAGES, "tools": TOOLS, "tool_choice": choice, "max_tokens": 400}
        asked |= {"seed": 4, "temperature": 0.8, "extra_body": {"num_speculative_tokens": k}}
        if talking.style.marks_reasoning:  # this small model would think for ever
            asked["logit_bias"] = {str(end): 100 for end in talking.engine.tokenizer.ids_of([END])}
        told = heard(talking.client, asked)
        ((name, arguments),) = told.calls
        assert name in names
        assert arguments["unit"] in ("C", "F")
        assert (told.said, told.reason) == ("", "tool_calls")


def test_optional_llama_calls(llama: Talking) -> None:
    call = '{"name": "g", "parameters": {"unit": "C"}}'
    told = heard(llama.client, llama.asked(json.dumps(call), tools=TOOLS))
    assert told == Heard("", "", [("g", {"unit": "C"})], "tool_calls")
    told = heard(llama.client, llama.asked(json.dumps(f"{call}; {call}"), tools=TOOLS))
    assert told.calls == [("g", {"unit": "C"})] * 2
    for options in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        told = heard(llama.client, llama.asked(json.dumps(call), **options))
        assert told == Heard("", call, [], "stop"), "without tools it is text"
    for text in ('{"name": "Anna"}', "I cannot."):
        assert heard(llama.client, llama.asked(json.dumps(text), tools=TOOLS)) == Heard("", text, [], "stop")


def test_thoughts_and_answers_are_separated(channels: Talking) -> None:
    words = f'{CHANNEL} "analysis" {MESSAGE} "{THOUGHT}" {END} {START} "assistant" {CHANNEL} "final" {MESSAGE} "{SAID}"'
    assert heard(channels.client, channels.asked(words)) == Heard(THOUGHT, SAID, [], "stop")
    assert heard(channels.client, channels.asked(words, tools=TOOLS)) == Heard(THOUGHT, SAID, [], "stop")
    cut = heard(channels.client, channels.asked(words, max_tokens=9))
    assert (cut.said, cut.reason) == ("", "length")
    assert cut.thought
    assert THOUGHT.startswith(cut.thought)
    drafted = channels.asked(words)
    drafted["extra_body"]["return_drafted"] = True
    (choice,) = channels.client.chat.completions.create(**drafted).choices
    assert "".join(text for text, _ in choice.drafted) == SAID  # type: ignore[attr-defined]


def test_a_message_to_a_function_is_a_call(channels: Talking) -> None:
    to = f'{CHANNEL} "commentary to=functions.g " {CONSTRAIN} "json" {MESSAGE} "{{\\"unit\\": \\"F\\"}}"'
    words = f'{CHANNEL} "analysis" {MESSAGE} "{THOUGHT}" {END} {START} "assistant" {to}'
    assert heard(channels.client, channels.asked(words, tools=TOOLS)) == Heard(
        THOUGHT, "", [("g", {"unit": "F"})], "tool_calls"
    )


def test_a_form_is_an_answer_in_no_channel(channels: Talking) -> None:
    told = heard(channels.client, channels.asked('"{\\"a\\": 1}"'))
    assert told == Heard("", '{"a": 1}', [], "stop")


def test_effort_and_earlier_thoughts_go_to_the_template(channels: Talking) -> None:
    called = {"role": "assistant", "reasoning_content": THOUGHT, "tool_calls": [{"function": {"name": "f"}}]}
    conversation = Conversation([*MESSAGES, called, {"role": "tool", "content": "1"}])
    for_channels = styled(conversation, STYLES["channels"], "high")
    assert for_channels.chat_template_kwargs == {"reasoning_effort": "high"}
    assert for_channels.messages == [*MESSAGES, {**called, "thinking": THOUGHT}, {"role": "tool", "content": "1"}]
    assert styled(conversation, STYLES["llama"], "high") is conversation
    options: Any = {"model": "demo", "messages": MESSAGES, "max_tokens": 1}
    assert channels.client.chat.completions.create(**options, reasoning_effort="minimal").choices
    with pytest.raises(openai.BadRequestError, match="reasoning_effort must be one of"):
        channels.client.chat.completions.create(**options, reasoning_effort="some")


def test_end_of_thought_does_not_end_the_answer(channels: Talking) -> None:
    words = f'{CHANNEL} "analysis" {MESSAGE} "{THOUGHT}" {END} {START} "assistant" {CHANNEL} "final" {MESSAGE} "{SAID}"'
    params = SamplingParams(max_tokens=150, structured_outputs={"grammar": f"start: {words}"})
    output = channels.engine.chat(MESSAGES, params)
    thought = f"{CHANNEL}analysis{MESSAGE}{THOUGHT}{END}"
    assert output.text == f"{thought}{START}assistant{CHANNEL}final{MESSAGE}{SAID}"
    assert channels.engine.spoken(output.text) == SAID
    assert channels.engine.tokenizer.piece(output.token_ids[-1]) in (CALL, RETURN, "<|endoftext|>")


# ------------------------------------------------------------------------------------- the other APIs, in channels

TO_G = f'{CHANNEL} "commentary to=functions.g " {CONSTRAIN} "json" {MESSAGE} "{{\\"unit\\": \\"F\\"}}"'
THINKING = f'{CHANNEL} "analysis" {MESSAGE} "{THOUGHT}" {END} {START} "assistant"'
SAYING = f'{CHANNEL} "commentary" {MESSAGE} "I look." {END} {START} "assistant"'
CLIENT_TOOLS = [{"name": each["function"]["name"], "input_schema": SCHEMA} for each in TOOLS]
FUNCTIONS: Any = [{"type": "function", **each["function"]} for each in TOOLS]


def blocks(channels: Talking, words: str, **more: Any) -> list[dict[str, Any]]:
    """The content of a message of Anthropic's API, which has the same blocks streamed."""
    form = {"grammar": f"start: {words}"}
    asked = {"messages": MESSAGES, "max_tokens": 150, "temperature": 0, "structured_outputs": form, **more}
    status, _, content = call(channels.server, "POST", "/v1/messages", asked)
    assert status == 200, content
    told: list[dict[str, Any]] = json.loads(content)["content"]
    streamed = events(call(channels.server, "POST", "/v1/messages", {**asked, "stream": True})[2])
    opened = [each["content_block"]["type"] for each in streamed if each["type"] == "content_block_start"]
    assert opened == [each["type"] for each in told]
    thoughts = [each["delta"].get("thinking", "") for each in streamed if each["type"] == "content_block_delta"]
    assert "".join(thoughts) == "".join(each.get("thinking", "") for each in told)
    signature = {"type": "signature_delta", "signature": ""}
    signed = [before["index"] for before, each in pairwise(streamed) if before.get("delta") == signature
              and each == {"type": "content_block_stop", "index": before["index"]}]  # fmt: skip
    assert signed == [at for at, each in enumerate(told) if each["type"] == "thinking"]
    return told


def test_reasoning_is_a_block_of_a_message(channels: Talking) -> None:
    thought, said, made = blocks(channels, f"{THINKING} {SAYING} {TO_G}", tools=CLIENT_TOOLS)
    assert thought == {"type": "thinking", "thinking": THOUGHT, "signature": ""}
    assert said == {"type": "text", "text": "I look."}
    assert (made["type"], made["name"], made["input"]) == ("tool_use", "g", {"unit": "F"})


@pytest.mark.parametrize(
    ("thinking", "is_shown"),
    [
        ({"type": "adaptive"}, True),
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive", "display": "omitted"}, False),
        ({"type": "disabled"}, False),
    ],
)
def test_a_message_leaves_reasoning_out_on_request(channels: Talking, thinking: Any, is_shown: bool) -> None:
    kinds = [each["type"] for each in blocks(channels, f"{THINKING} {SAYING} {TO_G}", thinking=thinking)]
    assert ("thinking" in kinds) == is_shown
    assert "text" in kinds


@pytest.mark.parametrize(
    ("effort", "level"), [("low", "low"), ("medium", "medium"), ("max", "high"), ("xhigh", "high")]
)
def test_effort_of_any_api_goes_to_the_template(effort: Any, level: str) -> None:
    body = MessagesBody(messages=[SpokenMessage("user", "a")], max_tokens=1, output_config=OutputConfig(effort=effort))
    assert conversation_of(body, STYLES["channels"]).chat_template_kwargs == {"reasoning_effort": level}
    assert conversation_of(body, STYLES["json"]).chat_template_kwargs is None
    asked = ResponsesBody(input="a", reasoning={"effort": effort, "summary": "auto"})
    for style, expected in (("channels", {"reasoning_effort": level}), ("json", None)):
        source = generation_of(asked, [], 9, STYLES[style], ServerSettings("demo")).source
        assert isinstance(source, Conversation)
        assert source.chat_template_kwargs == expected
        chat = ChatBody(messages=[{"role": "user", "content": "a"}], reasoning_effort=effort)
        source = chat_generation_of(chat, 9, ServerSettings("demo"), STYLES[style]).source
        assert isinstance(source, Conversation)
        assert source.chat_template_kwargs == expected


@pytest.mark.parametrize(("effort", "level"), [("none", "low"), ("minimal", "low"), ("max", "high")])
def test_a_level_that_the_model_has_not_counts_as_the_closest(effort: Any, level: str) -> None:
    chat = ChatBody(messages=[{"role": "user", "content": "a"}], reasoning_effort=effort)
    asked = ResponsesBody(input="a", reasoning={"effort": effort})
    for source in (
        chat_generation_of(chat, 9, ServerSettings("demo"), STYLES["channels"]).source,
        generation_of(asked, [], 9, STYLES["channels"], ServerSettings("demo")).source,
    ):
        assert isinstance(source, Conversation)
        assert source.chat_template_kwargs == {"reasoning_effort": level}


def test_reasoning_is_an_item_of_a_response(channels: Talking) -> None:
    form = {"structured_outputs": {"grammar": f"start: {THINKING} {SAYING} {TO_G}"}}
    asked: Any = {"model": "demo", "input": MESSAGES, "tools": FUNCTIONS, "max_output_tokens": 150, "extra_body": form}
    whole = channels.client.responses.create(**asked, temperature=0)
    thought, said, made = whole.output
    assert thought.type == "reasoning"
    assert (thought.summary, thought.encrypted_content) == ([], None)
    assert [each.text for each in thought.content or []] == [THOUGHT]
    assert said.type == "message"
    assert (made.type, whole.status) == ("function_call", "completed")
    assert whole.usage is not None
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    with channels.client.responses.stream(**asked, temperature=0) as stream:
        told = list(stream)
    assert "".join(each.delta for each in told if each.type == "response.reasoning_text.delta") == THOUGHT
    assert [each.item.type for each in told if each.type == "response.output_item.done"] == [
        "reasoning", "message", "function_call",
    ]  # fmt: skip


def test_reasoning_returns_to_the_template_with_its_call(channels: Talking) -> None:
    """By a client that keeps the conversation itself: as it came, or only the part that is sealed."""
    form = {"structured_outputs": {"grammar": f"start: {THINKING} {TO_G}"}}
    asked: Any = {"model": "demo", "tools": FUNCTIONS, "max_output_tokens": 150, "store": False}
    told = channels.client.responses.create(
        **asked, input=MESSAGES, include=["reasoning.encrypted_content"], extra_body=form
    )
    thought, made = (each.model_dump(exclude_none=True) for each in told.output)
    assert opened(thought["encrypted_content"]) == THOUGHT
    result = {"type": "function_call_output", "call_id": made["call_id"], "output": "7 F"}
    sealed_only = {**thought, "content": None}
    for item in (thought, sealed_only):
        body = ResponsesBody(input=[*MESSAGES, item, made, result], tools=FUNCTIONS)
        source = generation_of(body, [], 9, STYLES["channels"], ServerSettings("demo")).source
        assert isinstance(source, Conversation)
        assert source.messages[1]["thinking"] == THOUGHT
    foreign = {**sealed_only, "encrypted_content": "gAAAAABo-sealed-elsewhere"}
    body = ResponsesBody(input=[*MESSAGES, foreign, made, result], tools=FUNCTIONS)
    source = generation_of(body, [], 9, STYLES["channels"], ServerSettings("demo")).source
    assert isinstance(source, Conversation)
    assert "thinking" not in source.messages[1]
    message = {"role": "assistant", "content": [{"type": "thinking", "thinking": THOUGHT, "signature": "of-another"}]}
    message["content"].append({"type": "tool_use", "id": "1", "name": "g", "input": {}})  # type: ignore[attr-defined]
    result = {"type": "tool_result", "tool_use_id": "1", "content": "7 F"}
    turns = [SpokenMessage("user", "a"), SpokenMessage(**message), SpokenMessage("user", [result])]  # type: ignore[arg-type]
    assert (
        conversation_of(MessagesBody(messages=turns, max_tokens=1), STYLES["channels"]).messages[1]["thinking"]
        == THOUGHT
    )
