"""Values from a file or from ``--set`` have the type of their option, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.request.config_file import read_config, read_settings
from peagle.compiler.request.verb_options import BUILD
from peagle.plugins.errors import UsageError


def asked(**values: Any) -> dict[str, Any]:
    """Return the parsed options of a build of the demo with this file."""
    return BUILD.answers(BUILD.request(model="demo", **values))


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("max_seq_len", "64", 64),
        ("max_seq_len", 64, 64),
        ("workspace_gb", 2, 2.0),
        ("workspace_gb", "0.5", 0.5),
        ("calib_data", "x.jsonl", Path("x.jsonl")),
        ("exclude", "layers.0.*", ("layers.0.*",)),
        ("exclude", ["a,b", "c"], ("a,b", "c")),
        ("gpus", "sm_89, sm_120", ("sm_89", "sm_120")),
        ("gpus", ["sm_89", "sm_120"], ("sm_89", "sm_120")),
        ("revision", "1234", "1234"),
    ],
)
def test_a_value_is_read_as_the_command_line_reads_it(name: str, value: object, kept: object) -> None:
    assert asked(**{name: value})[name] == kept


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_seq_len", "many", "is not an integer"),
        ("max_seq_len", 1.5, "is not an integer"),
        ("max_seq_len", True, "is not an integer"),
        ("workspace_gb", [], "is not a number"),
        ("revision", 1234, "is not a string"),
        ("calib_data", 5, "is not a path"),
        ("exclude", 5, "is not a list of strings"),
        ("gpus", [89], "is not a list of strings"),
        ("calib_samples", 0, "is below 1"),
        ("workspace_gb", 10**400, "is not a number"),
        ("exclude", [10**5000], "is not a list of strings"),
    ],
)
def test_wrong_value_type_is_rejected_with_the_expected_type(name: str, value: object, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        asked(**{name: value})
    assert "--" in caught.value.fix


@pytest.mark.parametrize("text", ["max_seq_len: 64\nexclude: [a, b]\n", '{"max_seq_len": 64, "exclude": ["a", "b"]}'])
def test_a_file_is_yaml_or_json(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    assert read_config(path) == {"max_seq_len": 64, "exclude": ["a", "b"]}
    path.write_text("# nothing\n")
    assert read_config(path) == {}


def test_huge_value_is_rejected_with_a_short_message() -> None:
    bomb: list[Any] = ["x"] * 10
    for _ in range(9):
        bomb = [bomb] * 10
    with pytest.raises(UsageError) as caught:
        asked(max_seq_len=bomb)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text",
    [
        "revision: 2024-99-99",
        "max_seq_len: !!int x",
        "max_seq_len: !!int ''",
        "revision: !!bool x",
        "revision: !!timestamp x",
        "max_seq_len: " + "9" * 5000,
        "exclude: " + "[" * 2000,
        "out: !!python/object/apply:os.system [true]",
        "a: \0",
    ],
)
def test_a_file_that_the_loader_stumbles_on_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UsageError, match="neither YAML nor JSON"):
        read_config(path)


def test_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_bytes(b"\xef\xbb\xbfmax_seq_len: 64")
    assert read_config(path) == {"max_seq_len": 64}
    path.write_bytes(b"\xff\xfemax_seq_len: 64")
    with pytest.raises(UsageError, match="is not UTF-8"):
        read_config(path)


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text("max_seq_len: 64\nmax_seq_len: 64\n")
    with pytest.raises(UsageError, match=r"--config .* sets 'max_seq_len' twice\n  why: line 2 sets it again"):
        read_config(path)


@pytest.mark.parametrize(("text", "says"), [("- a\n", "contains no options"), ("a: [", "neither YAML nor JSON")])
def test_a_file_without_options_is_refused(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(UsageError, match=says):
        read_config(path)
    with pytest.raises(UsageError, match="cannot be read"):
        read_config(tmp_path / "absent")


def test_a_setting_has_a_name_and_a_value() -> None:
    assert read_settings(["a.b=c=d", "x="]) == [("a.b", "c=d"), ("x", "")]
    for wrong in ("max_seq_len", "=5"):
        with pytest.raises(UsageError, match="is not NAME=VALUE"):
            read_settings([wrong])
