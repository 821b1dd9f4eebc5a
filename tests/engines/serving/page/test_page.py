"""The chat page in a real browser: questions, stops, edits and comparisons."""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
import tarfile
import threading
import time
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.serving.server import Server
from tests.engines.serving.browser import Browser, Page
from tests.engines.serving.page.reader import (
    ANSWERS,
    BEGUN,
    IDLE,
    NARROW,
    QUESTION,
    READY,
    RUNS,
    TITLES,
    USERS,
    ask,
    click,
    most,
    shown_problem,
    sources,
    store,
)


def test_answer_marks_drafts_and_is_the_engine_s_text(page: Page, served_engine: Engine) -> None:
    expected = served_engine.chat([{"role": "user", "content": QUESTION}], SamplingParams(max_tokens=24)).text
    most(page, 24)
    ask(page, QUESTION)
    (answer,) = page.value(ANSWERS)
    assert sources(page) == [expected]
    tint = "getComputedStyle(document.querySelector('.answer .drafted')).backgroundColor"
    assert page.value(tint) != "rgba(0, 0, 0, 0)"
    page.value("document.getElementById('colours').click()")
    assert page.value(tint) == "rgba(0, 0, 0, 0)"
    assert page.value("document.querySelectorAll('#bars li').length") > 0
    assert "per round" in page.value("document.querySelector('.answer .figures').textContent")
    assert "24 tokens" in page.value("document.getElementById('status').textContent")
    page.value("document.getElementById('drafts').click()")
    click(page, "Regenerate")
    page.until(IDLE)
    assert page.value(ANSWERS) == [answer]
    assert page.value("document.querySelectorAll('.answer .drafted').length") == 0
    assert page.value(USERS) == [QUESTION]


@pytest.mark.parametrize("width", [1200, 400])
def test_dialogue_continues_after_a_too_long_prompt(
    browser: Browser, drafting_server: Server, served_engine: Engine, width: int
) -> None:
    long = ("def f(x):\n" * served_engine.max_seq_len).strip()
    with browser.open(drafting_server.url, width) as page:
        page.until(READY)
        most(page, 8)
        for _ in range(6):  # more than fits in the window
            ask(page, QUESTION)
        ask(page, long)
        assert f"the context length is {served_engine.max_seq_len}" in shown_problem(page)
        assert page.value("document.getElementById('text').value") == long
        assert page.value(USERS) == [QUESTION] * 6
        assert len(page.value(ANSWERS)) == 6
        page.value("document.getElementById('text').value = ''")
        ask(page, QUESTION)
        assert page.value("document.getElementById('problem').hidden")
        assert len(page.value(ANSWERS)) == 7
        assert "" not in page.value(ANSWERS)
        assert [each for each in page.complaints if '"source": "network"' not in each] == []


