"""A complete benchmark of tiny engines, and its report."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from peagle.compiler.bench.options import BenchOptions
from peagle.compiler.bench.page import page, write_page
from peagle.compiler.bench.printing import rates_of, report
from peagle.compiler.bench.result import BenchResult
from peagle.compiler.bench.run import BenchRun
from peagle.compiler.bench.statistics import Spread
from peagle.compiler.bench.summary import FirstDifference
from peagle.engines.folder.manifest import Manifest
from peagle.plugins.errors import UsageError


@pytest.fixture(scope="module")
def result(tiny_folder: Path, eagle3_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> BenchResult:
    """Two engines with one target, two categories, one and two requests at once."""
    prompts = tmp_path_factory.mktemp("bench") / "questions.jsonl"
    lines = [{"question_id": at, "category": ("code", "<prose>")[at % 2], "turns": ["abc " * at]} for at in range(1, 5)]
    prompts.write_text("\n".join(map(json.dumps, lines)))
    options = BenchOptions(
        engines=(tiny_folder, eagle3_folder),
        prompts=prompts,
        max_tokens=10,
        num_speculative_tokens=(2, 3, "auto"),
        concurrency=(1, 2),
        price_per_hour=2.0,
        ignore_eos=True,
        threads=1,
    )
    return BenchRun(options).start()


def test_every_mode_is_measured_at_every_concurrency_and_keeps_the_text(result: BenchResult) -> None:
    titles = [each.mode for each in result.figures]
    assert titles[: len(titles) // 2] == titles[len(titles) // 2 :]
    assert {"plain", "P-EAGLE, K = 2", "P-EAGLE, auto", "EAGLE-3, K = 3", "n-gram lookup, K = 2"} <= {*titles}
    assert [(figures[0].concurrency, figures[0].turns) for figures in result.levels] == [(1, 4), (2, 2)]
    assert result.identical is True
    assert all(each.tokens == 40 for each in result.figures)
    assert result.rival == "EAGLE-3"
    assert all(each.over_autoregressive for each in result.figures)


def test_report_has_the_origin_the_command_and_every_table(result: BenchResult) -> None:
    text = report(result)
    for name in ("machine", "load", "versions", "engine 1", "engine 2", "workload", "decoding", "command"):
        assert re.search(rf"^{name}  ", text, re.MULTILINE), name
    for head in ("tokens/s, one user", "over the fastest EAGLE-3", "after 20", "ITL p50", "drafts accepted, at least",
                 "code: plain", "price/million", "2 requests at once, 2 turns", "identical", "one pass of the target",
                 "3 columns, engine 2"):  # fmt: skip
        assert head in text
    assert text.count(", 1 thread\n") == 2
    tables = text[text.index("1 request at a time") :]
    assert max(len(line) for line in tables.splitlines() if "note" not in line) <= 80


def test_json_is_written_whole_and_replaces_only_its_own(result: BenchResult, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result.write_json(path)
    content = json.loads(path.read_text())
    assert content["command"] == result.command
    assert content["figures"][0]["mode"] == "plain"
    assert content["identical"] is True
    result.write_json(path)
    assert [each.name for each in tmp_path.iterdir()] == ["bench.json"]
    for text in ("notes", "[1]", '{"a": 1}'):
        path.write_text(text)
        with pytest.raises(UsageError, match="was not written by"):
            result.write_json(path)
        assert path.read_text() == text


def test_paths_that_are_not_text_are_escaped_in_json_and_page(result: BenchResult, tmp_path: Path) -> None:
    result = replace(result, command="peagle-compile bench /engines/\udce9")
    result.write_json(tmp_path / "bench.json")
    assert BenchResult.read(tmp_path / "bench.json").command == result.command
    write_page(tmp_path / "bench.html", result)
    assert r"/engines/\udce9" in (tmp_path / "bench.html").read_text()


def test_json_is_read_back(result: BenchResult, tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    result.write_json(path)
    found = BenchResult.read(path)
    assert found.as_json() == result.as_json()
    content = json.loads(path.read_text())
    for wrong in ({}, content | {"passes": [{"columns": 1}]}, content | {"origin": 3}, {**content, "figures": [{}]}):
        path.write_text(json.dumps(wrong))
        with pytest.raises(UsageError, match="is not a benchmark result"):
            BenchResult.read(path)


class Tags(HTMLParser):
    """Open tags, and the attributes of all."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: set[str] = set()
        self.targets: set[str | None] = set()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        self.targets |= {value for name, value in attrs if name == "href"}
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}


