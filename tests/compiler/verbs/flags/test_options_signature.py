"""Options of a command come from its form; the command line overrides ``--set``, which overrides ``--config``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.commands import Run

pytestmark = pytest.mark.usefixtures("trials_once")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text("model: demo\nsizes:\n  max_seq_len: 100\nprecision: int8\n")
    return path


def planned(cli: Run, *arguments: object) -> Any:
    done = cli("build", "--dry-run", "--json", *arguments)
    assert done.code == 0, done.err
    return json.loads(done.out)


def test_precedence_is_command_line_then_set_then_file(cli: Run, config: Path) -> None:
    from_file = planned(cli, "--config", config)
    assert (from_file["model"], from_file["max_seq_len"], from_file["precision"]) == ("demo", 100, "int8")
    changed = planned(cli, "--config", config, "--set", "sizes.max_seq_len=90", "--precision", "int4")
    assert (changed["max_seq_len"], changed["precision"]) == (90, "int4")
    default = planned(cli, "--config", config, "--set", "max_seq_len=90", "--max-seq-len", 2048)
    assert default["max_seq_len"] == 2048, "a default counts where it is said"


def test_pattern_can_be_set_repeatedly(cli: Run, config: Path) -> None:
    more = ("--set", "exclude=layers.0.*", "--set", "precision.exclude=*.down_proj")
    assert "layers.0.*, *.down_proj in fp32" in planned(cli, "--config", config, *more)["recipe"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--set", "max_seq=5"), "did you mean max_seq_len"),
        (("--set", "max_seq_len=many"), "is not an integer"),
        (("--set", "max_seq_len"), "is not NAME=VALUE"),
        (("--config", "absent.yaml"), "absent.yaml cannot be read"),
        (("demo", "--set", "precision=int3"), "int3"),
    ],
)
def test_invalid_set_is_rejected(cli: Run, arguments: tuple[str, ...], says: str) -> None:
    done = cli("export", "--dry-run", *arguments)
    assert done.code == 2
    assert says in done.err


def test_file_with_an_unknown_option_is_rejected_by_name(cli: Run, config: Path) -> None:
    done = cli("quantize", "--config", config)
    assert done.code == 2
    assert f"--config {config}: quantize has no option" in done.err


def test_positional_model_overrides_the_file(cli: Run, config: Path) -> None:
    assert cli("build", "absent", "--dry-run", "--config", config).code == 2


@pytest.mark.parametrize("second", ["demo", "other"])
def test_model_given_twice_is_rejected(cli: Run, second: str) -> None:
    done = cli("build", "demo", "--model", second, "--dry-run")
    assert done.code == 2
    assert "given twice" in done.err


def test_quantize_only_accepts_precisions_it_writes(cli: Run, tmp_path: Path) -> None:
    done = cli("quantize", "demo", "--precision", "int8", "--out", tmp_path / "out")
    assert done.code == 2
    assert "build --precision int8" in done.err
    asked = cli("quantize", "demo", "--precision", "fp8", "--out", tmp_path / "out", "--calib-method", "entropy")
    assert "'entropy'" in asked.err


def test_foreign_names_are_accepted_everywhere_and_ignored_ones_reported(cli: Run, tmp_path: Path) -> None:
    file = tmp_path / "llm-api.yaml"
    file.write_text("model: demo\nmax_num_tokens: 8192\nspeculative_config: {max_draft_len: 98}\n")
    told = cli("build", "--config", file)
    assert told.code == 2
    assert f"note: --config {file}: ignored max_num_tokens" in told.err
    assert "--num-speculative-tokens 98 is above" in told.err
    changed = cli("build", "--config", file, "--set", "speculative-config.max_draft_len=97")
    assert "--num-speculative-tokens 97 is above" in changed.err
    said = ("--speculative-config", '{"method": "eagle3", "num_speculative_tokens": 96}')
    for verb in ("build", "export"):
        done = cli(verb, "--config", file, "--set", "num_speculative_tokens=97", *said)
        assert "--num-speculative-tokens 96 is above" in done.err, verb
    assert "--speculative-config" not in cli("quantize", "--help").out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--set", "tensor_parallel_size=2"), "an engine runs on one GPU"),
        (("--set", "max_model_len=64", "--set", "max_seq_len=65"), "cannot be combined"),
        (
            ("--speculative-config", '{"num_speculative_tokens": 3}', "--num-speculative-tokens", 4),
            "cannot be combined",
        ),
        (("--speculative-config", "{"), "--speculative-config is not valid JSON"),
        (
            ("--draft", "ngram", "--speculative-config", '{"method": "eagle3"}'),
            "--draft 'ngram' and speculative_config",
        ),
    ],
)
def test_unmappable_foreign_values_are_rejected(cli: Run, arguments: tuple[object, ...], says: str) -> None:
    done = cli("build", "demo", "--dry-run", *arguments)
    assert (done.code, says in done.err) == (2, True), done.err
