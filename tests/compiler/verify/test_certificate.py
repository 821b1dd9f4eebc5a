"""Certificate records are read back as written, and any other content is refused."""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.bundled.prompts import varied_prompts
from peagle.compiler.verify import certificate
from peagle.compiler.verify.certificate import (
    Certificate,
    ComparedEngine,
    ComparedOptions,
    ComparingMachine,
    Comparison,
)
from peagle.compiler.verify.losslessness import Divergence
from peagle.compiler.verify.printing import lossless_lines
from peagle.plugins.errors import UsageError

CHANGED = Divergence("3: stack", "greedy", 4, 17, 5, None, 0.25)
RECORD = Certificate(
    engine=ComparedEngine("small", "ab12", "0.1.0", "onnxruntime", "cpu", "int4", 96, {"target": "demo (77)"}),
    options=ComparedOptions(("peagle", "ngram"), (0, 1, 8), ("greedy", "temperature 0.8"), 4, 128, None),
    machine=ComparingMachine("a processor (é), 2 CPUs", (), "avx2", "Python 3.11"),
    command="peagle-compile verify small",
    began="2026-01-01 00:00 UTC",
    ended="2026-01-01 00:05 UTC",
    comparisons=(
        Comparison("peagle", 0, 10, 900, 0, 1, 300, True, "c0"),
        Comparison("ngram", 0, 10, 1000, 2, 0, 50, True, "c0", (CHANGED,)),
    ),
    notes=("3 of 10 prompts truncated",),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The record as a file."""
    RECORD.write(tmp_path / "certificate.json")
    return tmp_path / "certificate.json"


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value at which there is neither a list nor an object."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else None
    if keys is None:
        yield at
    else:
        for key in keys:
            yield from places(value[key], (*at, key))


def test_a_record_round_trips(path: Path) -> None:
    assert Certificate.read(path) == RECORD
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_totals_are_those_of_the_comparisons(path: Path) -> None:
    content = json.loads(path.read_text())
    assert (content["tokens_compared"], content["tokens_differing"]) == (1900, 2)
    assert (content["ties"], content["drafts_accepted"], content["prompts"]["count"]) == (1, 350, 10)


def test_what_a_record_does_not_contain_is_not_reported(path: Path) -> None:
    found = RECORD.losslessness(path)
    assert found.width_difference is None
    assert "logits in windows of other widths" not in dict(lossless_lines(found))


def test_the_seal_is_the_hash_that_the_documentation_computes(path: Path) -> None:
    content = json.loads(path.read_text())
    seal = content.pop("sha256")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert hashlib.sha256(text.encode()).hexdigest() == seal == RECORD.seal


def test_the_same_prompts_have_the_same_digest(path: Path) -> None:
    texts = json.dumps([each.text for each in varied_prompts(0, 10)], separators=(",", ":"), ensure_ascii=False)
    assert json.loads(path.read_text())["prompts"]["sha256"] == hashlib.sha256(texts.encode()).hexdigest()


@given(st.data())
def test_a_record_with_any_other_value_is_refused(data: st.DataObject) -> None:
    content = json.loads(json.dumps(RECORD.as_json()))
    at = data.draw(st.sampled_from([*places(content)]))
    changed = copy.deepcopy(content)
    inner = changed
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = data.draw(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text()).filter(
            lambda value: json.dumps(value) != json.dumps(inner[at[-1]])
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "certificate.json")
        file.write_text(json.dumps(changed))
        with pytest.raises(UsageError):
            Certificate.read(file)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/dev"])
def test_a_device_or_a_folder_is_refused_and_not_read(path: str) -> None:
    with pytest.raises(UsageError, match="is not a certificate"):
        Certificate.read(Path(path))


@pytest.mark.parametrize("content", ["", "[" * 10**5, "[]", "3", "{}", '{"sha256": "ab"}', '{"bench_format": 1}'])
def test_another_file_is_refused_and_kept(content: str, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(content)
    with pytest.raises(UsageError, match="is not a certificate") as caught:
        Certificate.read(other)
    assert "choose another file" in caught.value.fix
    assert other.read_text() == content


def test_number_larger_than_any_float_is_named(path: Path) -> None:
    content = json.loads(path.read_text())
    del content["sha256"]
    changed = next(each for each in content["comparisons"] if each["divergences"])
    changed["divergences"][0]["margin"] = 10**400
    path.write_text(json.dumps({**content, "sha256": certificate._sha256(content)}))
    with pytest.raises(UsageError, match="margin is larger than any float"):
        Certificate.read(path)


def test_a_changed_record_is_distinguished_from_another_file(path: Path) -> None:
    path.write_text(path.read_text().replace('"tokens_differing": 2', '"tokens_differing": 0'))
    with pytest.raises(UsageError, match="was changed after it was written"):
        Certificate.read(path)


@pytest.mark.parametrize(
    ("part", "field", "value", "why"),
    [
        ("engine", "fingerprint", "ff", "fingerprint is now 'ff', but the file has 'ab12'"),
        ("options", "k", (1, 2), "k is now (1, 2), but the file has (0, 1, 8)"),
        ("machine", "kernels", "portable", "kernels is now 'portable', but the file has 'avx2'"),
    ],
)
def test_a_record_is_not_continued_with_anything_else(part: str, field: str, value: Any, why: str, path: Path) -> None:
    other = replace(RECORD, comparisons=(), **{part: replace(getattr(RECORD, part), **{field: value})})
    with pytest.raises(UsageError, match=f"made with another {part.removesuffix('s')}") as caught:
        RECORD.continued_as(other, path)
    assert caught.value.why == why
    assert RECORD.command in caught.value.fix


def test_a_continued_record_has_the_comparisons_of_the_old_one_and_the_command_of_the_new(path: Path) -> None:
    other = replace(RECORD, comparisons=(), command="peagle-compile verify small --tokens 9")
    assert RECORD.continued_as(other, path) == replace(RECORD, command=other.command)
