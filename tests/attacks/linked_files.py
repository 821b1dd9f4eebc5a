"""Checkpoints with symbolic links: to a secret outside, by all kinds of paths, and to their own files."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from peagle.engines import Engine, SamplingParams
from tests.attacks.judging import judge
from tests.attacks.weight_edits import parts
from tests.attacks.world import Outcome, World, command

Piece = tuple[str, str, int]  # the file, its replacement, and the seed of the random part

SECRET = "BEGIN-PRIVATE-KEY-3f9a1c"
LAYOUTS = ("folder", "linked folder", "hub")
_VERBS = ("build", "quantize")
_PARAMS = SamplingParams(max_tokens=12, ignore_eos=True, temperature=0.8, seed=5)
_COPIED = (
    "target/config.json", "target/tokenizer.json", "target/tokenizer_config.json", "target/special_tokens_map.json",
    "target/generation_config.json", "target/chat_template.jinja", "target/chat_template.json", "target/LICENSE",
    "target/additional_chat_templates/tools.jinja", "target/preprocessor_config.json", "head/config.json",
)  # fmt: skip
_READ = (
    "target/model.safetensors.index.json", "target/model.safetensors", "target/hf_quant_config.json",
    "head/model.safetensors",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a link is put: a ``file`` of a checkpoint ``folder``, with the Hub's ``blobs`` where it has some."""

    folder: Path
    file: Path
    secret: Path
    right: bytes
    has_blobs: bool
    number: int

    def new(self, folder: Path) -> Path:
        """Return a name in a folder that nothing has yet."""
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self.number:08x}-{len(os.listdir(folder))}"

    @property
    def blobs(self) -> Path:
        """The blobs of the Hub's repository; elsewhere, a folder of the checkpoint's."""
        return self.folder.parent.parent / "blobs" if self.has_blobs else self.folder / "files"


def draw(rng: random.Random) -> list[Piece]:
    """A verb and a layout, and one link or a few."""
    verb = rng.choices(_VERBS, (9, 1))[0]
    pieces: list[Piece] = [(verb, rng.choice(LAYOUTS), 0)]
    for name in rng.sample((*_COPIED, *_READ), rng.choice((1, 1, 1, 2, 3))):
        kinds = rng.choices((_OUT, _WITHIN, _NONE), (6, 3, 2))[0]
        pieces.append((name, rng.choice(list(kinds)), rng.getrandbits(32)))
    return pieces


def tokens_of(engine: Path) -> tuple[int, ...]:
    """Return an engine's output, to compare engines."""
    return Engine.load(engine, threads=1).generate([[5, 9, 30]], _PARAMS)[0].token_ids


def run(world: World, expected: tuple[int, ...], pieces: Sequence[Piece]) -> str | None:
    """Describe what is wrong with the end of a command that reads such links, or return None."""
    plans = [piece for piece in pieces if piece[0] in _VERBS]
    verb, layout, _ = plans[0] if plans else ("build", LAYOUTS[0], 0)
    read = ("target/", "head/") if verb == "build" else ("target/",)
    links = [piece for piece in pieces if piece[0].startswith(read)]
    elsewhere = world.root.with_name("elsewhere")
    shutil.rmtree(elsewhere, ignore_errors=True)
    elsewhere.mkdir()
    try:
        folders = {part: _laid_out(world, part, layout) for part in ("target", "head")}
        for name, kind, seed in links:
            weights = world.root / name.partition("/")[0] / "model.safetensors"  # may have become a link
            _put(folders, elsewhere, weights, name, kind, seed, is_hub=layout == "hub")
        arguments = _arguments(verb, *(_named(world, folder, layout) for folder in folders.values()))
        world.remember()
        outcome = command(arguments)
        return judge(world, outcome, arguments) or _complaint(world, outcome, links, verb, expected)
    finally:
        shutil.rmtree(elsewhere, ignore_errors=True)


