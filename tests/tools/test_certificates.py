"""The committed certificates are sealed and complete, and agree with the documents."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from peagle.compiler.verify.certificate import Certificate
from tests.house.tree import ROOT
from tools.certificates import ENGINES, PAGE, page

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
