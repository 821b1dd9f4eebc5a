"""The commands and snippets in README.md and docs/ run.

Blocks fenced as sh, console (lines after "$ ") and python are run in order, per document, in a folder whose
`demo-engine` is small and chats. `make` is only asked whether it knows the target. `<!-- not run: reason -->` above a
block opts out; `<!-- slow: FILE ... -->` leaves it to the slow tests, because that file of tests/ runs the same faster;
below `<!-- from: FILE -->` it is a part of that file, word for word, and is not run by itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from peagle.compiler.pipeline.build import build
from peagle.compiler.request.verb_options import BUILD

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "compiler" / "bundled" / "demo"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = {"sh", "console", "python"}
NOT_RUN = {"", "text", "json", "yaml", "toml", "c++", "cuda"}
SECONDS = 300

_BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_OPT_OUT = re.compile(r"<!-- not run: \S.* -->\s*\Z")
_FROM = re.compile(r"<!-- from: (?P<file>\S+) -->\s*\Z")
_SLOW = re.compile(r"<!-- slow: (?P<instead>tests/\S+\.py) \S.* -->\s*\Z")


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language, its text, and whether a comment above it opts out.

    ``instead`` is the file that runs the same in the default suite, where the block itself is slow. ``part_of`` is the
    file that it is a part of.
    """

    document: str
    line: int
    language: str
    text: str
    opted_out: bool
    instead: str = ""
    part_of: str = ""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}"


def blocks_of(document: str, text: str) -> list[Block]:
    """All fenced blocks, indented ones (in lists) too."""
    found = []
    for match in _BLOCK.finditer(text):
        indent = match["indent"]
        body = "".join(line.removeprefix(indent) for line in match["body"].splitlines(keepends=True))
        line = text.count("\n", 0, match.start()) + 1
        above = text[: match.start()]
        slow = _SLOW.search(above)
        instead, source = slow["instead"] if slow else "", _FROM.search(above)
        opted_out, part_of = bool(_OPT_OUT.search(above)), source["file"] if source else ""
        found.append(Block(document, line, match["language"].strip(), body, opted_out, instead, part_of))
    return found


def shell_script(block: Block) -> str:
    """What to type: of a console block only the prompted lines, with their continuations."""
    if block.language == "sh":
        return block.text
    lines, continued = [], False
    for line in block.text.splitlines():
        if continued or line.startswith("$ "):
            lines.append(line if continued else line[2:])
            continued = line.endswith("\\")
    return "\n".join(lines) + "\n"