def _complaint(
    world: World, outcome: Outcome, links: Sequence[Piece], verb: str, expected: tuple[int, ...]
) -> str | None:
    out = world.here / "out"
    if SECRET in outcome.out + outcome.err:
        return f"said the secret: {(outcome.out + outcome.err)[:300]}"
    for path in out.rglob("*"):
        if path.is_symlink() or (path.is_file() and SECRET.encode() in path.read_bytes()):
            return f"has the secret in {path.relative_to(out)}, or a link in its place"
    if not outcome.code and (led := [name for name, kind, _ in links if kind in _OUT and name in _COPIED]):
        return f"was made with links that lead out: {led}"
    if outcome.code:
        is_right = all(kind in _WITHIN for _, kind, _ in links)
        return f"refused what is its own: {outcome.err[:300]}" if is_right else None
    if verb == "build" and (tokens := tokens_of(out)) != expected:
        return f"was built, and gives other tokens: {tokens}"
    return None


def _arguments(verb: str, target: Path, head: Path) -> list[str]:
    if verb == "quantize":
        return ["quantize", "--model", str(target), "--out", "out"]
    build = ["build", "--model", str(target), "--draft", str(head), "--out", "out"]
    return [*build, "--max-seq-len", "64", "--num-speculative-tokens", "2"]


# -------------------------------------------------------------------------------------------------------- the layouts


def _laid_out(world: World, part: str, layout: str) -> Path:
    """Copy a checkpoint, in the layout of the Hub's cache if ``layout`` says so."""
    source = world.root / part
    if layout != "hub":
        return Path(shutil.copytree(source, world.here / part))
    repository = world.here / f"models--a--{part}"
    folder, blobs = repository / "snapshots" / "0123abcd", repository / "blobs"
    for made in (folder, blobs):
        made.mkdir(parents=True)
    for number, path in enumerate(sorted(source.iterdir())):
        shutil.copy(path, blobs / f"{number:040x}")
        (folder / path.name).symlink_to(f"../../blobs/{number:040x}")
    return folder


def _named(world: World, folder: Path, layout: str) -> Path:
    """Return the form in which a command gets the folder."""
    if layout != "linked folder":
        return folder
    link = world.here / f"link-to-{folder.name}"
    link.symlink_to(folder.name)
    return link


def _put(
    folders: dict[str, Path], elsewhere: Path, weights: Path, name: str, kind: str, seed: int, *, is_hub: bool
) -> None:
    part, _, inner = name.partition("/")
    folder, rng = folders[part], random.Random(seed)
    file = folder / inner
    right = file.read_bytes() if file.is_file() else _right(weights, inner)
    secret = elsewhere / f"{seed:08x}"
    secret.write_bytes(_secret(rng, inner, right))
    file.unlink(missing_ok=True)
    file.parent.mkdir(exist_ok=True)
    {**_OUT, **_WITHIN, **_NONE}[kind](Place(folder, file, secret, right, is_hub, seed))


def _right(weights: Path, name: str) -> bytes:
    """Draw the content of a file that the checkpoint does not have."""
    if name.endswith("index.json"):
        header, _ = parts(weights.read_bytes())
        names = sorted(header.keys() - {"__metadata__"})
        return json.dumps({"weight_map": dict.fromkeys(names, "model.safetensors")}).encode()
    return b"{{ messages }}" if name.endswith("jinja") else b"{}"


def _secret(rng: random.Random, name: str, right: bytes) -> bytes:
    """Draw secret bytes: any, or a plausible content for the file that links to them."""
    if rng.random() < 0.3 or name.endswith(".safetensors"):
        return rng.choice((SECRET, f"{SECRET}\n" * 50, f'"{SECRET}"', f'["{SECRET}"]', f"\0{SECRET}")).encode()
    if not name.endswith(".json"):
        return right + SECRET.encode()
    content = json.loads(right)
    key = rng.choice(("secret", "chat_template", "bos_token", "model_type", "eos_token_id", SECRET))
    content[key] = SECRET
    return json.dumps(content).encode()


# ---------------------------------------------------------------------------------------------------------- the links


