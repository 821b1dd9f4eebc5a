"""Conversations stored in the browser: listed, renamed, deleted, and without storage."""

from __future__ import annotations

import json

import pytest

from tests.engines.serving.browser import Page
from tests.engines.serving.page.reader import (
    ANSWERS,
    BEGUN,
    IDLE,
    NARROW,
    QUESTION,
    READY,
    TITLES,
    USERS,
    ask,
    click,
    most,
)


def test_conversations_are_kept_renamed_and_deleted(page: Page) -> None:
    most(page, 8)
    ask(page, "# first")
    click(page, "New conversation")
    assert page.value(USERS) == []
    ask(page, "# second")
    before = page.value(ANSWERS)
    assert page.value(TITLES) == ["# second", "# first"]
    page.call("Page.reload")
    page.until(f"{READY} && {TITLES}.length === 2")
    assert page.value("document.getElementById('most').value") == "8"
    click(page, "# second")
    assert (page.value(USERS), page.value(ANSWERS)) == (["# second"], before)
    click(page, "Rename # second")
    page.type("Vowels <b>")
    page.key("Enter")
    assert page.value(TITLES) == ["Vowels <b>", "# first"]
    ask(page, "# more")
    assert page.value(TITLES) == ["Vowels <b>", "# first"], "a given title stays"
    click(page, "Delete Vowels <b>")
    assert page.value(TITLES) == ["# first"]
    assert page.value(USERS) == []
    click(page, "Undo")
    assert page.value(TITLES) == ["Vowels <b>", "# first"]
    assert page.value(USERS) == ["# second", "# more"]


def test_another_conversation_can_be_read_while_an_answer_is_written(page: Page) -> None:
    most(page, 40)
    ask(page, "# first")
    click(page, "New conversation")
    page.narrow(NARROW)
    ask(page, QUESTION, waits=False)
    page.until(BEGUN)
    click(page, "# first")
    assert page.value(USERS) == ["# first"]
    page.narrow(-1)
    page.until(IDLE)
    assert page.value(USERS) == ["# first"]
    click(page, QUESTION)
    assert page.value(USERS) == [QUESTION]
    assert len(page.value(ANSWERS)[0]) > 3


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            "Object.defineProperty(window, 'localStorage', { get() { throw new Error() } })",
            "This browser does not store conversations",
        ),
        ("Storage.prototype.setItem = () => { throw new Error() }", "storage is full"),
    ],
)
def test_chat_works_where_nothing_can_be_stored(page: Page, broken: str, message: str) -> None:
    page.call("Page.addScriptToEvaluateOnNewDocument", source=broken)
    page.call("Page.reload")
    page.until("document.body?.classList.contains('colours')")
    page.until(READY)
    most(page, 8)
    ask(page, QUESTION)
    assert message in page.value("document.getElementById('kept').textContent")
    click(page, "New conversation")
    click(page, QUESTION)
    assert page.value(USERS) == [QUESTION]


@pytest.mark.parametrize("stored", ["null", "{", '{"id": "x", "turns": [{}]}', '{"id": 1, "turns": []}', "[1]"])
def test_stored_items_that_are_not_conversations_are_left_unchanged(page: Page, stored: str) -> None:
    page.value(f"localStorage.setItem('peagle-compile / chat x', {json.dumps(stored)})")
    page.value(f"localStorage.setItem('peagle-compile / settings', {json.dumps(stored)})")
    page.call("Page.reload")
    page.until("document.body?.classList.contains('colours')")
    assert page.value(TITLES) == []
