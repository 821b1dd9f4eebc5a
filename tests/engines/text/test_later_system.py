"""System messages within a conversation, with templates that write them and templates that do not."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from peagle.engines import Engine
from peagle.engines.text.chat_template import ChatTemplate
from peagle.engines.text.later_system import has_later_system, in_user_turns
from peagle.engines.text.template_files import DEFAULT
from tests.chat_templates import FAMILIES

# As GPT-OSS's: only the first message may be the system's, and only these roles are written.
DROPPING = """{% if messages[0].role == 'system' or messages[0].role == 'developer' %}{{ messages[0].content }}
{% set messages = messages[1:] %}{% endif %}
{% for m in messages %}{% if m.role in ('user', 'assistant', 'tool') %}[{{ m.role }}]{{ m.content }}{% endif %}
{% endfor %}"""
# As DeepSeek-R1's: the last message of the system is the only one.
REPLACING = """{% set ns = namespace(system='') %}
{% for m in messages %}{% if m.role == 'system' %}{% set ns.system = m.content %}{% endif %}{% endfor %}
{{ ns.system }}{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"""
BOTH = {"system", "developer"}


def said(*turns: str) -> list[dict[str, Any]]:
    """Messages of turns such as "user: a"."""
    return [dict(zip(("role", "content"), each.split(": "), strict=True)) for each in turns]


@pytest.mark.parametrize(
    ("source", "roles"),
    [
        (DROPPING, set()), (REPLACING, set()), (FAMILIES["gemma"], set()), (FAMILIES["qwen3"], BOTH),
        (FAMILIES["chatml"], BOTH), ("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}"
        "{% endfor %}", set()),
    ],
    ids=["dropping", "replacing", "gemma", "qwen3", "chatml", "none"],
)  # fmt: skip
def test_a_template_shows_which_later_messages_it_writes(source: str, roles: set[str]) -> None:
    assert ChatTemplate({DEFAULT: source}, {"bos_token": ""}).later_roles == roles


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (["user: a", "assistant: b", "system: c", "user: d"], ["user: a", "assistant: b", "user: c\n\nd"]),
        (["user: a", "system: b"], ["user: a\n\nb"]),
        (["user: a", "system: b", "developer: c", "assistant: d"], ["user: a\n\nb\n\nc", "assistant: d"]),
        (["system: a", "developer: b", "user: c"], ["system: a\n\nb", "user: c"]),
        (["user: a", "assistant: b", "tool: c", "system: d"], ["user: a", "assistant: b", "tool: c", "user: d"]),
        (
            ["user: a", "assistant: b", "system: c", "tool: d", "assistant: e"],
            ["user: a", "assistant: b", "tool: d", "user: c", "assistant: e"],
        ),
    ],
)
def test_later_messages_of_the_system_are_text_of_the_user(before: list[str], after: list[str]) -> None:
    assert in_user_turns(said(*before), ()) == said(*after)
    assert in_user_turns(said(*before), BOTH) == said(*before)


def test_only_messages_after_the_first_are_later() -> None:
    assert not has_later_system(said("system: a", "user: b"))
    assert has_later_system(said("user: a", "developer: b"))


@pytest.mark.parametrize("source", [DROPPING, REPLACING, FAMILIES["gemma"]], ids=["dropping", "replacing", "gemma"])
def test_a_prompt_has_every_message_of_the_system(source: str, demo_engine: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(demo_engine, tmp_path / "engine"))
    (folder / "chat_template.jinja").write_text(source)
    turns = said("system: First.", "user: a", "assistant: b", "system: Second.", "user: c", "developer: Third.")
    with Engine.load(folder, threads=1) as engine:
        text, _ = engine.chat_prompt(turns)
    assert text.index("First.") < text.index("b") < text.index("Second.") < text.index("c") < text.index("Third.")
