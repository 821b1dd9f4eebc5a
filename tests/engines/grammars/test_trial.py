"""Grammars that would crash the process or block it for minutes are refused."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from peagle.engines import StructuredOutputsParams
from peagle.engines.grammars import trial
from peagle.engines.grammars.trial import HARMLESS, FormTrials, compiles_quickly, try_out
from peagle.engines.requests.structured_outputs import MAX_CHARACTERS
from peagle.plugins.errors import EnvironmentProblem, UsageError

pytest.importorskip("llguidance")


def chain(length: int) -> dict[str, Any]:
    """References, each an array of the next."""
    items = {str(at): {"type": "array", "items": {"$ref": f"#/d/{at + 1}"}} for at in range(length)}
    return {"$ref": "#/d/0", "d": {**items, str(length): {"type": "null"}}}


BOMBS: dict[str, dict[str, Any]] = {
    "patterns that must all hold": {"json": {"allOf": [{"type": "string", "pattern": f"a{i}"} for i in range(99)]}},
    "keys that must not agree": {"json": {"type": "object", "patternProperties": {f"^{i}": {} for i in range(900)}}},
    "rules upon rules": {"grammar": "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(4500)) + 'r4500: "a"'},
    "spaces": {"grammar": " \n" * 30_000 + 'root ::= "a"'},
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_in_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "SECONDS", 1)
    form = StructuredOutputsParams(**BOMBS[name])
    began = time.thread_time()
    with pytest.raises(UsageError, match=r"structured_outputs\.\w+ cannot be compiled") as error:
        try_out(form)
    assert time.thread_time() - began < 1, "none of it was done here"
    assert error.value.why


def test_a_chain_that_overflows_the_stack_is_refused_and_a_short_one_is_not() -> None:
    try_out(StructuredOutputsParams(json=chain(60)))
    form = StructuredOutputsParams(json=json.dumps(chain(1240), separators=(",", ":")))
    with pytest.raises(UsageError, match="cannot be compiled"):
        try_out(form)


def test_harmless_grammar_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    small = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for form in ({"json": small}, {"json_object": True}, {"choice": ["a"] * 1000}):
        try_out(StructuredOutputsParams(**form))
    long = {"enum": ["a" * HARMLESS]}
    for form in ({"json": {"pattern": "a"}}, {"json": long}, {"regex": "a"}, {"grammar": 'start: "a"'}):
        assert not compiles_quickly(StructuredOutputsParams(**form))
        with pytest.raises(EnvironmentProblem, match="cannot be tested in a separate process"):
            try_out(StructuredOutputsParams(**form))


def test_trial_passes_good_grammars_and_reports_bad_ones() -> None:
    values = [f"value {number}" for number in range(3000)]
    assert len(json.dumps(values)) < MAX_CHARACTERS
    try_out(StructuredOutputsParams(json={"enum": values}))
    with pytest.raises(UsageError) as error:
        try_out(StructuredOutputsParams(regex="(?=a)b"))
    assert "look-around" in error.value.why


def test_nothing_is_imported_from_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "threading", "llguidance"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} of the current folder ran')")
    monkeypatch.chdir(tmp_path)
    try_out(StructuredOutputsParams(grammar='start: "a"'))
    with pytest.raises(UsageError, match="grammar"):
        try_out(StructuredOutputsParams(grammar="start: nothing"))


def test_a_verdict_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial may take another time on a busy machine, and a client gets one answer."""
    trials, good, bad = FormTrials(), StructuredOutputsParams(regex="a"), StructuredOutputsParams(regex="(?=a)b")
    trials.require_possible(good)
    with pytest.raises(UsageError, match="cannot be compiled") as first:
        trials.require_possible(bad)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    trials.require_possible(good)
    with pytest.raises(UsageError, match="cannot be compiled") as second:
        trials.require_possible(bad)
    assert str(first.value) == str(second.value)
    with pytest.raises(EnvironmentProblem):
        trials.require_possible(StructuredOutputsParams(regex="b"))


@pytest.mark.parametrize(("ends", "fix"), [("late", "try again later, or "), ("killed", "make sure that ")])
def test_trial_timeout_is_not_a_verdict(ends: str, fix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(command: list[str], **_: Any) -> Any:
        if ends == "late":
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, -9, b"", b"")

    trials, form = FormTrials(), StructuredOutputsParams(regex="a")
    with monkeypatch.context() as patch:
        patch.setattr("subprocess.run", run)
        with pytest.raises(EnvironmentProblem, match="cannot be tested") as caught:
            trials.require_possible(form)
    assert caught.value.fix.startswith(fix)
    trials.require_possible(form)
