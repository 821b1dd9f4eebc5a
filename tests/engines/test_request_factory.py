"""Requests of conversations: their grammar begins where the prompt ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.engines.answer_styles.tagged_calls import OPEN
from peagle.engines.folder.manifest import Manifest
from peagle.engines.request_factory import RequestFactory
from peagle.engines.requests.params import SamplingParams
from peagle.engines.text.tokenizer import Tokenizer

pytest.importorskip("llguidance")

TOOLS: Any = [{"type": "function", "function": {"name": "f"}}]
ASKED: Any = [{"role": "user", "content": "def f(x):"}]
BEGUN: Any = [*ASKED, {"role": "assistant", "content": "<think>\nWarm"}]
ENDED: Any = [*ASKED, {"role": "assistant", "content": "<think>\nWarm\n</think>\n\nIt"}]
SAY = "{%- for m in messages %}{{ m.content }}{% endfor %}"
USUALLY_OPENED = SAY + "{% if add_generation_prompt and enable_thinking is not false %}{{ '<think>\n' }}{% endif %}"
USUALLY_CLOSED = SAY + "{% if add_generation_prompt and thinking %}{{ '<think>\n' }}{% endif %}"
CONTINUES = {"continue_final_message": True}


@pytest.mark.parametrize(
    ("template", "messages", "options", "in_thought"),
    [
        (USUALLY_OPENED, ASKED, {}, True),
        (USUALLY_OPENED, ASKED, {"chat_template_kwargs": {"enable_thinking": False}}, False),
        (USUALLY_OPENED, ENDED, CONTINUES, False),
        (USUALLY_CLOSED, ASKED, {}, False),
        (USUALLY_CLOSED, ASKED, {"chat_template_kwargs": {"thinking": True}}, True),
        (USUALLY_CLOSED, BEGUN, CONTINUES, True),
    ],
)
def test_optional_calls_are_enforced_outside_of_the_reasoning_that_the_prompt_opens(
    talking_engine: Path, template: str, messages: Any, options: dict[str, Any], in_thought: bool
) -> None:
    manifest = Manifest.read(talking_engine)
    tokenizer = Tokenizer(talking_engine, manifest.eos_token_ids, manifest.shapes.vocab_size)
    size = manifest.shapes.max_seq_len
    factory = RequestFactory(
        talking_engine, manifest, tokenizer, None, None, prepares_rounds=False, max_seq_len=size, chat_template=template
    )
    params = SamplingParams(structured_outputs=factory.optional_calls(TOOLS, None))
    request = factory.conversation(messages, params, tools=TOOLS, **options)
    grammar = request.choice and request.choice.grammar
    assert grammar
    for token in tokenizer.encode(f"So. {OPEN}", adds_special=False):
        assert grammar.allowed()[token]
        grammar.advance(token)
    assert grammar.allowed()[min(tokenizer.eos_token_ids)] == in_thought, "text may end here, and a call may not"
