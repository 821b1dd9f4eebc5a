"""Requests: the command line, ``--set`` and ``--config`` are equivalent, and unknown options are refused."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.console.option_fields import option_of
from peagle.compiler.request import verb_options
from peagle.compiler.request.request import CompileRequest
from peagle.compiler.request.verb_options import BUILD, EXPORT, QUANTIZE, VerbOptions
from peagle.plugins.errors import UsageError

FORMS = (BUILD, EXPORT, QUANTIZE)
_TEXT = st.text("abcxyz0189._-*/", min_size=1, max_size=8)
_VALUES: dict[Any, st.SearchStrategy[Any]] = {
    str: _TEXT, str | None: st.none() | _TEXT, int: st.integers(1, 99), int | None: st.none() | st.integers(1, 99),
    float | None: st.none() | st.floats(0.25, 64), bool: st.booleans(), Path: _TEXT.map(Path),
    Path | None: st.none() | _TEXT.map(Path), tuple[str, ...]: st.lists(_TEXT, max_size=3).map(tuple),
}  # fmt: skip


@st.composite
def requests(draw: st.DrawFn, form: VerbOptions = BUILD) -> CompileRequest:
    """Any request of a form that names a model."""
    answers = {entry.option.name: draw(_VALUES[entry.type]) for entry in form if entry.field != "source"}
    return form.request(**answers)


def test_every_field_of_every_group_is_an_option_of_some_verb() -> None:
    asked = {(entry.group, entry.field) for form in FORMS for entry in form}
    groups = {name: kind for name, kind in verb_options.GROUPS.items() if name}
    assert asked >= {(name, each.name) for name, kind in groups.items() for each in fields(kind)}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.verb)
def test_no_two_options_of_a_verb_have_one_name(form: VerbOptions) -> None:
    names = [name for entry in form for name in set(entry.names)]
    assert len(names) == len(set(names))


@given(requests())
def test_the_answers_of_a_request_make_it_again(request: CompileRequest) -> None:
    answers = BUILD.answers(request)
    assert BUILD.request(**answers) == request
    written = json.loads(json.dumps(answers, default=str))
    assert BUILD.request(**BUILD.flat(written, "a file")) == request


def test_options_are_accepted_in_groups_by_flag_or_field_name() -> None:
    flat = EXPORT.flat({"model": "demo", "for": "std", "max-seq-len": 64, "kv_cache_dtype": "fp8"}, "a file")
    grouped = EXPORT.flat(
        {"pair": {"model": "demo"}, "backend": {"lowering": "std"}, "sizes": {"max_seq_len": 64},
         "precision": {"kv_cache": "fp8"}}, "a file",
    )  # fmt: skip
    assert EXPORT.request(**flat) == EXPORT.request(**grouped)
    assert EXPORT.flat({"sizes": {}}, "a file") == {}


def test_unset_options_are_left_to_the_verb() -> None:
    request = QUANTIZE.request(model="some/folder", calib_method=None)
    assert (request.out, request.calibration.method) == (Path("folder-fp8"), None)
    with pytest.raises(UsageError, match="no model was specified"):
        QUANTIZE.request()


@pytest.mark.parametrize(
    ("form", "key", "near"),
    [
        (BUILD, "max_seq_length", "max_seq_len"),
        (BUILD, "sizes.max_seq", "max_seq_len"),
        (BUILD, "plans.max_seq_len", "max_seq_len"),
        (QUANTIZE, "backend", "the options are"),
        (EXPORT, "workspace_gb", "the options are"),
    ],
)
def test_unknown_option_suggests_the_nearest(form: VerbOptions, key: str, near: str) -> None:
    with pytest.raises(UsageError, match=f"{form.verb} has no option {key!r}") as caught:
        form.flat({key: 1}, "a file")
    assert near in str(caught.value)


def test_every_option_has_help_text() -> None:
    for kind in verb_options.GROUPS.values():
        for each in fields(kind):
            if each.metadata:
                assert option_of(each).help.endswith((".", ")"))
