"""Files, folders and link targets in the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

from tests.house.test_tracked import tracked_files
from tests.house.tree import ROOT, require, write_tree

# CHANGELOG.md may name what is gone; its links are checked all the same.
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs")

_FENCE = re.compile(r"^(?P<indent> *)```.*?^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_OWN = re.compile(
    r"(?<![\w./<-])(?:\.ci|\.github|compiler|graphs|plugins|engines|tests|tools|examples|benchmarks|docs)/[\w./-]*(?![\w<])"
)
_BARE = re.compile(r"(?:[\w-]+\.(?:py|cu|cuh|h|md|toml)|[a-z]\w*/)")


def documents(root: Path) -> list[Path]:
    """The pages of a root, those in folders too."""
    places = [root / name for name in PAGES]
    return [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*.md")))]


def prose(text: str) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", text)


def dead_paths(text: str, files: set[str]) -> list[str]:
    """Paths in backquotes that are not among `files`, nor folders of them.

    A path from the root must be there; a name without a folder, `stages.py` or `store/`, must be somewhere.
    """
    folders = {
        "/".join(parts[:count]) for parts in (name.split("/") for name in files) for count in range(1, len(parts))
    }
    names = {path.rpartition("/")[2] for path in files} | {f"{path.rpartition('/')[2]}/" for path in folders}
    dead = []
    for code in re.findall(r"`([^`\n]+)`", prose(text)):
        dead += [path for path in _OWN.findall(code) if path.rstrip("/.") not in files | folders]
        dead += [code] if _BARE.fullmatch(code) and code not in names else []
    return dead


def dead_links(document: Path, text: str) -> list[str]:
    """Relative links to files that do not exist."""
    targets = re.findall(r"\]\((?!https?://|#)([^)#\s]+)[^)]*\)", prose(text))
    return [target for target in targets if not (document.parent / target).exists()]


def test_every_path_that_a_document_names_exists() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in tracked_files(ROOT)}
    pages = documents(ROOT)
    assert ROOT / "docs" / "architecture.md" in pages
    require(f"{page.relative_to(ROOT)} names {path}" for page in pages for path in dead_paths(page.read_text(), files))


def test_every_link_of_a_document_leads_somewhere() -> None:
    pages = [path for path in tracked_files(ROOT) if path.suffix == ".md" and "bundled" not in path.parts]
    require(
        f"{page.relative_to(ROOT)} links to {link}" for page in pages for link in dead_links(page, page.read_text())
    )


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "decisions"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text()))
    assert linked == {path.name for path in folder.glob("*.md")} - {"README.md"}


def test_every_page_is_in_the_table_of_contents() -> None:
    folder = ROOT / "docs"
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (folder / "README.md").read_text()))
    assert linked == {path.name for path in folder.glob("*.md")} - {"README.md"}


def test_a_dead_path_is_found() -> None:
    files = {"tests/test_docs.py", "compiler/store/stages.py", "pyproject.toml"}
    alive = "`tests/` `make test ARGS=tests/test_docs.py` `store/` `stages.py` `my-docs/gone` `plugins/<op>/spec.py`"
    assert dead_paths(f"{alive} tests/gone.py\n```sh\ncat `docs/gone.md`\n```\n", files) == []
    dead = "`tests/gone.py` and `make ARGS=tests/no.py` and `fp8/`, `gone.py`, `compiler/fp8/`"
    assert dead_paths(dead, files) == ["tests/gone.py", "tests/no.py", "fp8/", "gone.py", "compiler/fp8/"]


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    write_tree(tmp_path, {"there.md": ""})
    text = "[a](there.md#part) [b](gone.md) [c](https://example.org/x) [d](#here)\n```text\n[e](code)\n```\n"
    assert dead_links(tmp_path / "a.md", text) == ["gone.md"]


def test_documents_are_found_in_folders(tmp_path: Path) -> None:
    write_tree(tmp_path, {"README.md": "", "docs/a.md": "", "docs/decisions/b.md": "", "tests/c.md": ""})
    assert [path.name for path in documents(tmp_path)] == ["README.md", "a.md", "b.md"]
