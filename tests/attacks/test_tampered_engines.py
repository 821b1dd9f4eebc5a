"""An engine with a changed, missing or replaced file is refused before it runs."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.plugins.errors import EnvironmentProblem
from tests.fixtures.attacks import Size

_PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, seed=5)


def _flip(rng: random.Random, path: Path, _: list[Path]) -> str:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    content[at] ^= 1 << rng.randrange(8)
    _write(path, content)
    return f"a bit of byte {at} of {path.name}"


def _overwrite(rng: random.Random, path: Path, _: list[Path]) -> str:
    content = bytearray(path.read_bytes())
    at = rng.randrange(len(content))
    content[at : at + rng.choice((1, 16, 4096))] = b"\0" * min(rng.choice((1, 16, 4096)), len(content) - at)
    if content == path.read_bytes():  # the bytes were zeros already
        content[at] ^= 0xFF
    _write(path, content)
    return f"zeros from byte {at} of {path.name}"


def _cut(rng: random.Random, path: Path, _: list[Path]) -> str:
    content = path.read_bytes()
    length = rng.choice((0, len(content) - 1, len(content) // 2, rng.randrange(len(content))))
    _write(path, content[:length])
    return f"{path.name} cut to {length}"


def _grow(rng: random.Random, path: Path, _: list[Path]) -> str:
    _write(path, path.read_bytes() + rng.choice((b"x", b"\0" * 100, path.read_bytes()[:1000])))
    return f"{path.name} is longer"


def _delete(rng: random.Random, path: Path, _: list[Path]) -> str:
    path.unlink()
    what = rng.choice(("nothing", "a folder", "a dangling link", "a link to itself", "/dev/null"))
    if what == "a folder":
        path.mkdir()
    elif what != "nothing":
        path.symlink_to({"a dangling link": "gone", "a link to itself": path.name}.get(what, "/dev/null"))
    return f"{what} for {path.name}"


def _swap(rng: random.Random, path: Path, files: list[Path]) -> str:
    other = rng.choice([each for each in files if each.read_bytes() != path.read_bytes()])
    aside = path.with_name("aside")
    os.replace(path, aside)
    os.replace(other, path)
    os.replace(aside, other)
    return f"{path.name} and {other.name} swapped"


def _write(path: Path, content: bytes | bytearray) -> None:
    path.unlink()  # it may be read-only
    path.write_bytes(content)


_DAMAGE: tuple[Callable[[random.Random, Path, list[Path]], str], ...] = (
    _flip, _flip, _flip, _overwrite, _cut, _grow, _delete, _swap,
)  # fmt: skip


def tamper(engine: Path, folder: Path, seed: int, number: int) -> None:
    """Damage a copy of an engine; it must be refused."""
    rng = random.Random(f"{seed}/{number}")
    copy = Path(shutil.copytree(engine, folder / "engine", symlinks=True))
    files = sorted(path for path in copy.rglob("*") if path.is_file())
    path = rng.choice(files)
    before = path.read_bytes()
    did = rng.choice(_DAMAGE)(rng, path, files)
    try:
        Engine.load(copy, threads=1)
    except EnvironmentProblem:
        return
    else:  # white space in the manifest may change without changing its meaning
        is_same = path.name == "engine.json" and json.loads(before) == json.loads(path.read_bytes())
        assert is_same, f"{did} (--seed {seed} --first {number})"
    finally:
        shutil.rmtree(copy)


def test_a_random_damage_to_an_engine_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    for number in range(40):
        tamper(tiny_folder, tmp_path, 0, number)


@pytest.mark.slow
def test_every_one_of_many_damages_to_an_engine_is_refused(
    demo_engine: Path, tmp_path: Path, attack_size: Size
) -> None:
    for number in attack_size.numbers:
        tamper(demo_engine, tmp_path, attack_size.seed, number)


def test_moved_engine_or_extra_files_give_the_same_text(tiny_folder: Path, tmp_path: Path) -> None:
    expected = _text(tiny_folder)
    moved = Path(shutil.copytree(tiny_folder, tmp_path / "é 中 moved"))
    (moved / "more.txt").write_text("not in the manifest")
    (moved / "target" / ".hidden").mkdir()
    link = tmp_path / "link"
    link.symlink_to(moved)
    inner = tmp_path / "linked"
    inner.mkdir()
    for path in tiny_folder.iterdir():
        (inner / path.name).symlink_to(path)
    assert [_text(folder) for folder in (moved, link, inner)] == [expected] * 3


def _text(folder: Path) -> tuple[int, ...]:
    return Engine.load(folder, threads=1).generate([[5, 9, 30]], _PARAMS)[0].token_ids