def run_block(block: Block, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a block in `folder`. `make` is replaced by a dry run in the repository: the suite must not start itself."""
    if block.language == "python":
        command = [sys.executable, "-c", block.text]
    else:
        dry_make = f'make() {{ command make -C "{ROOT}" -n "$@" >/dev/null; }}\n'
        command = ["bash", "-euo", "pipefail", "-c", dry_make + shell_script(block)]
    environment = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def prepare(folder: Path) -> Path:
    """Make `folder` look like the root of a clone after `make demo`, as far as commands in the docs can tell."""
    folder.mkdir()
    (folder / ".venv").symlink_to(sys.prefix)
    for name in ("examples", "tools", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    return folder


ALL_BLOCKS = [b for d in DOCUMENTS for b in blocks_of(str(d.relative_to(ROOT)), d.read_text())]
TO_RUN = [b for b in ALL_BLOCKS if b.language in RUN and not (b.opted_out or b.part_of)]


@pytest.fixture(scope="session")
def folders(talking_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One working folder per document, so that a block may use what an earlier one made."""
    base = tmp_path_factory.mktemp("docs")
    target = shutil.copytree(DEMO / "target", base / "demo")  # `verify` compares an engine's template with this one's
    shutil.copy(talking_engine / "chat_template.jinja", target)
    build(BUILD.request(model=str(target), draft=str(DEMO / "drafter"), out=base / "engine"))
    made = {}
    for document in {block.document for block in TO_RUN}:
        made[document] = prepare(base / document.replace("/", "-"))
        shutil.copytree(base / "engine", made[document] / "demo-engine")
    return made


@pytest.mark.parametrize(
    "block", [pytest.param(b, marks=[pytest.mark.slow] if b.instead else [], id=str(b)) for b in TO_RUN]
)
def test_block_runs(block: Block, folders: dict[str, Path]) -> None:
    done = run_block(block, folders[block.document])
    assert done.returncode == 0, f"{block} exited {done.returncode}\n{block.text}\n{done.stdout}"


@pytest.mark.parametrize("block", [b for b in TO_RUN if b.instead], ids=str)
def test_referenced_tests_exist(block: Block) -> None:
    assert (ROOT / block.instead).is_file()


@pytest.mark.parametrize("block", [b for b in ALL_BLOCKS if b.part_of], ids=str)
def test_file_excerpts_match_their_source(block: Block) -> None:
    assert block.text in (ROOT / block.part_of).read_text(), f"{block} is not a part of {block.part_of} any more"


def test_the_readme_shows_the_two_commands_first() -> None:
    first = next(block for block in ALL_BLOCKS if block.document == "README.md" and block.language in RUN)
    assert [line.split("#")[0].strip() for line in first.text.splitlines()] == ["make demo", "make test"]


def unknown_languages(blocks: list[Block]) -> list[str]:
    """Blocks in a language that is neither run nor known to be no command: bash would slip through."""
    return [f"{block}: {block.language}" for block in blocks if block.language not in RUN | NOT_RUN]


def test_no_block_escapes() -> None:
    assert unknown_languages(ALL_BLOCKS) == []


def table_names(text: str, heading: str, first_cell: str) -> list[str]:
    """Names in backquotes in the first column of the table that starts with `first_cell` below `heading`."""
    table = text.partition(f"{heading}\n")[2].partition(f"| {first_cell} |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


@pytest.mark.parametrize("graph", ["Target", "Drafter"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_contract_tables_match_the_graphs(graph: str, side: str) -> None:
    trace = pytest.importorskip("peagle.graphs.trace")
    names = getattr(trace, f"{graph.upper()}_{side.upper()}S")
    end = "" if side == "input" else ".out"
    caches = [f"k_cache.i{end}", f"v_cache.i{end}"]
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert table_names(text, f"### {graph}", side) == [*names, *caches]


def test_the_first_guide_lists_the_verbs_that_exist() -> None:
    shown = subprocess.run(
        [str(Path(sys.executable).with_name("peagle-compile")), "--help"],
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    verbs = set(re.findall(r"^\W*([a-z]+) {2,}\S", shown.partition("Commands")[2], re.MULTILINE))
    assert verbs == set(table_names((ROOT / "docs" / "get-started.md").read_text(), "## Commands", "command"))


# -------------------------------------------------------------------------------- each check on an example of its own

SAMPLE = """
```console
$ echo one \\
  two
one two
$ test -d examples
```

- in a list

  ```python
  print("three")
  ```

<!-- not run: needs a GPU -->

```sh
exit 1
```

<!-- not run: -->
```bash
exit 2
```

<!-- slow: tests/scenarios/test_docs.py does so -->
```sh
sleep 60
```
"""


def test_blocks_are_read_as_meant() -> None:
    console, python, left_out, bash, slow = blocks_of("a.md", SAMPLE)
    assert (console.line, console.language, console.opted_out) == (2, "console", False)
    assert shell_script(console) == "echo one \\\n  two\ntest -d examples\n"
    assert (python.language, python.text) == ("python", 'print("three")\n')
    assert left_out.opted_out
    assert not bash.opted_out, "a reason is needed"
    assert not bash.instead
    assert (slow.opted_out, slow.instead) == (False, "tests/scenarios/test_docs.py")
    assert unknown_languages([console, python, left_out, bash, slow]) == [f"a.md:{bash.line}: bash"]


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("sh", "false\necho done\n"),
        ("sh", "make no-such-target\n"),
        ("console", "$ no-such-command\n"),
        ("python", "raise SystemExit(1)\n"),
    ],
)
def test_a_block_that_fails_is_noticed(language: str, text: str, tmp_path: Path) -> None:
    assert run_block(Block("a.md", 1, language, text, False), prepare(tmp_path / "run")).returncode != 0


def test_a_block_that_works_passes(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "run")
    assert (
        run_block(Block("a.md", 1, "sh", "make demo\nmake test\n.venv/bin/python -V > out\n", False), folder).returncode
        == 0
    )
    assert (
        run_block(Block("a.md", 1, "python", "assert 'Python' in open('out').read()\n", False), folder).returncode == 0
    )


def test_tables_are_read_as_meant() -> None:
    text = (
        "## A\n| x |\n|---|\n| `no` |\n\n## B\n| verb | does |\n|---|---|\n| `a` `b` | `c` |\n| `d` | e |\n\n| `f` |\n"
    )
    assert table_names(text, "## B", "verb") == ["a", "b", "d"]
