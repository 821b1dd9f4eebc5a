"""The records of draft methods: required fields, and the page that lists the methods."""

from __future__ import annotations

import pytest

from peagle.engines.draft_methods import METHODS, PLAIN, DraftMethod, head_named, headless_named, methods_in_vllm, ngram
from peagle.engines.draft_methods.none import PlainDecoding
from tests.house.tree import ROOT

PAGE = ROOT / "docs" / "architecture.md"


def row(method: DraftMethod) -> str:
    where = "host" if method.is_on_host else "device" if method.drafts else "-"
    names = ", ".join(f"`{name}`" for name in method.vllm_names) or "-"
    trees = "yes" if method.trees else "no"
    return f"| `{method.name}` | {method.title} | {where} | {method.passes.value} | {trees} | {names} |"


def test_the_page_has_a_row_for_each() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = next(at for at, line in enumerate(lines) if line.startswith("| method | title |")) + 2
    assert lines[begin : begin + len(METHODS)] == [row(each) for each in METHODS.values()]
    assert not lines[begin + len(METHODS)]


@pytest.mark.parametrize("both", [{}, {"strategy": PlainDecoding(), "proposer": ngram.NgramProposer}])
def test_method_has_device_rounds_or_a_proposer(both: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="either a strategy or a proposer"):
        DraftMethod("odd", "odd", "odd", **both)  # type: ignore[arg-type]


def test_one_method_drafts_nothing_and_variants_have_heads() -> None:
    assert [each.name for each in METHODS.values() if not each.drafts] == [PLAIN.name]
    assert all(each.needs_head and METHODS[each.variant_of].needs_head for each in METHODS.values() if each.variant_of)


@pytest.mark.parametrize(
    ("draft", "head"), [("ngram", None), ("none", None), (None, None), ("eagle3", "eagle3"), ("./ngram", "./ngram")]
)
def test_headless_method_name_wins_over_a_folder(draft: str | None, head: str | None) -> None:
    assert head_named(draft) == head
    assert (headless_named(draft) is None) == (draft is None or head is not None)


def test_vllm_s_names_of_heads_mean_heads() -> None:
    assert {name: each.needs_head for name, each in methods_in_vllm().items()} == {
        "eagle": True, "eagle3": True, "ngram": False, "ngram_gpu": False
    }  # fmt: skip
