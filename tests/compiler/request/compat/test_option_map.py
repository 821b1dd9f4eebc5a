"""Every option in the table maps to an option of a command, or has a reason why not; the page lists all."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peagle.compiler.request.compat.option_map import ANY_HEAD, GROUPS, OPTION_MAP, TABLE, UNREAD, OptionMapping
from peagle.compiler.request.verb_options import BUILD, QUANTIZE
from peagle.engines.draft_methods import methods_in_vllm
from peagle.engines.serving import speculative_config

PAGE = Path(__file__).parents[4] / "docs" / "from-tensorrt-llm.md"
by_key = pytest.mark.parametrize("word", TABLE, ids=lambda word: word.keys.split()[0])


def test_option_names_are_unique() -> None:
    assert len(OPTION_MAP) == sum(len(word.keys.split()) for word in TABLE)


@by_key
def test_every_name_maps_to_an_option_or_a_reason(word: OptionMapping) -> None:
    known = {entry.option.name for form in (BUILD, QUANTIZE) for entry in form}
    assert word.option in known | {""}
    drops = not word.option or UNREAD in word.values.values()
    assert word.why or not (drops or word.only)
    assert bool(word.fix) == word.only, "what is refused says what to do, and nothing else does"
    assert word.option or all(answer in (None, UNREAD) for answer in word.values.values())


@by_key
def test_values_are_spelled_in_lower_case_and_names_with_underscores(word: OptionMapping) -> None:
    assert all(text == text.lower() for text in word.values)
    assert "-" not in word.keys
    assert all(key.count(".") == 0 or key.partition(".")[0] in GROUPS for key in word.keys.split())


def test_the_page_has_every_name_that_means_an_option() -> None:
    page = PAGE.read_text()
    named = set(re.findall(r"`([\w.]+)`", page))
    assert {key for word in TABLE if word.option for key in word.keys.split()} <= named


def test_serve_and_build_agree_on_vllm_json() -> None:
    prefix = "speculative_config."
    theirs = {key.removeprefix(prefix) for key in OPTION_MAP if key.startswith(prefix)}
    assert {*speculative_config._READ, *speculative_config._UNREAD} == theirs
    methods = OPTION_MAP["speculative_config.method"].values
    for name, method in methods_in_vllm().items():
        assert methods[name] == (ANY_HEAD if method.needs_head else method.name)
