"""``--help`` on an 80-column terminal: no option or environment variable is broken across lines."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from peagle.compiler.verbs.program import app
from tests.fixtures.commands import Run

_NAMES = re.compile(r"\$?\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b|--[a-z][a-z-]*[a-z]|\b[a-z_]+\.[a-z_]+=\d+|'[^' ]+'")


def verbs(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield everything that has a ``--help``, by its names on the command line."""
    yield before, group
    for name, verb in getattr(group, "commands", {}).items():
        yield from verbs(verb, (*before, name))


VERBS = dict(verbs(typer.main.get_command(app)))


def names_of(verb: Any) -> set[str]:
    """Return the options that a verb shows, and every name in its own words and theirs."""
    shown = [param for param in verb.params if not getattr(param, "hidden", False)]
    texts = [verb.help or "", *(param.help or "" for param in shown if param.name != "help")]
    variables = {param.envvar for param in shown if param.envvar}
    flags = {flag for param in shown for flag in param.opts if flag.startswith("--")}
    return flags | variables | {name for text in texts for name in _NAMES.findall(text)}


def test_every_verb_is_looked_at() -> None:
    assert len(VERBS) == 22
    assert "--num-speculative-tokens" in names_of(VERBS["build",])
    assert {"$SM_VLLM_SPECULATIVE_CONFIG", "PEAGLE_API_KEY"} <= names_of(VERBS["serve",])


@pytest.mark.parametrize("columns", [80, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("names", VERBS, ids=" ".join)
def test_option_names_are_not_truncated(
    cli: Run, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    done = cli(*names, "--help")
    assert done.code == 0
    assert "…" not in done.out
    assert not [name for name in names_of(VERBS[names]) if name not in done.out]
    assert max(map(len, done.out.splitlines())) <= columns
    assert "\u2011" not in done.out, "what is copied has hyphens that a shell knows"


def test_the_list_of_verbs_has_whole_sentences(cli: Run) -> None:
    text = " ".join(cli("--help").out.split())
    for names, verb in VERBS.items():
        if len(names) == 1:
            assert " ".join((verb.help or "").split("\n\n")[0].split()) in text


def test_limits_and_defaults_are_in_words(cli: Run) -> None:
    text = " ".join(cli("serve", "--help").out.split())
    assert "--port <int> Port to listen on; 0 picks a free one. (default: 8000; 0 to 65535)" in text
    assert "Maximum number of requests that run at once. (default: 4; at least 1)" in text
    assert "(default: from its config.json; at least 0)" in " ".join(cli("build", "--help").out.split())
    for names in VERBS:
        shown = cli(*names, "--help").out
        assert not re.search(r"x[<>]=?\d|\d<=?x|<\w+ range>|\[default|env var:", shown)