def test_a_long_dialogue_leaves_out_its_oldest_turns(page: Page, served_engine: Engine) -> None:
    context = served_engine.max_seq_len
    part = "def f(x):\n" * (context // 20)
    while len(served_engine.chat_prompt([{"role": "user", "content": part}])[1]) > context // 3:
        part = part[: len(part) * 9 // 10]
    most(page, 4)
    for number in range(4):
        ask(page, f"# {number}\n{part}".strip())
        assert page.value("document.getElementById('problem').hidden")
        assert len(page.value(ANSWERS)) == number + 1
    note = page.value("document.querySelector('.note').textContent")
    assert "no longer sent to the model" in note
    assert page.value("document.querySelector('.note').previousElementSibling !== null"), "what is left out is above"
    assert len(page.value(USERS)) == 4


def test_answer_stopped_before_its_first_token_restores_the_question(page: Page) -> None:
    page.value(
        "window.fetch = (_, { signal }) => new Promise((_, fail) =>"
        " signal.addEventListener('abort', () => fail(signal.reason))), 0"
    )
    ask(page, QUESTION, waits=False)
    page.until("document.querySelector('.waiting')?.checkVisibility()")
    page.until(r"/, \d+ s/.test(document.querySelector('.waiting').textContent)")
    page.key("Escape")
    page.until(IDLE)
    assert page.value("document.getElementById('text').value") == QUESTION
    assert page.value("document.getElementById('problem').hidden")
    assert page.value("document.querySelectorAll('.user, .answer').length") == 0


def test_answer_that_cannot_be_regenerated_stays(page: Page) -> None:
    most(page, 8)
    ask(page, QUESTION)
    before = page.value(ANSWERS)
    page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)
    click(page, "Regenerate")
    page.until(IDLE)
    assert "server cannot be reached" in shown_problem(page)
    assert (page.value(USERS), page.value(ANSWERS)) == ([QUESTION], before)
    page.narrow(-1)
    click(page, "Regenerate")
    page.until(IDLE)
    assert page.value("document.getElementById('problem').hidden")
    assert page.value(ANSWERS) == before
    assert all("ERR_INTERNET_DISCONNECTED" in each for each in page.complaints)
    page.complaints.clear()


def test_stopped_answer_is_marked_and_can_be_continued(page: Page) -> None:
    most(page, 60)
    page.narrow(NARROW)
    ask(page, QUESTION, waits=False)
    page.until(BEGUN)
    click(page, "Stop")
    page.until(IDLE)
    page.narrow(-1)
    (part,) = sources(page)
    assert "Stopped." in page.value("document.querySelector('.cut').textContent")
    click(page, "Continue")
    page.until(IDLE)
    (whole,) = sources(page)
    assert whole.startswith(part)
    assert len(whole) > len(part)


def test_answer_cut_at_the_maximum_is_marked_and_continues_as_if_it_was_not(page: Page, served_engine: Engine) -> None:
    messages = [{"role": "user", "content": QUESTION}]
    expected = served_engine.chat(messages, SamplingParams(max_tokens=24)).text
    most(page, 12)
    ask(page, QUESTION)
    assert "maximum number of tokens" in page.value("document.querySelector('.cut').textContent")
    click(page, "Continue")
    page.until(IDLE)
    assert sources(page) == [expected]


def test_messages_wait_for_the_answer_and_can_be_taken_back(page: Page) -> None:
    most(page, 40)
    page.narrow(NARROW)
    ask(page, QUESTION, waits=False)
    page.until(BEGUN)
    for text in ("# second", "# third", "# fourth"):
        ask(page, text, waits=False)
    page.until("document.querySelectorAll('#queue li').length === 3")
    assert page.value(USERS) == [QUESTION]
    click(page, "Remove the waiting message: # third")
    click(page, "Edit the waiting message: # fourth")
    assert page.value("document.getElementById('text').value") == "# fourth"
    page.narrow(-1)
    page.until(IDLE)
    assert page.value(USERS) == [QUESTION, "# second"]
    assert len(page.value(ANSWERS)) == 2


def test_edited_question_replaces_later_turns(page: Page) -> None:
    most(page, 8)
    for text in ("# one", "# two", "# three"):
        ask(page, text)
    page.key("ArrowUp")
    assert page.value("document.activeElement.value") == "# three"
    page.key("Escape")
    assert page.value("document.activeElement.textContent") == "Edit"
    page.value("[...document.querySelectorAll('.user button')].filter(each => each.textContent === 'Edit')[1].click()")
    assert "later turns are replaced" in page.value("document.querySelector('.edited').textContent")
    page.value("document.activeElement.select()")
    page.type("# other")
    page.key("Enter")
    page.until(IDLE)
    assert page.value(USERS) == ["# one", "# other"]
    assert len(page.value(ANSWERS)) == 2


def test_system_prompt_is_sent(page: Page, served_engine: Engine) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]
    expected = served_engine.chat(messages, SamplingParams(max_tokens=16)).text
    most(page, 16)
    page.value("document.getElementById('system').focus()")
    page.type("Be brief.")
    ask(page, QUESTION)
    assert sources(page) == [expected]


def test_reasoning_is_folded(page: Page) -> None:
    answer = {"role": "assistant", "runs": [["b", 0]], "thought": "c < d"}
    store(page, {"id": "x", "turns": [{"role": "user", "text": "a"}, answer]})
    click(page, "a")
    assert page.value("document.querySelector('.thought').textContent") == "Reasoningc < d"
    assert not page.value("document.querySelector('.thought').open")


