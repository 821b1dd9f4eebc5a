"""A chat in a terminal: the program runs in a pseudo-terminal and gets key presses."""

from __future__ import annotations

import errno
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

PROMPT, GREEN, PLAIN = "> ", "\x1b[32m", "\x1b[0m"
SECONDS = 120


class Terminal:
    """A program at a pseudo-terminal of 100 columns."""

    def __init__(self, *arguments: object, **environment: str) -> None:
        command = [str(Path(sys.executable).with_name("peagle-compile")), "chat", *map(str, arguments)]
        clean = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "INPUTRC")}
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # its controlling terminal
            env=clean | {"TERM": "xterm", "COLUMNS": "100", "INPUTRC": os.devnull} | environment,
        )
        os.close(slave)
        self._seen = ""

    def type(self, text: str) -> None:
        """Send keys."""
        os.write(self._master, text.encode())

    def until(self, pattern: str) -> str:
        """Read until the screen has got what matches; returns that and all before it since the last time."""
        deadline = time.monotonic() + SECONDS
        while not (match := re.search(pattern, self._seen)):
            assert time.monotonic() < deadline, f"{pattern!r} not in {self._seen!r}"
            self._read()
        taken, self._seen = self._seen[: match.end()], self._seen[match.end() :]
        return taken

    @property
    def unread(self) -> str:
        """The screen output since the last match."""
        return self._seen

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 1.0)[0]:
            return True
        try:
            self._seen += os.read(self._master, 4096).decode(errors="replace")
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return False
        return True

    def ask(self, text: str) -> str:
        """Type a question at the prompt; returns the screen output up to the next prompt."""
        self.type(text + "\r")
        return self.until(r"tokens/s[^\]]*\][^>]*> ")

    def ended(self) -> int:
        """Wait for the end; returns the exit code."""
        deadline = time.monotonic() + SECONDS
        while self._process.poll() is None and time.monotonic() < deadline:
            self._read()
        return self._process.wait(1)

    def close(self) -> None:
        """End it if it still runs."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        os.close(self._master)


@pytest.fixture
def terminal(talking_engine: Path) -> Iterator[Terminal]:
    chat = Terminal(talking_engine, "--max-tokens", 24, "--threads", 1, "--num-speculative-tokens", 4)
    yield chat
    chat.close()


def said(screen: str) -> str:
    """Return the text of an answer, without colours, count and input."""
    without_count = re.sub(r"\x1b7\x1b\[\?7l.*?\x1b\[\?7h\x1b8", "", screen)
    return re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", without_count).replace("\r\n", "\n")


def test_chat_streams_remembers_interrupts_and_exits(terminal: Terminal, talking_engine: Path) -> None:
    """One session, since each takes a second to begin."""
    from peagle.engines import Engine, SamplingParams

    engine, params = Engine.load(talking_engine, threads=1), SamplingParams(max_tokens=24)
    assert GREEN in terminal.until("Ctrl-D to exit") + terminal.until(PROMPT)  # the legend

    # Streaming: the count moves along, the words of drafts are green, and the text is the engine's.
    first = [{"role": "user", "content": "def main("}]
    screen = terminal.ask("def main(")
    answer = engine.chat(first, params).text
    assert answer in said(screen)
    counts = [int(number) for number in re.findall(r"\[(\d+) tokens", screen)]
    assert counts == sorted(counts)
    assert len(set(counts)) >= 3
    drafted = "".join(re.findall(re.escape(GREEN) + "(.*?)" + re.escape(PLAIN), screen, re.S)).replace("\r\n", "\n")
    stream = engine.stream_chat(first, params, num_speculative_tokens=4)
    assert drafted == "".join(text for delta in stream for text, is_drafted in delta.runs if is_drafted) != ""

    # A second turn depends on the first.
    second = {"role": "user", "content": "x ="}
    expected = engine.chat([*first, {"role": "assistant", "content": answer}, second], params).text
    assert expected in said(terminal.ask("x ="))
    assert expected != engine.chat([second], params).text

    # A command, and an unknown one.
    terminal.type("/reset\r")
    terminal.until("was cleared")
    terminal.type("/what\r")
    terminal.until("unknown command /what")
    assert answer in said(terminal.ask("def main("))

    # Ctrl-C discards the typed line; the end of input ends the chat.
    terminal.type("half a que")
    terminal.until("half a que")
    terminal.type("\x03")
    terminal.until(PROMPT)
    terminal.type("\x04")
    assert terminal.ended() == 0, terminal.unread


@pytest.mark.parametrize(
    "plain", [pytest.param(("--num-speculative-tokens", 0), marks=pytest.mark.slow), ("--draft", "none")]
)
def test_interrupted_answer_stays_in_the_dialogue(talking_engine: Path, plain: tuple[str, str | int]) -> None:
    terminal = Terminal(talking_engine, "--max-tokens", 1500, "--threads", 1, *plain, NO_COLOR="1")
    try:
        terminal.until(PROMPT)
        terminal.type("def main(\r")
        assert "per round" not in terminal.until(r"\[\d+ tokens\]")
        terminal.type("\x03")
        screen = terminal.until(r"; interrupted\][^>]*> ")
        assert GREEN not in screen
        terminal.type("\x03")
        assert terminal.ended() == 130
    finally:
        terminal.close()
