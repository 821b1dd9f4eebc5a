"""A peer decodes in a process of its own, and what goes wrong there is said here."""

from __future__ import annotations

import sys

import pytest
from peers.process import running

ECHO = "from peers.serve import serve; serve(lambda: ('1.2', lambda prompt, count: (prompt[:count], 0.5)))"


def served(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def test_peer_returns_tokens_and_seconds_for_prompts() -> None:
    with running("echo", served(ECHO)) as peer:
        assert (peer.name, peer.version) == ("echo", "1.2")
        assert peer.generate([3, 1, 4], 2) == ([3, 1], 0.5)
        assert peer.generate([1, 5], 1) == ([1], 0.5)


def test_library_output_is_not_parsed_as_an_answer() -> None:
    program = (
        "from peers.serve import serve\n"
        "def load():\n"
        "    print('a library greets')\n"
        "    return '1', lambda prompt, count: (print('and again'), (prompt, 0.0))[1]\n"
        "serve(load)"
    )
    with running("noisy", served(program)) as peer:
        assert peer.generate([7], 1) == ([7], 0.0)


@pytest.mark.parametrize("program", ["raise RuntimeError('no such model')", ECHO.replace("prompt[:count]", "1 / 0")])
def test_dead_peer_reports_its_output(program: str) -> None:
    with (
        pytest.raises(SystemExit, match=r"broken ended with 1:(?s:.*)Error"),
        running("broken", served(program)) as peer,
    ):
        peer.generate([1], 1)
