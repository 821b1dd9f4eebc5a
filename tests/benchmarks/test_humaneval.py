"""The HumanEval benchmark runs `peagle-compile bench` over both heads, with options that can be overridden."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import humaneval
import typer

from peagle.compiler.verbs.program import app


def test_given_options_override_the_defaults() -> None:
    arguments = humaneval.bench_arguments([Path("a"), Path("b")], ["--num-prompts", "12"])
    assert arguments.pop(0) == "bench"
    program: Any = typer.main.get_command(app)
    parsed = program.commands["bench"].make_context("bench", arguments).params
    assert parsed["engine"] == [Path("a"), Path("b")]
    assert (parsed["workload"], parsed["num_prompts"], parsed["max_tokens"]) == ("humaneval", 12, 256)
