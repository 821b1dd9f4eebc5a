"""``drafter``: the commands add, list and remove, and ``--draft`` of the commands that use an engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.fixtures.commands import Run
from tests.models import Pair


@pytest.fixture
def engine(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "engine"))


def test_drafter_is_added_listed_used_and_removed(cli: Run, engine: Path, eagle3_pair: Pair) -> None:
    done = cli("drafter", "add", engine, "--draft", eagle3_pair.head, "--name", "code", "--quiet")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0].startswith("drafter             code, ")
    assert f"peagle-compile run {engine} --draft code" in done.out
    listed = cli("drafter", "list", engine).out.splitlines()
    assert [line.split()[:2] for line in listed] == [["name", "method"], ["built-in", "P-EAGLE"], ["code", "EAGLE-3"]]
    results = [
        json.loads(cli("run", engine, "a", "--draft", draft, "--max-tokens", 8, "--json").out)
        for draft in ("code", "built-in")
    ]
    assert [(each["draft"], each["drafter"]) for each in results] == [
        ("eagle3", "code"),
        ("peagle", "built-in"),
    ]
    assert len({tuple(each["token_ids"]) for each in results}) == 1
    shown = dict(line.split(maxsplit=2)[1:] for line in cli("inspect", engine).out.splitlines() if "drafter " in line)
    assert shown["code"] == f"{eagle3_pair.head} (EAGLE-3)"
    done = cli("drafter", "remove", engine, "code")
    assert (done.code, done.out.startswith(f"removed code from {engine}, ")) == (0, True)
    assert len(cli("drafter", "list", engine).out.splitlines()) == 2


def test_json_has_the_record_of_each_drafter(cli: Run, engine: Path, eagle3_pair: Pair) -> None:
    added = json.loads(
        cli("drafter", "add", engine, "--draft", eagle3_pair.head, "--num-speculative-tokens", 2, "--json").out
    )
    assert (added["name"], added["method"], added["speculation"]["num_speculative_tokens"]) == ("head", "eagle3", 2)
    listed = json.loads(cli("drafter", "list", engine, "--json").out)["drafters"]
    assert listed[1] | {"warnings": []} == added
    assert json.loads(cli("drafter", "remove", engine, "head", "--json").out)["name"] == "head"


def test_errors_have_the_exit_codes_of_other_commands(cli: Run, engine: Path, tmp_path: Path) -> None:
    assert cli("drafter", "add", engine).code == 2
    assert cli("drafter", "add", engine, "--draft", "none").code == 2
    assert cli("drafter", "remove", engine, "code").code == 2
    assert cli("drafter", "list", tmp_path).code == 3
    done = cli("run", engine, "a", "--draft", "code")
    assert (done.code, "draft must be" in done.err) == (2, True)


def test_group_alone_prints_its_help(cli: Run) -> None:
    done = cli("drafter")
    assert done.code == 0
    assert [word for word in ("add", "list", "remove") if f"  {word} " not in done.out] == []
