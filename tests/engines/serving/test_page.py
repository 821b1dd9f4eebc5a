"""The chat page in a real browser, by keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.engines.serving.speculative_config import DefaultDrafts
from tests.engines.serving.browser import PROGRAM, open_page

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")

QUESTION = "def count_vowels(text):"
ANSWERS = "[...document.querySelectorAll('.answer')].map(each => each.textContent)"


@pytest.fixture
def drafting_server(served_engine: Engine) -> Iterator[Server]:
    """It drafts whether that pays or not, which on a busy machine is not sure."""
    server = Server(served_engine, ServerSettings("demo", drafts=DefaultDrafts(num_speculative_tokens=3)), port=0)
    server.start()
    yield server
    server.stop(at_once=True)
    assert server.wait(10)


@pytest.mark.parametrize("is_dark", [False, True])
def test_a_question_is_answered_with_drafts_in_colour_and_the_same_without(
    drafting_server: Server, served_engine: Engine, tmp_path: Path, *, is_dark: bool
) -> None:
    expected = served_engine.chat([{"role": "user", "content": QUESTION}], SamplingParams(max_tokens=24)).text
    with open_page(tmp_path / "browser", is_dark=is_dark) as page:
        page.call("Page.navigate", url=drafting_server.url)
        page.until("document.activeElement?.id === 'text'")
        page.value("document.getElementById('most').value = 24")
        page.call("Input.insertText", text=QUESTION)
        page.key("Enter", "\r")
        page.until("!document.getElementById('again').disabled && !running")
        assert page.value(ANSWERS) == [expected]
        assert page.value("document.querySelectorAll('.answer .drafted').length") > 0
        assert page.value("document.querySelectorAll('.bar').length") > 0
        assert float(page.value("document.getElementById('rounds').textContent")) > 1
        page.value("document.getElementById('speculation').click()")
        page.value("document.getElementById('again').click()")
        page.until("document.getElementById('history').rows.length === 2 && !running")
        assert page.value(ANSWERS) == [expected, expected]
        assert page.value("document.querySelectorAll('.answer:last-child .drafted').length") == 0
        page.screenshot(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
        assert page.complaints == []
