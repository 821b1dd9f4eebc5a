"""A benchmark of several temperatures: greedy and sampled decoding take turns, and no figure mixes them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from peagle.compiler.bench.options import BenchOptions
from peagle.compiler.bench.page import page
from peagle.compiler.bench.printing import report
from peagle.compiler.bench.result import BenchResult
from peagle.compiler.bench.run import BenchRun
from peagle.compiler.bench.summary import FirstDifference
from tests.engines.serving.browser import Browser


@pytest.fixture(scope="module")
def result(tiny_folder: Path) -> BenchResult:
    """Two temperatures, one and two requests at once."""
    options = BenchOptions(
        engines=(tiny_folder,),
        workload="random",
        num_prompts=4,
        max_tokens=10,
        draft=("peagle", "ngram"),
        num_speculative_tokens=(2, 3),
        concurrency=(1, 2),
        temperature=(0.0, 0.9),
        price_per_hour=2.0,
        threads=1,
    )
    return BenchRun(options).start()


def sections(result: BenchResult) -> dict[str, str]:
    """Return the text of the page below each heading."""
    found = re.split(r"<h2>(.*?)</h2>", page(result))
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_every_mode_is_measured_at_every_temperature_and_keeps_its_text(result: BenchResult) -> None:
    levels = [(figures[0].concurrency, figures[0].temperature, figures[0].turns) for figures in result.levels]
    assert levels == [(1, 0.0, 4), (1, 0.9, 4), (2, 0.0, 2), (2, 0.9, 2)]
    assert len({tuple(each.mode for each in figures) for figures in result.levels}) == 1
    assert result.identical is True
    assert {(each.temperature, each.columns) for each in result.passes} >= {(0.0, 1), (0.0, 3), (0.9, 1), (0.9, 3)}
    assert result.methods.keys() == {each.mode for each in result.figures}
    assert result.command.endswith("--concurrency 1,2 --temperature 0,0.9 --price-per-hour 2 --threads 1")


def test_the_page_begins_with_links_to_all_levels(result: BenchResult) -> None:
    links = re.findall(r'href="#([^"]+)">([^<]+)<', page(result).partition("<h2>")[0])
    assert len(links) == 5
    for target, name in links[:-1]:
        assert re.search(rf'<section id="{target}">\n<h2>{name}</h2>', page(result), re.IGNORECASE)
    assert '<section id="all">' in page(result)


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("is_dark", [False, True])
def test_the_page_fits_on_desktops_and_phones_and_is_light_or_dark(
    browser: Browser, result: BenchResult, tmp_path: Path, width: int, *, is_dark: bool
) -> None:
    (tmp_path / "bench.html").write_text(page(result), encoding="utf-8")
    with browser.open((tmp_path / "bench.html").as_uri(), width, is_dark=is_dark) as shown:
        shown.until("document.querySelectorAll('svg').length > 8")
        assert shown.value("document.documentElement.scrollWidth <= innerWidth")
        back = shown.value("getComputedStyle(document.body).backgroundColor")
        assert (max(map(int, re.findall(r"\d+", back))) < 60) == is_dark
        assert shown.value("performance.getEntriesByType('resource').length") == 0
        assert shown.complaints == []


def test_text_of_a_temperature_is_that_of_a_run_at_this_temperature_alone(
    result: BenchResult, tiny_folder: Path
) -> None:
    accepted = {}
    for temperature in (0.0, 0.9):
        options = BenchOptions(
            engines=(tiny_folder,), workload="random", num_prompts=4, max_tokens=10, draft=("peagle", "ngram"),
            num_speculative_tokens=(2, 3), temperature=(temperature,), threads=1,
        )  # fmt: skip
        alone = BenchRun(options).start()
        assert {each.temperature for each in alone.figures} == {None}
        accepted[temperature] = [each.acceptance and each.acceptance.rates for each in alone.figures]
    assert accepted[0.0] != accepted[0.9]
    for figures in result.levels[:2]:
        assert [each.acceptance and each.acceptance.rates for each in figures] == accepted[figures[0].temperature]


def test_printed_tables_name_the_temperatures_and_fit(result: BenchResult) -> None:
    text = report(result)
    assert re.search(r"^decoding +greedy, temperature 0\.9, seed 0, up to 10 tokens", text, re.MULTILINE)
    heads = re.findall(r"^.* requests? at .*, \d turns$", text, re.MULTILINE)
    assert heads == [
        "1 request at a time, greedy, 4 turns",
        "1 request at a time, temperature 0.9, 4 turns",
        "2 requests at once, greedy, 2 turns",
        "2 requests at once, temperature 0.9, 2 turns",
    ]
    assert text.count("drafts accepted, at least") == text.count("one pass of the target") == 2
    assert re.search(r"^tokens/s +temperature  at once  one user  in all  price/million$", text, re.MULTILINE)
    assert re.search(r"^P-EAGLE, K = 2 +0\.9 +2 ", text, re.MULTILINE)
    tables = text[text.index("1 request at a time") :]
    assert max(len(line) for line in tables.splitlines() if "note" not in line) <= 80
    notes = [note for note in result.notes if "sign test" in note]
    assert [note.partition(":")[0] for note in notes] == ["1 request at a time", "2 requests at once"]


def test_page_has_a_section_and_charts_for_each_temperature(result: BenchResult) -> None:
    found = sections(result)
    levels = [name for name in found if "request" in name]
    assert levels == [
        "1 request at a time, greedy",
        "1 request at a time, temperature 0.9",
        "2 requests at once, greedy",
        "2 requests at once, temperature 0.9",
    ]
    modes = len(result.levels[0])
    for name in levels:
        speeds = re.search(r"<h3>Speed</h3>(.*?)</table>", found[name], re.DOTALL)
        assert speeds
        assert speeds[1].count("<tr>") == 1 + modes
        assert ("Cost of a pass" in found[name]) == name.startswith("1 request")
        for legend in re.findall(r'<div class="legend">(.*?)</div>', found[name], re.DOTALL):
            names = re.findall(r"<span[^>]*>(.*?)</span>", legend)
            assert len(names) == len({*names})
    charts = re.findall(r'<text x="4" y="14">(tokens per second .*?)</text>', found["By temperature and concurrency"])
    assert charts == [
        "tokens per second of one user, greedy",
        "tokens per second of all users, greedy",
        "tokens per second of one user, temperature 0.9",
        "tokens per second of all users, temperature 0.9",
    ]
    verdict = page(result).partition("<h2>")[0]
    assert re.findall(r"<p>(Fastest.*?):", verdict) == ["Fastest, greedy", "Fastest, temperature 0.9"]
    assert "the same text as in plain decoding at the same temperature" in verdict


def test_difference_names_its_temperature(result: BenchResult) -> None:
    sampled = result.levels[1][1]
    wrong = replace(sampled, identical=False, difference=FirstDifference("q", 3, "7 'a'", "8 'b'"))
    changed = replace(result, figures=tuple(wrong if each is sampled else each for each in result.figures))
    said = f"{sampled.mode}, 1 request at a time, temperature 0.9: the text differs from that of plain decoding"
    assert said in report(changed)
    assert said in page(changed)


def test_temperatures_are_read_back(result: BenchResult, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result.write_json(path)
    assert page(BenchResult.read(path)) == page(result)
    content = result.as_json()
    assert [each["temperature"] for each in content["figures"]] == [each.temperature for each in result.figures]
