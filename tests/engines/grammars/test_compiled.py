"""Structured outputs that are refused by name before they wait for a slot, and vocabularies of other sizes."""

from __future__ import annotations

import json
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.engines import Engine, SamplingParams, StructuredOutputsParams
from peagle.engines.grammars.compiled import KEPT, Grammars
from peagle.plugins import optional_packages
from peagle.plugins.errors import EnvironmentProblem, UsageError
from tests.models import VOCAB

pytest.importorskip("llguidance")

END = frozenset({0})


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"json": {"type": "strin"}}, "strin"),
        ({"json": {"type": "string", "format": "nonsense"}}, "nonsense"),
        ({"json": {"not": {"type": "string"}}}, "not"),
        ({"json": {"$ref": "#/$defs/gone"}}, "gone"),
        ({"json": {"$ref": "http://example.com/a.json"}}, "example.com"),
        ({"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}}, "incompatible types"),
        ({"json": {"type": "string", "pattern": "(?=a)b"}}, "look-around, "),
        ({"json": False}, "Unsatisfiable"),
        ({"regex": "(a"}, "unclosed group"),
        ({"regex": "(" * 300 + ")" * 300}, "maximum number of nested parentheses"),
        ({"grammar": "start: ("}, "Expected"),
        ({"grammar": "start: gone"}, "gone"),
        ({"grammar": "start: " + "(" * 2000 + '"a"' + ")" * 2000}, "nested"),
        ({"json_object": True, "whitespace_pattern": "("}, "unclosed group"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_a_form_that_cannot_be_followed_is_refused(tiny_engine: Engine, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=r"structured_outputs\.\w+ cannot be compiled") as error:
        tiny_engine.submit([5], SamplingParams(structured_outputs=asked))
    assert why in error.value.why
    assert "\n" not in error.value.why
    assert len(error.value.why) < 400


@pytest.mark.parametrize(
    "schema", [{"$ref": "#"}, {"$ref": "#/$defs/a", "$defs": {"a": {"allOf": [{"$ref": "#/$defs/a"}]}}}]
)
def test_self_reference_is_rejected(tiny_engine: Engine, schema: Any) -> None:
    with pytest.raises(UsageError, match="structured_outputs"):
        tiny_engine.generate([[5]], SamplingParams(structured_outputs={"json": schema}))


def test_unterminated_grammar_is_rejected(tiny_engine: Engine) -> None:
    with pytest.raises(UsageError, match="structured_outputs: no token can end the text"):
        tiny_engine.submit([5], SamplingParams(ignore_eos=True, structured_outputs={"regex": "a"}))


def test_who_prepares_waits_for_no_vocabulary_later(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "engine"
    folder.mkdir()
    copy = folder / "tokenizer.json"
    copy.write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    grammars = Grammars((folder / "tokenizer.json").read_text, END, VOCAB)
    assert grammars.is_usable
    copy.unlink()
    assert grammars.path(StructuredOutputsParams(regex="ab"), END) is not None


def test_preparation_failure_is_reported_to_every_requester(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = Grammars((tiny_folder / "gone" / "tokenizer.json").read_text, END, VOCAB)
    assert not damaged.is_usable
    with pytest.raises(EnvironmentProblem, match="cannot be used for grammars"):
        damaged.path(StructuredOutputsParams(regex="ab"), END)
    monkeypatch.setattr(optional_packages, "is_installed", lambda module: module != "llguidance")
    without = Grammars((tiny_folder / "tokenizer.json").read_text, END, VOCAB)
    assert not without.is_usable
    with pytest.raises(EnvironmentProblem, match="structured output"):
        without.path(StructuredOutputsParams(regex="ab"), END)


@pytest.mark.parametrize("vocab", [40, VOCAB, 200])
def test_ids_that_the_tokenizer_does_not_have_never_follow(tiny_folder: Path, vocab: int) -> None:
    path = Grammars((tiny_folder / "tokenizer.json").read_text, END, vocab).path(
        StructuredOutputsParams(regex="[!-~]+"), END
    )
    assert path is not None
    may = path.allowed()
    assert may.shape == (vocab,)
    assert np.flatnonzero(may).tolist() == list(range(1, min(vocab, VOCAB)))


def test_llguidance_end_markers_are_not_treated_as_ends(tiny_folder: Path) -> None:
    ends = frozenset({7})
    path = Grammars((tiny_folder / "tokenizer.json").read_text, END, VOCAB).path(
        StructuredOutputsParams(regex="a?"), ends
    )
    assert path is not None
    a = ord("a") - ord("!") + 2
    assert np.flatnonzero(path.allowed()).tolist() == [7, a]
    path.advance(a)
    assert np.flatnonzero(path.allowed()).tolist() == [7]
    path.advance(7)
    assert path.allowed().all()


def test_recent_grammars_stay_compiled_and_texts_start_fresh(tiny_folder: Path) -> None:
    grammars = Grammars((tiny_folder / "tokenizer.json").read_text, END, VOCAB)

    def begin(number: int) -> Any:
        return grammars.path(StructuredOutputsParams(json={"const": f"a{number}"}), END)

    first, again = begin(0), begin(0)
    first.advance(ord('"') - ord("!") + 2)
    assert first.allowed().tolist() != again.allowed().tolist()
    threads = [threading.Thread(target=begin, args=(number,)) for number in range(KEPT + 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(grammars._kept) == KEPT


def test_missing_package_error_has_the_install_command(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optional_packages, "is_installed", lambda module: module != "llguidance")
    with pytest.raises(EnvironmentProblem, match=r"structured output needs .* llguidance") as error:
        Grammars((tiny_folder / "tokenizer.json").read_text, END, VOCAB).path(StructuredOutputsParams(regex="a"), END)
    assert "grammar" in error.value.fix
    assert Grammars((tiny_folder / "tokenizer.json").read_text, END, VOCAB).path(None, END) is None


def test_a_tokenizer_without_bytes_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a")).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(EnvironmentProblem, match=r"tokenizer\.json cannot be used for grammars"):
        Grammars((tmp_path / "tokenizer.json").read_text, END, 2).path(StructuredOutputsParams(regex="a"), END)


def test_an_engine_knows_its_vocabulary_when_its_folder_is_replaced(tiny_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_folder, tmp_path / "engine")
    asked = SamplingParams(structured_outputs={"regex": "ab"}, max_tokens=8)
    with Engine.load(folder) as engine:
        other = json.loads((folder / "tokenizer.json").read_text())
        ids = other["model"]["vocab"]
        ids["a"], ids["c"] = ids["c"], ids["a"]
        (folder / "tokenizer.json").write_text(json.dumps(other))
        assert engine.generate([[5]], asked)[0].text == "ab"


TOO_HARD = r"((a{0,50}){0,50}){0,3}"  # for a lexer, some tokens into the text


def _steps_until_too_hard(grammars: Grammars, *, drafts: bool = False) -> int:
    """How many times ``a`` follows before a text of that form cannot go on."""
    path, a = grammars.path(StructuredOutputsParams(regex=TOO_HARD), END), ord("a") - ord("!") + 2
    assert path is not None
    for count in range(500):
        path.allowed()
        if path.failure is not None:
            return count
        if drafts:
            path.drafts([a] * 60, 60)
            path.forced()
        path.advance(a)
    raise AssertionError("it went on")


def test_too_complex_text_does_not_affect_others(tiny_folder: Path) -> None:
    grammars = Grammars((tiny_folder / "tokenizer.json").read_text, END, VOCAB)
    assert len({_steps_until_too_hard(grammars) for _ in range(3)}) == 1


def test_drafts_that_are_too_hard_to_check_spoil_no_text(tiny_folder: Path) -> None:
    """Not their own, nor another one of its form; and the next text of that form has drafts again."""
    grammars = Grammars((tiny_folder / "tokenizer.json").read_text, END, VOCAB)
    alone = _steps_until_too_hard(grammars)
    assert [_steps_until_too_hard(grammars, drafts=True) for _ in range(2)] == [alone] * 2
    again = grammars.path(StructuredOutputsParams(regex=TOO_HARD), END)
    a = ord("a") - ord("!") + 2
    assert again is not None
    assert again.drafts([a, a, 3], 3) == [a, a]
