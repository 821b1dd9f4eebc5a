"""The chat page in a real browser, by keyboard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.engines.serving.speculative_config import DefaultDrafts
from tests.engines.serving.browser import PROGRAM, Page, open_page

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


USERS = "[...document.querySelectorAll('.user')].map(each => each.textContent)"
SENT = "messages.map(each => each.role)"


def _ask(page: Page, text: str) -> None:
    """Send a question, and wait until the answer has ended, well or not."""
    page.value(f"document.getElementById('text').value = {json.dumps(text)}, 0")
    page.key("Enter", "\r")
    page.until("!running")


def _shown_problem(page: Page) -> str:
    """The text of the box of errors, of which every pixel is within the window."""
    problem: str = page.value("document.getElementById('problem').innerText")
    assert page.value(
        "(box => box.height > 0 && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth)"
        "(document.getElementById('problem').getBoundingClientRect())"
    )
    return problem


@pytest.mark.parametrize("width", [1200, 400])
def test_dialogue_continues_after_a_too_long_prompt(
    drafting_server: Server, served_engine: Engine, tmp_path: Path, width: int
) -> None:
    long = "def f(x):\n" * served_engine.max_seq_len
    with open_page(tmp_path / "browser", width) as page:
        page.call("Page.navigate", url=drafting_server.url)
        page.until("document.activeElement?.id === 'text'")
        page.value("document.getElementById('most').value = 8")
        for _ in range(6):  # more than the window shows
            _ask(page, QUESTION)
        before = page.value(SENT)
        _ask(page, long.strip())
        assert f"the context length is {served_engine.max_seq_len}" in _shown_problem(page)
        assert page.value("document.getElementById('text').value") == long.strip()
        assert page.value(USERS) == [QUESTION] * 6
        assert len(page.value(ANSWERS)) == 6
        assert "" not in page.value(ANSWERS)
        assert page.value(SENT) == before == ["user", "assistant"] * 6
        _ask(page, QUESTION)
        assert page.value("document.getElementById('problem').hidden")
        assert len(page.value(ANSWERS)) == 7
        assert "" not in page.value(ANSWERS)
        assert [each for each in page.complaints if '"source": "network"' not in each] == []


def test_a_long_dialogue_leaves_out_its_oldest_turns(
    drafting_server: Server, served_engine: Engine, tmp_path: Path
) -> None:
    context = served_engine.max_seq_len
    part = "def f(x):\n" * (context // 20)
    while len(served_engine.chat_prompt([{"role": "user", "content": part}])[1]) > context // 3:
        part = part[: len(part) * 9 // 10]
    with open_page(tmp_path / "browser") as page:
        page.call("Page.navigate", url=drafting_server.url)
        page.until("document.activeElement?.id === 'text'")
        page.value("document.getElementById('most').value = 4")
        for number in range(6):
            _ask(page, f"# {number}\n{part}".strip())
            assert page.value("document.getElementById('problem').hidden")
            assert len(page.value(ANSWERS)) == number + 1
        assert page.value(SENT)[0] == "user"
        assert len(page.value(SENT)) < 12
        assert "dropped" in page.value("document.querySelector('.note').textContent")
        assert page.value("messages.at(-2).content").startswith("# 5")


def test_answer_stopped_early_restores_the_question(drafting_server: Server, tmp_path: Path) -> None:
    with open_page(tmp_path / "browser") as page:
        page.call("Page.navigate", url=drafting_server.url)
        page.until("document.activeElement?.id === 'text'")
        page.value(
            "window.fetch = (_, { signal }) => new Promise((_, fail) =>"
            " signal.addEventListener('abort', () => fail(signal.reason))), 0"
        )
        page.call("Input.insertText", text=QUESTION)
        page.key("Enter", "\r")
        page.until("running !== null")
        page.key("Escape")
        page.until("!running")
        assert page.value("document.getElementById('text').value") == QUESTION
        assert page.value("document.getElementById('problem').hidden")
        assert page.value(SENT) == []
        assert page.value("document.querySelectorAll('.user, .answer').length") == 0


@pytest.mark.parametrize("is_dark", [False, True])
def test_answer_highlights_drafts_and_matches_plain_text(
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