class Relay:
    """A way to the server that can be slow, and can be cut."""

    def __init__(self, server: Server) -> None:
        self._server, self._listener = server, socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.is_slow = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """End all connections, and accept no more."""
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ends = self._listener.accept()[0], socket.create_connection((self._server.host, self._server.port))
                self._sockets += ends
                for one, other in (ends, ends[::-1]):
                    threading.Thread(target=self._forward, args=(one, other), daemon=True).start()

    def _forward(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while content := one.recv(1 << 10):
                other.sendall(content)
                time.sleep(len(content) / NARROW if self.is_slow else 0)


def test_lost_connection_keeps_and_marks_the_answer(browser: Browser, drafting_server: Server) -> None:
    relay = Relay(drafting_server)
    with browser.open(relay.url) as page:
        page.until(READY)
        most(page, 200)
        relay.is_slow = True
        ask(page, QUESTION, waits=False)
        page.until(BEGUN)
        ask(page, "# waits", waits=False)
        relay.cut()
        page.until(f"!{RUNS}")
        assert "connection to the server was lost" in page.value("document.querySelector('.cut').textContent")
        assert "connection was lost" in shown_problem(page)
        assert len(page.value(ANSWERS)[0]) > 3
        assert page.value("document.querySelectorAll('#queue li').length") == 1, "what waits is not sent into the void"
        click(page, "Send now")
        page.until(f"!{RUNS}")
        assert "server cannot be reached" in shown_problem(page)
        assert page.value("document.getElementById('text').value") == "# waits"


def test_reader_who_scrolls_up_is_left_there(page: Page) -> None:
    most(page, 60)
    for _ in range(5):
        ask(page, QUESTION)
    log, end = "document.getElementById('dialogue')", "document.getElementById('to-end')"
    at_end = f"{log}.scrollHeight - {log}.scrollTop - {log}.clientHeight < 2"
    page.narrow(NARROW)
    ask(page, QUESTION, waits=False)
    page.until(f"{BEGUN} && {at_end}")
    page.value(f"{log}.scrollTop = 10")
    page.until(f"!{end}.hidden")
    page.narrow(-1)
    page.until(IDLE)
    assert page.value(f"{log}.scrollTop") == 10
    page.value(f"{end}.click()")
    page.until(f"{at_end} && {end}.hidden")
    ask(page, QUESTION)
    page.until(f"{at_end} && {end}.hidden")


@pytest.mark.parametrize("at_once", [False, True])
def test_comparison_shows_both_answers_and_their_speed(page: Page, *, at_once: bool) -> None:
    most(page, 48)
    if at_once:
        page.value("document.getElementById('isAtOnce').click()")
    click(page, "Compare")
    page.narrow(8 * NARROW)
    ask(page, QUESTION)
    one, other = page.value(ANSWERS)
    assert one == other
    assert page.value("document.querySelectorAll('.lane.without .drafted').length") == 0
    assert page.value("document.querySelectorAll('.lane.with .drafted').length") > 0
    assert page.value("document.querySelectorAll('.race .chart polyline').length") == 2
    assert "tokens/s" in page.value("document.querySelector('.lane.with h3').textContent")
    verdict = page.value("document.querySelector('.verdict').textContent")
    assert re.search(r"\d\.\d\d times as fast, and the text is the same", verdict)
    page.narrow(-1)
    click(page, "Compare")
    ask(page, "# next")
    assert len(page.value(ANSWERS)) == 3
    page.call("Page.reload")
    page.until(f"{READY} && {TITLES}.length === 1")
    click(page, QUESTION)
    assert page.value("document.querySelector('.verdict').textContent") == verdict


def test_key_is_required_below_a_root_path(browser: Browser, guarded_server: Server) -> None:
    with browser.open(f"{guarded_server.url}/llm") as page:
        page.until("document.activeElement?.id === 'key'")
        assert shown_problem(page) == "This server needs an API key."
        page.type("wrong")
        page.key("Enter")
        page.until("document.getElementById('problem').textContent.includes('not valid')")
        assert page.value("document.activeElement.id") == "key"
        page.value("document.getElementById('key').value = ''")
        page.type("secret")
        page.key("Enter")
        page.until("document.getElementById('model').textContent === 'demo'")
        assert page.value("document.getElementById('key-form').hidden")
        most(page, 8)
        ask(page, QUESTION)
        assert len(page.value(ANSWERS)) == 1
        assert page.value("performance.getEntriesByType('resource').every(each => each.name.includes('/llm/'))")


def test_phone_begins_with_panels_folded_and_returns_the_focus(browser: Browser, drafting_server: Server) -> None:
    with browser.open(drafting_server.url, 390, 844) as page:
        page.until(READY)
        assert page.value("document.getElementById('settings').hidden && document.getElementById('chats').hidden")
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        click(page, "Settings")
        assert page.value("document.getElementById('main').inert")
        assert page.value("document.activeElement.id") == "settings-close"
        page.key("Escape")
        assert page.value("document.activeElement.id") == "settings-button"
        assert not page.value("document.getElementById('main').inert")


def test_browser_refuses_html_from_scripts(browser: Browser, drafting_server: Server) -> None:
    with browser.open(drafting_server.url) as page:
        page.until(READY)
        assert "TrustedHTML" in page.value(
            "(() => { try { document.createElement('p').innerHTML = 'a' } catch (error) { return error.message } })()"
        )


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    """axe-core's script, from the npm registry."""
    npm, folder = shutil.which("npm"), tmp_path_factory.mktemp("axe")
    if npm is None:
        pytest.skip("no npm on this machine")
    done = subprocess.run([npm, "pack", "--silent", "axe-core@4.14.1"], cwd=folder, capture_output=True, check=False)
    if done.returncode:
        pytest.skip("the npm registry cannot be reached")
    with tarfile.open(next(Path(folder).glob("*.tgz"))) as archive:
        script = archive.extractfile("package/axe.min.js")
        assert script is not None
        return script.read().decode()


MARKDOWN = (
    "# A\n\n1. b\n\n```py\nx = 'l' # o\n```\n\n| c | d |\n|---|---|\n| `e` | [f](https://g.h) |\n\n> i\n\n- [ ] j\n"
)
VIOLATIONS = """axe.run().then(found => found.violations.map(each =>
    [each.impact, each.id, each.nodes.map(node => node.html + node.failureSummary).join()]))"""


ANSWER = {"role": "assistant", "runs": [[MARKDOWN, 0], [MARKDOWN, 1]], "cut": "stopped", "thought": "k"}
STORED = {"id": "x", "turns": [{"role": "user", "text": "a"}, ANSWER] * 2, "dropped": 1}
OPENED = "document.querySelector('#list .open').click()"
MAX_BYTES = 150_000
WEIGHT = """[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
    .map(each => each.transferSize).reduce((one, other) => one + other)"""


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("is_dark", [False, True])
def test_page_is_light_and_fits_on_desktops_and_phones(
    browser: Browser, drafting_server: Server, pytestconfig: pytest.Config, width: int, *, is_dark: bool
) -> None:
    """For a person to look at, pictures are kept in pytest's cache."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("chat-page")
    with browser.open(drafting_server.url, width, is_dark=is_dark) as page:
        page.until(READY)
        assert 20_000 < page.value(WEIGHT) < MAX_BYTES
        store(page, STORED)
        page.value(OPENED)
        page.until("document.querySelectorAll('.answer table').length === 4")
        assert page.value("document.documentElement.scrollWidth <= innerWidth")
        back = page.value("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", back))) < 60) == is_dark
        picture = page.picture()
        (folder / f"{'phone' if width < 800 else 'desktop'}-{'dark' if is_dark else 'light'}.png").write_bytes(picture)
        scale = page.value("devicePixelRatio")
        assert int.from_bytes(picture[16:20]) == width * scale
        assert page.complaints == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("is_dark", [False, True])
def test_axe_finds_nothing_serious(
    browser: Browser, drafting_server: Server, axe: str, width: int, *, is_dark: bool
) -> None:
    with browser.open(drafting_server.url, width, is_dark=is_dark) as page:
        page.until(READY)
        store(page, STORED)
        page.value(OPENED)
        most(page, 16)
        click(page, "Compare")
        ask(page, QUESTION)
        page.narrow(NARROW)
        ask(page, QUESTION, waits=False)
        ask(page, "# waits", waits=False)
        page.until("document.querySelectorAll('#queue li').length === 1")
        page.value(axe)
        for panel in (None, "Chats", "Settings"):
            if panel:
                click(page, panel)
            assert [each for each in page.value(VIOLATIONS) if each[0] in ("serious", "critical")] == []
            page.key("Escape")
        page.narrow(-1)
        page.until(IDLE)
        assert page.complaints == []