def test_html_report_is_self_contained(result: BenchResult) -> None:
    text = page(result)
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert not tags.attributes & {"src", "srcset", "onclick"}
    assert all(target and target.startswith("#") for target in tags.targets)
    assert not {"script", "link", "img", "iframe"} & {*tags.tags}
    assert "url(" not in text
    assert "@import" not in text
    assert "prefers-color-scheme: dark" in text
    accepting = [each for each in result.figures if any(rates_of(one.acceptance) for one in each.categories)]
    assert accepting
    # Speed by K, positions and latency twice; categories by mode with accepted drafts; a pass; two by concurrency.
    assert tags.tags.count("svg") == 2 * 3 + len(accepting) + 1 + 2
    assert "share of tokens (%), up to 95" in text  # outliers would squeeze the rest
    assert "&lt;prose&gt;" in text
    assert "<prose>" not in text


def test_chart_of_speed_by_k_has_a_line_for_each_engine_of_a_method(result: BenchResult) -> None:
    changed = replace(result, engines={**result.engines, "P-EAGLE, K = 3": 1})
    assert ">P-EAGLE</span>" in page(result)
    assert "P-EAGLE, engine" not in page(result)
    assert all(f">P-EAGLE, engine {number}</span>" in page(changed) for number in (1, 2))


def test_engines_of_different_targets_are_refused(tiny_folder: Path, demo_engine: Path) -> None:
    with pytest.raises(UsageError, match="have different targets"):
        BenchRun(BenchOptions(engines=(tiny_folder, demo_engine))).start()


def test_engine_of_another_precision_or_lowering_is_noted(tiny_folder: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(tiny_folder, tmp_path / "other"))
    manifest = Manifest.read(other)
    options = BenchOptions(
        engines=(tiny_folder, other), workload="random", num_prompts=1, max_tokens=2, draft=("peagle",), threads=1
    )
    said = "the target of engine 2 has another precision or lowering than that of engine 1"
    assert not any(note.startswith(said) for note in BenchRun(options).start().notes)
    replace(manifest, precision={**manifest.precision, "weights": "int4"}).write(other)
    assert any(note.startswith(said) for note in BenchRun(options).start().notes)


def test_answers_that_do_not_fit_are_shortened_with_a_note(tiny_folder: Path) -> None:
    options = BenchOptions(engines=(tiny_folder,), workload="random", num_prompts=1, draft=("ngram",), threads=1)
    result = BenchRun(options).start()
    assert result.notes[0] == "answers are limited to 48 tokens instead of 128: the engine's max_seq_len is 96"
    assert result.figures[0].tokens == 48
    assert "end of text ignored" in dict(result.origin)["decoding"]


def test_few_of_the_generated_prompts_are_taken_at_even_intervals(tiny_folder: Path) -> None:
    run = BenchRun(
        BenchOptions(
            engines=(tiny_folder,), workload="random", num_prompts=3, max_tokens=2, draft=("ngram",), threads=1
        )
    )
    run.start()
    assert [each.id for each in run.prompts] == ["random-0", "random-4", "random-8"]


def test_too_few_pairs_for_a_sign_test_are_noted_at_each_concurrency(result: BenchResult) -> None:
    said = [note for note in result.notes if "sign test" in note]
    assert said == [
        "1 request at a time: the sign test has 4 pairs, and with fewer than 6, p cannot be below 0.05: measure more "
        "prompts",
        "2 requests at once: the sign test has 2 pairs, and with fewer than 6, p cannot be below 0.05: measure more "
        "prompts",
    ]


def test_sampled_text_is_the_same_in_every_mode(tiny_folder: Path) -> None:
    options = BenchOptions(
        engines=(tiny_folder,), workload="random", num_prompts=2, max_tokens=16, temperature=(0.9,), threads=1
    )
    first, again = (BenchRun(options).start() for _ in range(2))
    assert first.identical
    assert [each.acceptance and each.acceptance.rates for each in first.figures if "auto" not in each.mode] == [
        each.acceptance and each.acceptance.rates for each in again.figures if "auto" not in each.mode
    ]


def test_unknown_speeds_are_not_shown_as_numbers(result: BenchResult) -> None:
    unknown = Spread(0.0, 0.0, 0.0)
    figures = tuple(replace(each, user_speed=unknown, over_plain=None) for each in result.figures)
    changed = replace(result, figures=figures)
    assert re.search(r"^plain +- +-$", report(changed), re.MULTILINE)
    text = page(changed)
    assert "Fastest:" not in text
    assert "tokens per second of one user" not in text
    assert "tokens per second of all users" in text


def test_text_that_differs_is_named_in_both_reports(result: BenchResult) -> None:
    wrong = replace(result.figures[1], identical=False, difference=FirstDifference("q<1>", 3, "7 'a'", "8 'b'"))
    changed = replace(result, figures=(result.figures[0], wrong))
    assert changed.identical is False
    assert "first in prompt q<1> at token 3: expected 7 'a', found 8 'b'" in report(changed)
    assert re.search(r"^P-EAGLE, K = 2 .* NO$", report(changed), re.MULTILINE)
    assert "first in prompt q&lt;1&gt; at token 3" in page(changed)