def _link(file: Path, to: Path | str) -> None:
    file.symlink_to(to)


def _relative(file: Path, to: Path) -> str:
    return os.path.relpath(to, file.parent)


def _over(place: Place, way: Path, end: Path | str) -> None:
    """A link to a link."""
    _link(way, end)
    _link(place.file, _relative(place.file, way))


def _by_a_folder(place: Place) -> None:
    way = place.new(place.folder)
    _link(way, place.secret.parent)
    _link(place.file, way / place.secret.name)


def _of_another_repository(place: Place) -> None:
    blobs = place.folder.parent / "models--c--d" / "blobs"
    if place.has_blobs:
        blobs = place.folder.parents[2] / "models--c--d" / "blobs"
    blob = place.new(blobs)
    shutil.copy(place.secret, blob)
    _link(place.file, _relative(place.file, blob))


def _beside(place: Place) -> None:
    """In the folder above, as ``refs`` or another snapshot is."""
    file = place.new(place.folder.parent / "refs")
    shutil.copy(place.secret, file)
    _link(place.file, _relative(place.file, file))


def _a_prefix(place: Place) -> None:
    """In a folder whose name begins as that of the checkpoint or its blobs does."""
    home = place.blobs if place.has_blobs else place.folder
    file = place.new(home.with_name(f"{home.name}-2"))
    shutil.copy(place.secret, file)
    _link(place.file, file)


def _within(place: Place, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    file = folder / f"{place.number:08x}-right"
    file.write_bytes(place.right)
    return file


def _out_and_back(place: Place) -> None:
    """A link outside that leads to a file of the checkpoint's own."""
    way = place.new(place.secret.parent)
    _link(way, _within(place, place.folder / "files"))
    _link(place.file, way)


def _a_pipe(place: Place) -> None:
    pipe = place.new(place.folder / "files")
    os.mkfifo(pipe)
    _link(place.file, pipe)


_OUT: dict[str, Callable[[Place], None]] = {
    "the secret": lambda place: _link(place.file, place.secret),
    "the secret, by dots": lambda place: _link(place.file, _relative(place.file, place.secret)),
    "the secret, by a link": lambda place: _over(place, place.new(place.folder), place.secret),
    "the secret, by a blob": lambda place: _over(place, place.new(place.blobs), place.secret),
    "the secret, by /proc": lambda place: _link(place.file, f"/proc/self/root{place.secret}"),
    "the secret, by two links": lambda place: _over(
        place, place.new(place.folder), _relative(place.folder / "x", place.secret)
    ),
    "the secret, by a folder": _by_a_folder,
    "of another repository": _of_another_repository,
    "beside the checkpoint": _beside,
    "a folder of a longer name": _a_prefix,
}  # fmt: skip
_WITHIN: dict[str, Callable[[Place], None]] = {
    "inside": lambda place: _link(place.file, _relative(place.file, _within(place, place.folder / "files"))),
    "inside, in full": lambda place: _link(place.file, _within(place, place.folder / "files")),
    "inside, by a link": lambda place: _over(
        place, place.new(place.folder), _within(place, place.folder / "files")
    ),
    "a blob": lambda place: _link(place.file, _relative(place.file, _within(place, place.blobs))),
    "a blob, by a blob": lambda place: _over(place, place.new(place.blobs), _within(place, place.blobs)),
    "out and back": _out_and_back,
}  # fmt: skip
_NONE: dict[str, Callable[[Place], None]] = {
    "itself": lambda place: _link(place.file, place.file.name),
    "nothing": lambda place: _link(place.file, "/nowhere/at/all"),
    "a folder": lambda place: _link(place.file, "."),
    "the root": lambda place: _link(place.file, "/"),
    "no end": lambda place: _link(place.file, "/dev/zero"),
    "no bytes": lambda place: _link(place.file, "/dev/null"),
    "memory": lambda place: _link(place.file, "/proc/self/mem"),
    "a pipe": _a_pipe,
    "a pipe in its place": lambda place: os.mkfifo(place.file),
}  # fmt: skip
