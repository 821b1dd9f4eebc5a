"""The results page, its chart and README.md show the committed figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import results
from results import FIGURES, README

from peagle.compiler.bench.result import BenchResult
from peagle.compiler.bench.summary import ModeFigures

RESULT = BenchResult.read(FIGURES)


@pytest.mark.parametrize("path", results.outputs(RESULT), ids=lambda path: path.name)
def test_pages_with_the_figures_are_up_to_date(path: Path) -> None:
    assert path.read_text() == results.outputs(RESULT)[path], f"run {results.COMMAND}"


def test_every_mode_is_on_the_page_with_its_command() -> None:
    text = results.page(RESULT)
    assert all(f"| {each.mode} |" in text for each in RESULT.figures)
    assert RESULT.command in text
    assert all(value in text for _, value in RESULT.origin)


def test_picture_is_well_formed_and_shows_the_fastest_mode_of_each_method() -> None:
    root = ElementTree.fromstring(results.picture(RESULT))
    shown = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    best = results.fastest(RESULT.figures, RESULT)
    assert {*best} == {*RESULT.methods.values()}
    for each in RESULT.figures:
        method = RESULT.methods[each.mode]
        assert (each.mode in shown) == (each is best[method])
        assert each.user_speed.median <= best[method].user_speed.median


def test_other_figures_change_all_that_shows_them() -> None:
    def other(each: ModeFigures) -> ModeFigures:
        gain = each.over_plain and replace(each.over_plain, ratio=replace(each.over_plain.ratio, median=9.87))
        speed = replace(each.user_speed, median=2 * each.user_speed.median)
        return replace(each, user_speed=speed, over_plain=gain)

    changed = results.outputs(replace(RESULT, figures=tuple(map(other, RESULT.figures))))
    for path, text in results.outputs(RESULT).items():
        assert changed[path] != text
    assert "| 9.87x | `make results` |" in changed[README]


@pytest.mark.parametrize("p", [0.001, 0.5])
def test_page_and_readme_say_where_the_run_shows_no_difference(p: float) -> None:
    def other(each: ModeFigures) -> ModeFigures:
        found = (each.over_plain, each.over_autoregressive)
        over_plain, over_rival = (pair and replace(pair, p=p) for pair in found)
        return replace(each, over_plain=over_plain, over_autoregressive=over_rival)

    changed = replace(RESULT, figures=tuple(map(other, RESULT.figures)))
    assert ("not statistically significant, p = 0.500" in results.quotes(changed)) == (p > 0.05)
    assert ("not statistically significant" in " ".join(results.page(changed).split())) == (p > 0.05)


@pytest.mark.parametrize(("last", "rises"), [(900.0, True), (700.0, False)])
def test_page_and_readme_say_whether_a_larger_k_may_be_faster(last: float, rises: bool) -> None:
    """The fastest of the measured K is the fastest K only if a larger one was slower."""

    def other(each: ModeFigures) -> ModeFigures:
        is_last = (RESULT.methods[each.mode], RESULT.counts[each.mode]) == (RESULT.rival, 6)
        return replace(each, user_speed=replace(each.user_speed, median=last if is_last else 800.0))

    changed = replace(RESULT, figures=tuple(map(other, RESULT.figures)))
    text = results.quotes(changed)
    assert f"over {RESULT.rival} at the fastest of K = 2, 4, 6" in text
    assert ("its speed still rises at K = 6" in text) == rises


def test_readme_without_rows_of_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match="must have one block of rows"):
        results.readme("# Title\n\n| a | 1x | `make bench` |\n", RESULT)
