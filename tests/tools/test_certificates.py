"""The committed certificates are sealed and complete, and agree with the documents."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import peagle
from peagle.compiler.verify.certificate import Certificate
from peagle.plugins.errors import UsageError
from tests.house.tree import ROOT
from tools.certificates import ENGINES, PAGE, main, page

FOLDER = ROOT / "docs" / "certificates"
RECORDS = sorted(FOLDER.glob("*.json"))
MAX_BYTES = 100_000  # of all records


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_record_is_sealed_and_no_token_differs(path: Path) -> None:
    found = Certificate.read(path)
    assert found.tokens_compared > 0
    assert (found.tokens_differing, found.ties) == (0, 0)
    assert all(each.finite and not each.divergences for each in found.comparisons)
    assert found.options.k == (*range(9),)


def test_every_family_and_format_has_a_record_and_no_other_engine_has_one() -> None:
    assert {path.stem for path in RECORDS} == {*ENGINES}
    assert sum(path.stat().st_size for path in RECORDS) < MAX_BYTES


def test_the_page_is_that_of_the_records() -> None:
    assert (FOLDER / PAGE).read_text() == page(FOLDER)


def test_documents_name_the_number_of_tokens_of_the_records() -> None:
    total = f"{sum(Certificate.read(path).tokens_compared for path in RECORDS):,}"
    for name in ("README.md", "docs/evidence.md", "docs/certificates.md"):
        said = re.findall(r"([\d,]+)\s+tokens\s+compared", (ROOT / name).read_text())
        assert said == [total], name


def test_records_can_be_made_in_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def verify(*_: object, certificate: Path, **__: object) -> Verified:
        made.append(Path(shutil.copy(RECORDS[0], certificate)))
        return Verified()

    monkeypatch.setattr(peagle, "build", lambda **_: None)
    monkeypatch.setattr(peagle, "verify", verify)
    monkeypatch.setattr(sys, "argv", ["certificates.py", "--out", str(tmp_path / "mine"), "smollm2-135m-int4"])
    before = {path: path.read_bytes() for path in FOLDER.iterdir()}
    main()
    assert made == [tmp_path / "mine" / "smollm2-135m-int4.json"]
    assert (tmp_path / "mine" / PAGE).read_text() == page(tmp_path / "mine")
    assert {path: path.read_bytes() for path in FOLDER.iterdir()} == before


def test_record_of_another_machine_is_an_error_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UsageError("a.json was made with another machine", fix="choose another file")

    monkeypatch.setattr(peagle, "build", lambda **_: None)
    monkeypatch.setattr(peagle, "verify", refuse)
    monkeypatch.setattr(sys, "argv", ["certificates.py", "--out", str(tmp_path), "smollm2-135m-int4"])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == UsageError.exit_code
    assert "error: a.json was made with another machine" in capsys.readouterr().err
    assert [*tmp_path.iterdir()] == []


class Verified:
    """A result of ``verify`` without figures."""

    losslessness = None
