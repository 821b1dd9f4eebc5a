"""Options of a benchmark: contradictions are refused, and the recorded command reproduces the options."""

from __future__ import annotations

import math
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.bench.options import BenchOptions
from peagle.plugins.errors import UsageError

ENGINE = (Path("engine"),)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "neither ENGINE nor --url was given"),
        ({"engines": ENGINE, "url": "http://x"}, "cannot be combined"),
        ({"engines": ENGINE, "workload": "poems"}, "unknown --workload poems"),
        ({"engines": ENGINE, "workload": "chat", "prompts": Path("x")}, "cannot be combined"),
        ({"engines": ENGINE, "num_prompts": 0}, "--num-prompts"),
        ({"engines": ENGINE, "repeats": 0}, "--repeats"),
        ({"engines": ENGINE, "concurrency": (1, 0)}, "--concurrency"),
        ({"engines": ENGINE, "concurrency": ()}, "--concurrency"),
        ({"engines": ENGINE, "concurrency": (1, 2, 1)}, "--concurrency has the value 1 twice"),
        ({"engines": ENGINE, "num_speculative_tokens": ("auto", -1)}, "--num-speculative-tokens"),
        (
            {"engines": ENGINE, "num_speculative_tokens": (4, "auto", 4)},
            "--num-speculative-tokens has the value 4 twice",
        ),
        ({"engines": ENGINE, "price_per_hour": -1}, "--price-per-hour"),
        (
            {"engines": ENGINE, "temperature": (0.0, -0.1)},
            "--temperature must be a finite number of 0 or more, not -0.1",
        ),
        (
            {"engines": ENGINE, "temperature": (math.nan,)},
            "--temperature must be a finite number of 0 or more, not nan",
        ),
        ({"engines": ENGINE, "temperature": ("0.8",)}, "--temperature must be a finite number of 0 or more, not '0.8'"),
        ({"engines": ENGINE, "temperature": ()}, "--temperature"),
        ({"engines": ENGINE, "temperature": (0, 0.8, 0.0)}, "--temperature has the value 0.0 twice"),
        ({"engines": ENGINE, "peer": ("http://x:1",)}, "--peer http://x:1 is not NAME=URL"),
        ({"engines": ENGINE, "peer": ("a=",)}, "--peer a= is not NAME=URL"),
        ({"engines": ENGINE, "peer": ("a=ftp://x",)}, "ftp://x is not the URL of a server"),
        ({"engines": ENGINE, "peer": ("a=http://[x",)}, "is not the URL of a server"),
        ({"engines": ENGINE, "peer": ("a=http://x:99999",)}, "is not the URL of a server"),
        ({"engines": ENGINE, "peer": ("a=http://x", "a=http://y")}, "--peer uses the name a twice"),
        ({"url": "http://x", "peer": ("a=http://y",)}, "--peer and --url cannot be combined"),
        ({"engines": ENGINE, "endpoint": "responses"}, "unknown --endpoint responses"),
        ({"url": "http://x", "draft": ("ngram",)}, "--draft and --url cannot be combined"),
        ({"url": "http://x", "threads": 2}, "--threads and --url cannot be combined"),
        ({"url": "http://x", "workload": "random"}, "--workload random and --url cannot be combined"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError) as error:
        BenchOptions(**options).check()
    assert said in str(error.value)


@cache
def _command() -> Any:
    import typer

    from peagle.compiler.verbs.program import app

    program: Any = typer.main.get_command(app)
    return program.commands["bench"]


names = st.text("ab c'\"$", min_size=1, max_size=6).map(str.strip).filter(bool)


@given(
    st.builds(
        BenchOptions,
        engines=st.lists(names.map(Path), min_size=1, max_size=2).map(tuple),
        workload=st.sampled_from([None, "chat", "random"]),
        num_prompts=st.integers(1, 50),
        repeats=st.integers(1, 3),
        max_tokens=st.integers(1, 500),
        draft=st.lists(st.sampled_from(["ngram", "peagle"]), max_size=2, unique=True).map(tuple),
        num_speculative_tokens=st.lists(st.integers(1, 8) | st.just("auto"), max_size=3).map(tuple),
        concurrency=st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple),
        temperature=st.sampled_from([(0.0,), (0.8,), (0.0, 1e-5, 1.0)]),
        seed=st.integers(0, 9),
        ignore_eos=st.booleans(),
        price_per_hour=st.sampled_from([None, 1.5]),
        peer=st.lists(st.sampled_from(["a=http://x:1", "b c=http://y/v1"]), max_size=2, unique=True).map(tuple),
        endpoint=st.sampled_from([None, "chat"]),
        threads=st.sampled_from([None, 2]),
    )
)
def test_recorded_command_parses_to_the_same_options(options: BenchOptions) -> None:
    program, verb, *arguments = shlex.split(options.command)
    assert (program, verb) == ("peagle-compile", "bench")
    parsed = _command().make_context("bench", arguments).params
    assert parsed["engine"] == [*options.engines]
    assert parsed["concurrency"] == ",".join(map(str, options.concurrency))
    assert tuple(map(float, parsed["temperature"].split(","))) == options.temperature
    assert (parsed["draft"] or "") == ",".join(options.draft)
    assert (parsed["peer"] or "") == ",".join(options.peer)
    assert (parsed["num_speculative_tokens"] or "") == ",".join(map(str, options.num_speculative_tokens))
    for name in ("workload", "num_prompts", "repeats", "max_tokens", "seed", "ignore_eos",
                 "price_per_hour", "endpoint", "threads"):  # fmt: skip
        assert parsed[name] == getattr(options, name), name


def test_recorded_command_has_no_key() -> None:
    options = BenchOptions(url="http://x", api_key="secret", prompts=Path("my file.jsonl"))
    assert options.command == "peagle-compile bench --prompts 'my file.jsonl' --url http://x"
