"""A folder in which random inputs may do anything, and the inspection afterwards."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.models import Pair

SECONDS = 300.0  # for one input, on a busy machine
BYTES = 3 << 30  # of address space beyond what the process uses

Stamp = tuple[int, int, int]
_KEPT = ("cache", "home")  # between commands


class TooLongError(BaseException):
    """An input did not end in its time; no handler of ``Exception`` keeps it."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of the command line: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


@dataclass
class World:
    """Folders to read and to write: an ``engine``, a ``pair``, ``files``, and ``here``, which is the current one."""

    root: Path
    paths: tuple[str, ...] = ()
    _whole: dict[str, Stamp] = field(default_factory=dict)
    _before: dict[str, Stamp] = field(default_factory=dict)

    @property
    def engine(self) -> Path:
        """A whole engine."""
        return self.root / "engine"

    @property
    def pair(self) -> Pair:
        """The checkpoints it was made from."""
        return Pair(self.root / "target", self.root / "head")

    @property
    def files(self) -> Path:
        """Files to be read, good ones and others."""
        return self.root / "files"

    @property
    def here(self) -> Path:
        """The current folder of a command."""
        return self.root / "here"

    @property
    def pristine(self) -> Path:
        """Return the state when it was created."""
        return self.root.with_name(f"{self.root.name}-pristine")

    def remember(self) -> None:
        """Take what is there now for what must stay."""
        self._before = self._stamps()

    def new(self) -> list[str]:
        """Return the paths that were added."""
        return sorted(self._stamps().keys() - self._before.keys())

    def changed(self) -> list[str]:
        """Return the paths that were removed or changed."""
        now = self._stamps()
        return sorted(path for path, stamp in self._before.items() if now.get(path) != stamp)

    def restore(self) -> None:
        """Restore the initial state."""
        self._before = self._whole
        for name in sorted(self.new(), reverse=True):
            _remove(self.root / name)
        for name in {changed.partition("/")[0] for changed in self.changed()}:
            _remove(self.root / name)
            _copy(self.pristine / name, self.root / name)
        self.remember()
        self._whole = self._before
        os.chdir(self.here)

    def _stamps(self) -> dict[str, Stamp]:
        """(mode, size, time) by path, without what is kept between commands; a folder changes with what is in it."""
        stamps = {}
        for folder, folders, files in os.walk(self.root):
            if folder == str(self.root):
                folders[:] = [name for name in folders if name not in _KEPT]
            for name in (*folders, *files):
                path = Path(folder, name)
                stat = path.lstat()
                is_folder = path.is_dir() and not path.is_symlink()
                seen = (0, 0) if is_folder else (stat.st_size, stat.st_mtime_ns)
                stamps[os.fsdecode(os.path.relpath(path, self.root))] = (stat.st_mode, *seen)
        return stamps


def make_world(root: Path, engine: Path, pair: Pair, cache: Path) -> World:
    """A world with an engine and its pair, and paths of every kind."""
    root.mkdir()
    world = World(root)
    shutil.copytree(engine, world.engine)
    shutil.copytree(pair.target, world.pair.target)
    shutil.copytree(pair.head, world.pair.head)
    for name in ("files", "here", "home", "cache", "empty", "full"):
        (root / name).mkdir()
    for kept in ("trace-*", "skeleton", "cpu-library"):  # the largest part of a build
        for stage in cache.glob(kept):  # names of files that another worker is writing begin with a dot
            shutil.copytree(stage, root / "cache" / stage.name, ignore=shutil.ignore_patterns(".*"))
    (root / "full" / "precious").write_text("not ours")
    contents = {
        "empty": b"",
        "binary": bytes(range(256)) * 16,
        "texts.jsonl": b'{"text": "def f(a):\\n    return a"}\n' * 200,
        "odd.jsonl": b'{"text": 3}\n{"messages": {}}\n{"input_ids": [-1, 1e9]}\n{}\nnull\n',
        "bad.jsonl": b'{"text": "a"}\n{"text": \n',
        "options.yaml": b"sizes:\n  max_seq_len: 64\n  num_speculative_tokens: 3\n",
    }
    for name, content in contents.items():
        (world.files / name).write_bytes(content)
    links = {"loop": "loop", "dangling": "nowhere", "to-empty": "empty", "to-engine": "engine", "to-null": "/dev/null"}
    for name, to in links.items():
        (root / name).symlink_to(to)
    names = ("engine", "target", "head", "empty", "full", *links, *(f"files/{name}" for name in contents), "missing")
    world.paths = (
        *(str(root / name) for name in names), "../engine", "../engine/", "../engine/engine.json",
        "../target/config.json", "../target/model.safetensors",
        "out", "out/", "./out", "deep/er/out", ".", "..", "",
        "/dev/null", "/dev/null/x", "/dev/zero", "/dev/full", "/proc/self/mem", "/proc/nothing",
        "/proc/self/fd/99", "a" * 250, "a" * 300,
        "é中😀", "a\udcffb", " ", "-", "--", "~", "a\nb", "../target/out", "../engine/out", "x" + "/x" * 3000,
    )  # fmt: skip
    _copy(root, world.pristine)
    world._whole = world._before = world._stamps()
    return world


def _copy(source: Path, target: Path) -> None:
    if source.is_dir() and not source.is_symlink():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def guarded(seconds: float = SECONDS) -> Iterator[None]:
    """Allow what happens inside no more time, memory and size of files than any of the inputs needs."""

    def ring(*_: Any) -> None:
        raise TooLongError(f"did not end in {seconds} s")

    had = {kind: resource.getrlimit(kind) for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE)}
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    handler = signal.signal(signal.SIGALRM, ring)
    try:
        resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, had[resource.RLIMIT_AS][1]))
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, had[resource.RLIMIT_FSIZE][1]))
        signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # repeatedly: libraries swallow the first one
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        for kind, limits in had.items():
            resource.setrlimit(kind, limits)


def command(arguments: Sequence[str], stdin: bytes = b"") -> Outcome:
    """Run ``peagle-compile`` in this process, with streams that are as strict as those of a shell."""
    from peagle.compiler.cli import run_cli

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", how) for how in ("strict", "backslashreplace"))
    had = sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), "utf-8", "strict")
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_cli(arguments)
    finally:
        sys.stdin = had
    for stream in (out, err):
        stream.flush()
    said = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Outcome(code, *said)
