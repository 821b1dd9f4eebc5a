"""A user of the chat page in a browser, with keyboard and clicks; expressions locate what the page shows."""

from __future__ import annotations

import json
from typing import Any

from tests.engines.serving.browser import Page

QUESTION = "def count_vowels(text):"
USERS = "[...document.querySelectorAll('.user .said')].map(each => each.textContent)"
ANSWERS = "[...document.querySelectorAll('.answer .text')].map(each => each.textContent)"
TITLES = "[...document.querySelectorAll('#list .open')].map(each => each.textContent)"
READY = "document.activeElement?.id === 'text'"
IDLE = "!document.body.classList.contains('runs') && document.getElementById('waiting').hidden"
RUNS = "document.body.classList.contains('runs')"
BEGUN = "document.querySelector('.answer:last-child .text')?.textContent.length > 3"
NARROW = 5_000  # bytes per second, at which an answer takes seconds to arrive


def most(page: Page, tokens: int) -> None:
    """Set the maximum number of tokens of an answer."""
    change = f"field.value = {tokens}; field.dispatchEvent(new Event('input'))"
    page.value(f"(field => {{ {change} }})(document.getElementById('most'))")


def click(page: Page, name: str, within: str = "body") -> None:
    """Click on the last button with this text or label."""
    page.value(
        f"[...document.querySelectorAll('{within} button')].findLast(each => each.offsetParent !== null &&"
        f" [each.textContent.trim(), each.ariaLabel].includes({json.dumps(name)})).click()"
    )


def ask(page: Page, text: str, *, waits: bool = True) -> None:
    """Send a question by keyboard, and wait until the answer has ended, well or not."""
    page.value(f"(box => {{ box.value = {json.dumps(text)}; box.focus() }})(document.getElementById('text'))")
    page.key("Enter")
    if waits:
        page.until(IDLE)


def sources(page: Page) -> list[str]:
    """The answers of the newest conversation as the browser keeps them."""
    found: list[str] = page.value(
        "Object.keys(localStorage).filter(key => key.includes(' chat ')).map(key => JSON.parse(localStorage[key]))"
        ".sort((one, other) => other.updated - one.updated)[0].turns.filter(turn => turn.role === 'assistant')"
        ".map(turn => turn.runs.map(run => run[0]).join(''))"
    )
    return found


def shown_problem(page: Page) -> str:
    """The text of the box of errors, of which every pixel is within the window."""
    problem: str = page.value("document.getElementById('problem').innerText")
    assert page.value(
        "(box => box.height > 0 && box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth)"
        "(document.getElementById('problem').getBoundingClientRect())"
    )
    return problem


def store(page: Page, conversation: dict[str, Any]) -> None:
    """Open the page again with this conversation in its list."""
    page.value(f"localStorage.setItem('peagle-compile / chat x', {json.dumps(json.dumps(conversation))})")
    page.call("Page.reload")
    page.until(f"{READY} && {TITLES}.length === 1")
