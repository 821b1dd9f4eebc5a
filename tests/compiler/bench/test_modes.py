"""The modes of a benchmark follow from the draft method records and the engine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.bench.modes import modes_of
from peagle.engines.draft_methods import METHODS
from peagle.engines.folder.manifest import Manifest
from peagle.plugins.errors import UsageError


@pytest.fixture
def parallel(tiny_folder: Path) -> Manifest:
    return Manifest.read(tiny_folder)


@pytest.fixture
def autoregressive(eagle3_folder: Path) -> Manifest:
    return Manifest.read(eagle3_folder)


def test_plain_decoding_and_every_usable_method_are_measured(parallel: Manifest) -> None:
    modes = modes_of([parallel])
    assert modes[0].is_plain
    usable = [each.name for each in METHODS.values() if each.drafts and each.heads in (parallel.method, each.name)]
    usable.remove("eagle3")
    assert [mode.draft for mode in modes if isinstance(mode.k, int) and mode.k] == usable
    assert {mode.k for mode in modes if isinstance(mode.k, int)} == {0, 4}


def test_only_the_method_of_the_engine_adapts_k(parallel: Manifest) -> None:
    assert [mode.draft for mode in modes_of([parallel]) if mode.k == "auto"] == [parallel.method]


def test_each_k_is_a_mode(parallel: Manifest) -> None:
    modes = modes_of([parallel], ["ngram"], [1, 3])
    assert [(mode.title, mode.k) for mode in modes] == [
        ("plain", 0), ("n-gram lookup, K = 1", 1), ("n-gram lookup, K = 3", 3),
    ]  # fmt: skip


def test_heads_of_several_engines_are_compared_and_the_rest_once(parallel: Manifest, autoregressive: Manifest) -> None:
    modes = modes_of([parallel, autoregressive], counts=[2])
    assert [(mode.draft, mode.engine) for mode in modes if not METHODS[mode.draft].needs_head] == [
        ("none", 0), ("ngram", 0),
    ]  # fmt: skip
    assert [(mode.title, mode.engine) for mode in modes if mode.is_autoregressive] == [("EAGLE-3, K = 2", 1)]


def test_equal_titles_name_their_engine(parallel: Manifest) -> None:
    titles = [mode.title for mode in modes_of([parallel, parallel], ["peagle"], [2])]
    assert titles == ["plain", "P-EAGLE, K = 2, engine 1", "P-EAGLE, K = 2, engine 2"]


def test_modes_of_a_method_of_two_engines_name_their_engine_at_every_k(parallel: Manifest) -> None:
    other = replace(parallel, speculation=replace(parallel.speculation, num_speculative_tokens=2))
    titles = [mode.title for mode in modes_of([parallel, other], ["peagle"])]
    assert titles == [
        "plain", "P-EAGLE, K = 4, engine 1", "P-EAGLE, auto, engine 1", "P-EAGLE, K = 2, engine 2",
        "P-EAGLE, auto, engine 2",
    ]  # fmt: skip


def test_engine_without_room_for_drafts_is_measured_plain(parallel: Manifest) -> None:
    speculation = replace(parallel.speculation, num_speculative_tokens=0, max_num_speculative_tokens=0)
    assert [mode.title for mode in modes_of([replace(parallel, speculation=speculation)])] == ["plain"]


@pytest.mark.parametrize(
    ("drafts", "counts", "said"),
    [
        (["eagle3"], [], "none of the engines"),
        ([], [9], "room for"),
        (["ngram"], ["auto"], "--draft ngram is not measured"),
        (["peagle", "ngram"], ["auto"], "--draft ngram is not measured"),
        (["peagle"], [0], "--draft peagle is not measured"),
    ],
)
def test_methods_and_k_that_no_engine_has_are_refused(
    parallel: Manifest, drafts: list[str], counts: list[int], said: str
) -> None:
    with pytest.raises(UsageError) as error:
        modes_of([parallel], drafts, counts)
    assert said in str(error.value)
