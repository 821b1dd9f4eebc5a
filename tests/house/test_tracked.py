"""Tracked files are small and independent of any machine."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from tests.house.tree import ROOT

MAX_BYTES, MAX_HEAD_BYTES = 8_000_000, 16_000_000
HEADS = ROOT / "compiler" / "bundled" / "heads"

# A clone must not depend on the machine it was written on.
MACHINE = re.compile(r"(?<![\w.-])/(?:work|root)/|\.\./shared\b")


def tracked_files(root: Path) -> list[Path]:
    """The files that git tracks or would track; in an unpacked archive, all outside hidden and cache folders."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    if (root / ".git").exists():
        done = subprocess.run(listing, cwd=root, capture_output=True, text=True, check=True)
        return [root / name for name in done.stdout.split("\0") if name and (root / name).is_file()]
    skip = re.compile(r"\..*|__pycache__|.*\.egg-info|build|dist|demo-engine")
    files = (path for path in root.rglob("*") if path.is_file())
    return [path for path in files if not any(skip.fullmatch(part) for part in path.relative_to(root).parts)]


def limit_of(path: Path) -> int:
    """Of a file; a head may be larger."""
    return MAX_HEAD_BYTES if HEADS in path.parents else MAX_BYTES


def tracking_complaints(path: Path, max_bytes: int | None = None) -> list[str]:
    """Too large, or a text that names a machine's folders."""
    content = path.read_bytes()
    max_bytes = limit_of(path) if max_bytes is None else max_bytes
    complaints = [f"{path}: {len(content)} bytes"] if len(content) > max_bytes else []
    if b"\0" not in content[:8192]:
        text = content.decode("utf-8", errors="replace")
        complaints += [f"{path}: names {match[0]}" for match in MACHINE.finditer(text)]
    return complaints


def test_tracked_files_are_small_and_independent_of_any_machine() -> None:
    files = tracked_files(ROOT)
    assert Path(__file__).resolve() in files
    assert [complaint for path in files for complaint in tracking_complaints(path)] == []


def test_a_large_or_local_file_is_found(tmp_path: Path) -> None:
    bad, good, binary = tmp_path / "bad.md", tmp_path / "good.md", tmp_path / "binary.bin"
    folder = "/" + "work/"
    bad.write_text(f"see {folder}main and .{'.'}/shared/notes.md")
    good.write_text(f"a net{folder}main or /{'roots'}/ or .{'.'}/shared_state")
    binary.write_bytes(b"\0" + folder.encode())
    assert len(tracking_complaints(bad, max_bytes=10)) == 3
    assert tracking_complaints(good) == tracking_complaints(binary) == []
