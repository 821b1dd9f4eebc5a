"""Messages rendered with the checkpoint's template: as in transformers, and within the limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.engines.text import meter
from peagle.engines.text.chat_template import ChatTemplate
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.chat_templates import CHATML, FAMILIES, GEMMA, LLAMA3, REACHING

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "text": "<a & 'b'> é"}}}
CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}
HI, HELLO, BYE = ({"role": r, "content": c} for r, c in (("user", " Hi\n"), ("assistant", "Hello"), ("user", "Bye")))
SYSTEM = {"role": "system", "content": "Be <brief> & kind."}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, SPECIAL)


COMPILED = {source: template(source) for source in (CHATML, FAMILIES["qwen3"])}


def of_transformers(source: str, messages: list[dict[str, Any]], **arguments: Any) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    (text,), _ = render_jinja_template([messages], chat_template=source, **arguments, **SPECIAL)
    return str(text)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("messages", [[HI], [SYSTEM, HI], [HI, HELLO, BYE], [SYSTEM, HI, HELLO, BYE]])
@pytest.mark.parametrize("prompt", [True, False])
def test_a_conversation_is_the_text_of_transformers(family: str, messages: list[dict[str, Any]], prompt: bool) -> None:
    rendered = template(FAMILIES[family]).render(messages, add_generation_prompt=prompt)
    assert rendered == of_transformers(FAMILIES[family], messages, add_generation_prompt=prompt)


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_tools_and_variables_are_handed_on(family: str) -> None:
    messages = [HI, CALL, {"role": "tool", "content": "42"}]
    arguments = {"date_string": "1 Jan 2030", "enable_thinking": False}
    rendered = template(FAMILIES[family]).render(messages, tools=[TOOL], arguments=arguments)
    expected = of_transformers(FAMILIES[family], messages, tools=[TOOL], add_generation_prompt=True, **arguments)
    assert rendered == expected
    assert "<a & 'b'> é" in rendered


@settings(deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text(max_size=20)}
        ),
        min_size=1,
        max_size=6,
    )
)
def test_any_conversation_is_the_text_of_transformers(messages: list[dict[str, Any]]) -> None:
    for source, ours in COMPILED.items():
        assert ours.render(messages) == of_transformers(source, messages, add_generation_prompt=True)


def test_developer_is_the_system_of_templates_that_do_not_know_that_role() -> None:
    messages = [{"role": "developer", "content": "Be kind."}, HI]
    for source in (CHATML, LLAMA3):
        assert template(source).render(messages) == template(source).render([{**messages[0], "role": "system"}, HI])
    knows = "{% for m in messages %}{% if m.role in ['system', 'developer'] %}{{ m.role }}{% endif %}{% endfor %}"
    assert template(knows).render(messages) == "developer"


CONTINUED = [[HI, HELLO], [SYSTEM, HI, {"role": "assistant", "content": " Hello \n"}], [HI, HELLO, BYE], [HI]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("messages", CONTINUED)
def test_a_continued_message_is_the_text_of_transformers(family: str, messages: list[dict[str, Any]]) -> None:
    source = FAMILIES[family]
    ours = template(source).render(messages, add_generation_prompt=False, continue_final_message=True)
    assert ours == of_transformers(source, messages, continue_final_message=True)
    assert ours.rstrip().endswith(messages[-1]["content"].strip())


def test_a_message_that_cannot_be_continued_is_refused() -> None:
    for source, messages, says in (
        (CHATML, [HI, CALL], r"messages\[1\] has no content"),
        ("{{ messages[0].content }}", [HI, HELLO], "the conversation's final message cannot be continued"),
        ("{{ messages[-1].content | upper }}", [HI, HELLO], "the conversation's final message cannot be continued"),
    ):
        with pytest.raises(UsageError, match=says):
            template(source).render(messages, continue_final_message=True)


def test_loop_controls_generation_tags_and_dates_are_known() -> None:
    source = (
        "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{% generation %}{{ m.content }}"
        "{% endgeneration %}{% endfor %}{{ strftime_now('%d') | length }}{{ dict(a=1)['a'] }}{{ loop is defined }}"
    )
    assert template(source).render([HI, HELLO]) == " Hi\n21False"


def test_tool_template_is_used_with_tools() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "with tools"}, {})
    assert (both.render([HI]), both.render([HI], tools=[TOOL])) == ("plain", "with tools")
    with pytest.raises(EnvironmentProblem, match="there is no chat template named 'default'"):
        ChatTemplate({"rag": "x"}, {}).render([HI])


def test_template_rejection_is_passed_on() -> None:
    with pytest.raises(UsageError, match="rejected the messages") as caught:
        template(GEMMA).render([HI, BYE])
    assert caught.value.why.startswith("the template's message is 'Conversation roles must alternate")


@pytest.mark.parametrize("source", ["{{ a.b.c }}", "{{ 1 / 0 }}", "{{ messages + 1 }}", "{% include 'x' %}"])
def test_render_failure_is_a_typed_error(source: str) -> None:
    with pytest.raises(UsageError, match="cannot render the messages"):
        template(source).render([HI])


@pytest.mark.parametrize(
    "source",
    ["{% if", "{{ x | nofilter }}", "{% break %}", "{{ " + "(" * 3000, "{% if 1 %}" * 3000, "{{ a" + ".a" * 9000],
)
def test_invalid_template_is_a_typed_error(source: str) -> None:
    with pytest.raises(EnvironmentProblem, match="is not valid Jinja"):
        template(source).check()


@pytest.mark.parametrize("name", REACHING)
def test_a_template_that_reaches_out_is_stopped(name: str) -> None:
    with pytest.raises(EnvironmentProblem, match="attempted a forbidden access"):
        template(REACHING[name]).render([HI])


def test_a_template_without_end_is_stopped_before_it_takes_time_or_memory() -> None:
    """In a process of its own, which may take a minute and a gigabyte; with fewer steps, which takes less time."""
    code = (
        "import resource\nfrom peagle.engines.text import meter\nfrom tests.chat_templates import ENDLESS\n"
        "from tests.engines.text.test_chat_template import stopped\nmeter.MAX_STEPS = 20_000\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (60, 60))\nresource.setrlimit(resource.RLIMIT_DATA, (2**30, 2**30))\n"
        "print([name for name in ENDLESS if not stopped(ENDLESS[name])])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.stdout == "[]\n", done.stderr


def test_time_is_limited_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "MAX_SECONDS", 0.0)
    with pytest.raises(EnvironmentProblem) as caught:
        template("{% for i in range(99) %}{% endfor %}").render([HI])
    assert caught.value.why == "the template runs for more than 0 seconds"


def stopped(source: str) -> bool:
    """Return True if rendering raises the limit's error."""
    try:
        template(source).render([HI])
    except EnvironmentProblem as error:
        return "was stopped" in error.what
    return False


def test_the_limits_grow_with_the_messages() -> None:
    long = [HI | {"content": "x" * 2_000_000}, HELLO | {"content": "y" * 2_000_000}, BYE] * 2
    assert len(template(LLAMA3).render(long)) > 8_000_000
    assert len(template(CHATML).render([HI] * 3000)) > 60_000


@pytest.mark.parametrize(
    ("source", "end"),
    [(CHATML, "<|im_end|>"), (LLAMA3, "<|eot_id|>"), (GEMMA, "<end_of_turn>"), ("{{ messages }}", None)],
)
def test_token_after_an_answer_ends_the_turn(source: str, end: str | None) -> None:
    def encode(text: str) -> list[int]:
        return [tokens.index(token) for token in tokens if text.startswith(token)]

    tokens = ["<|im_end|>", "<|eot_id|>", "<end_of_turn>"]
    found = template(source).end_of_turn(encode, lambda _: True)
    assert (None if found is None else tokens[found]) == end
    assert template(source).end_of_turn(encode, lambda _: False) is None
