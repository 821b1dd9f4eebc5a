"""Caches with planted entries: foreign owners, files that others can write, changed files and records, links, pipes.

Untrusted entries are refused; damaged ones are built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from peagle.engines import Engine, SamplingParams
from tests.attacks import nasty_values as nasty
from tests.attacks.judging import judge
from tests.attacks.world import World, command

Piece = tuple[str, str, int]  # planted entry, its place in the cache, and the seed of the random part

STRANGER = 54321
LOWERINGS = ("std", "cpu")
_PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, seed=5)
_UNTRUSTED = ("of another user", "for others to write") if os.geteuid() == 0 else ("for others to write",)
_RECORD, _SEAL = "stage.json", "stage.sha256"
_SLOW = ("cpu-library",)  # building it again takes a compiler half a minute


@dataclass(frozen=True)
class Caches:
    """Caches that hold all steps of a build, by lowering, and the tokens that its engine gives."""

    folders: dict[str, Path]
    tokens: tuple[int, ...]


def make_caches(world: World, folder: Path) -> Caches:
    """Fill a cache for each lowering with the steps of one build."""
    found: set[tuple[int, ...]] = set()
    for lowering in LOWERINGS:
        cache = folder / lowering
        of_the_other = ("cpu-*",) if lowering == "std" else ()  # a build reads everything in its cache
        shutil.copytree(world.root / "cache", cache, ignore=shutil.ignore_patterns(*of_the_other))
        began = time.time_ns()
        with _cache_of(cache):
            outcome = command(_build(world, lowering))
        assert outcome.code == 0, outcome.err
        _drop_unread(cache, began)
        for path in (cache, *cache.rglob("*")):  # open to others, so that the modes of all files matter
            path.chmod(0o755 if path.is_dir() else 0o644)
        found.add(_tokens(world.here / "out"))
        shutil.rmtree(world.here / "out")
    assert len(found) == 1
    return Caches({lowering: folder / lowering for lowering in LOWERINGS}, found.pop())


def _drop_unread(cache: Path, began: int) -> None:
    """Remove the steps of other builds, and locks without a step: something is planted in what a build reads.

    A build touches every step that it takes from the cache.
    """
    for stage in cache.glob("*/*/"):
        if stage.stat().st_mtime_ns < began:
            shutil.rmtree(stage)
    for lock in cache.glob("*/*.lock"):
        if not lock.with_suffix("").is_dir():
            lock.unlink()


def draw(rng: random.Random, caches: Caches) -> list[Piece]:
    """A lowering and a verb, and one thing that is planted, or a few."""
    lowering = rng.choice(LOWERINGS)
    verb = rng.choice(("build",) * 7 + ("inspect", "list", "prune", "doctor"))
    cache = caches.folders[lowering]
    paths = sorted(path.relative_to(cache) for path in cache.rglob("*"))
    pieces: list[Piece] = [(verb, lowering, 0)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        path = rng.choice([Path(), *paths, *_stages(paths) * 4])
        what = rng.choice((*_UNTRUSTED * 4, *_DAMAGE, *_OF_STAGES, *_OF_STAGES))
        if path.parts[:1] == _SLOW and what not in _UNTRUSTED and rng.random() < 0.97:
            what = rng.choice(_UNTRUSTED)
        if what in _OF_STAGES:
            path = rng.choice(_stages(paths)) if path.parts[:1] != _SLOW else path
        pieces.append((what, path.as_posix(), rng.getrandbits(32)))
    return pieces


def run(world: World, caches: Caches, pieces: Sequence[Piece]) -> str | None:
    """Describe what is wrong with the end of a command that uses such a cache, or return None."""
    plans = [piece for piece in pieces if piece[0] in _VERBS]
    verb, lowering, _ = plans[0] if plans else ("build", LOWERINGS[-1], 0)
    cache = world.root.with_name("planted")
    elsewhere = world.root.with_name("elsewhere")
    for folder in (cache, elsewhere):
        _clear(folder)
    shutil.copytree(caches.folders[lowering], cache)
    elsewhere.mkdir()
    planted = [(what, path) for what, path, seed in pieces if what not in _VERBS and _plant(what, cache / path, seed)]
    try:
        with _cache_of(cache):
            arguments = _VERBS[verb](world, lowering)
            outcome = command(arguments)
            if complaint := judge(world, outcome, arguments):
                return complaint
            untrusted = [path for what, path in planted if what in _UNTRUSTED and os.path.lexists(cache / path)]
            if verb == "build" and not outcome.code and untrusted and len(planted) == 1:
                return f"was built with what is not trusted: {untrusted}"
            if untrusted and outcome.code and not any(word in outcome.err for word in ("belongs to", "can write")):
                return None if len(planted) > 1 else f"was refused for another reason: {outcome.err[:300]}"
            if verb != "build" or outcome.code:
                return None
            tokens = _tokens(world.here / "out")
            return None if tokens == caches.tokens else f"was built, and gives other tokens: {tokens}"
    finally:
        for folder in (cache, elsewhere):
            _clear(folder)


def _build(world: World, lowering: str) -> list[str]:
    build = ["build", "--model", str(world.pair.target), "--draft", str(world.pair.head), "--out", "out"]
    return [*build, "--max-seq-len", "64", "--num-speculative-tokens", "2", "--lowering", lowering]


_VERBS: dict[str, Callable[[World, str], list[str]]] = {
    "build": _build,
    "inspect": lambda world, _: ["inspect", str(world.engine)],
    "list": lambda *_: ["cache", "list"],
    "prune": lambda *_: ["cache", "prune", "--max-size", "0"],
    "doctor": lambda *_: ["doctor"],
}


def _tokens(engine: Path) -> tuple[int, ...]:
    return Engine.load(engine, threads=1).generate([[5, 9, 30]], _PARAMS)[0].token_ids


@contextmanager
def _cache_of(cache: Path) -> Iterator[None]:
    had = os.environ["PEAGLE_CACHE"]
    os.environ["PEAGLE_CACHE"] = str(cache)
    try:
        yield
    finally:
        os.environ["PEAGLE_CACHE"] = had


def _clear(folder: Path) -> None:
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    elif folder.is_dir():
        shutil.rmtree(folder)


def _stages(paths: Sequence[Path]) -> list[Path]:
    return [path.parent for path in paths if path.name == _RECORD]


# ------------------------------------------------------------------------------------------------ what is planted


def _plant(what: str, path: Path, seed: int) -> bool:
    """Plant something; whether there was something to do it to, as after other plants there may not be."""
    if not os.path.lexists(path):
        return False
    rng = random.Random(seed)
    if what in _UNTRUSTED:
        return _untrust(what, path, rng)
    if what in _OF_STAGES and not (path / _RECORD).is_file():
        return False
    ({**_DAMAGE, **_OF_STAGES})[what](path, rng)
    return True


def _untrust(what: str, path: Path, rng: random.Random) -> bool:
    if what == "of another user":
        os.chown(path, STRANGER, STRANGER, follow_symlinks=False)
    elif path.is_symlink() or path.name.endswith(".lock"):  # a lock has no content
        return False
    else:
        path.chmod(path.stat().st_mode | rng.choice((0o002, 0o022, 0o006)))
    return True


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _gone(path: Path, _: random.Random) -> None:
    _remove(path)


def _emptied(path: Path, _: random.Random) -> None:
    if path.is_dir():
        for inner in path.iterdir():
            _remove(inner)
    else:
        path.write_bytes(b"")


def _cut(path: Path, rng: random.Random) -> None:
    if path.is_file():
        content = path.read_bytes()
        path.write_bytes(content[: rng.randrange(len(content) or 1)])


def _flipped(path: Path, rng: random.Random) -> None:
    if path.is_file() and (content := bytearray(path.read_bytes())):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def _grown(path: Path, rng: random.Random) -> None:
    if path.is_dir():
        (path / rng.choice(("more", ".hidden", "stage.json.bak", "é"))).write_bytes(b"x")
    else:
        path.write_bytes(path.read_bytes() + rng.choice((b"x", b"\0" * 4096)))


def _another_kind(path: Path, rng: random.Random) -> None:
    """A file where a folder was, a pipe where a file was, and the like."""
    _remove(path)
    rng.choice((path.mkdir, path.touch, lambda: os.mkfifo(path)))()


def _link(path: Path, rng: random.Random) -> None:
    """Replace it by a link: to the original, or to something that it can never be."""
    elsewhere = path.parents[_depth(path)].with_name("elsewhere") / f"{rng.getrandbits(32):x}"
    ends = ("itself", "itself", "/dev/null", "/dev/zero", "/nowhere", path.name, "..", "/etc/passwd", "/proc/self/mem")
    end = rng.choice(ends)
    if end == "itself":
        path.rename(elsewhere)
    else:
        _remove(path)
    path.symlink_to(elsewhere if end == "itself" else end)


def _depth(path: Path) -> int:
    """How many folders above ``path`` the planted cache is, less one for the path itself."""
    names = [each.name for each in path.parents]
    return names.index("planted") if "planted" in names else 0


def _swapped(path: Path, rng: random.Random) -> None:
    """Swap two files or two stages; files outside the cache do not count."""
    if path.name == "planted":
        return
    others = [other for other in path.parent.iterdir() if other != path and other.is_dir() == path.is_dir()]
    if others:
        other, aside = rng.choice(sorted(others)), path.with_name(".aside")
        path.rename(aside)
        other.rename(path)
        aside.rename(other)


def _record_is(path: Path, content: bytes, *, sealed: bool) -> None:
    (path / _RECORD).write_bytes(content)
    if sealed:
        (path / _SEAL).write_text(hashlib.sha256(content).hexdigest())


def _no_files(path: Path, rng: random.Random) -> None:
    _record_is(path, b"{}", sealed=rng.random() < 0.5)


def _not_a_record(path: Path, rng: random.Random) -> None:
    _record_is(path, rng.choice(nasty.NOT_A_DOCUMENT), sealed=rng.random() < 0.5)


def _listed(path: Path) -> dict[str, list[object]]:
    """Return the record of a stage, unless it was replaced."""
    try:
        record = json.loads((path / _RECORD).read_bytes())
    except (ValueError, RecursionError):
        record = None
    return record if isinstance(record, dict) and record else {"model.onnx": [1, "0" * 64]}


def _other_record(path: Path, rng: random.Random) -> None:
    names = ("../b", "/etc/passwd", "model.onnx", "", ".")
    _, content = nasty.edited(rng, _listed(path), names)
    _record_is(path, json.dumps(content).encode(), sealed=rng.random() < 0.5)


def _fewer_files(path: Path, rng: random.Random) -> None:
    """A file that neither the record lists nor the folder has."""
    record = _listed(path)
    if not (names := [name for name in record if (path / name).is_file()]):
        return
    name = rng.choice(sorted(names))
    del record[name]
    (path / name).unlink()
    _record_is(path, json.dumps(record).encode(), sealed=False)


def _no_seal(path: Path, _: random.Random) -> None:
    (path / _SEAL).unlink(missing_ok=True)


_DAMAGE: dict[str, Callable[[Path, random.Random], None]] = {
    "gone": _gone, "emptied": _emptied, "cut": _cut, "a bit is another": _flipped, "more than it was": _grown,
    "another kind": _another_kind, "a link": _link, "swapped": _swapped,
}  # fmt: skip
_OF_STAGES: dict[str, Callable[[Path, random.Random], None]] = {
    "a record of no files": _no_files, "no record": _not_a_record, "another record": _other_record,
    "a file fewer": _fewer_files, "a record without its hash": _no_seal,
}  # fmt: skip
