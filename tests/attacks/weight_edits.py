"""Checkpoints with damaged weights: bytes, headers, shards and indices of safetensors, and missing files."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.attacks import nasty_values as nasty
from tests.attacks.checkpoint_edits import Content, Piece
from tests.attacks.world import World

WEIGHTS = ("target/model.safetensors", "head/model.safetensors")
_INDEX = "model.safetensors.index.json"
_SMALL = ("target/config.json", "target/tokenizer.json", "head/config.json", *WEIGHTS)
_ELSEWHERE = (
    None, Path("/dev/null"), Path("/dev/zero"), Path("/nowhere"), Path("config.json"), Path("model.safetensors"),
    Path("."), Path("/etc"), Path("/proc/self/mem"), Path("../head/model.safetensors"), Path("../target/config.json"),
)  # fmt: skip
_NAMES = (
    "../../../../etc/passwd", "/etc/passwd", "missing.safetensors", "model-00003-of-00002.safetensors", "", ".",
    "config.json", "../head/model.safetensors", "a" * 300, "a\0b", 3, None, [], "model-00001-of-00002.safetensors",
)  # fmt: skip
_TYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2", "F4", "C64", "f32", 3)
_VALUES = (float("nan"), float("inf"), 1e38, 3e38, -3e38, 0.0, 1e-45)


def draw(rng: random.Random, world: World) -> list[Piece]:
    """One damage to the weights of a pair, in one file or more."""
    name = rng.choice(WEIGHTS)
    damage: tuple[Callable[[random.Random, World, str], list[Piece]], ...] = (
        _bytes, _bytes, _header, _header, _header, _length, _values, _shards, _shards, _gone,
    )  # fmt: skip
    return rng.choice(damage)(rng, world, name)


def parts(content: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def joined(header: Any, data: bytes) -> bytes:
    """A safetensors file of these."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def _bytes(rng: random.Random, world: World, name: str) -> list[Piece]:
    content = bytearray((world.root / name).read_bytes())
    (length,) = struct.unpack("<Q", content[:8])
    at = rng.randrange(8 + length) if rng.random() < 0.8 else rng.randrange(len(content))
    roll = rng.random()
    if roll < 0.6:
        content[at] ^= 1 << rng.randrange(8)
        return [(name, f"a bit of byte {at}", bytes(content))]
    if roll < 0.85:
        end = rng.choice((at, len(content) - 1, len(content) - 4096, 0, 7, 8))
        return [(name, f"cut to {end}", bytes(content[:end]))]
    return [(name, "longer", bytes(content) + rng.choice((b"\0", b"\0" * 4096, bytes(content))))]


def _header(rng: random.Random, world: World, name: str) -> list[Piece]:
    header, data = parts((world.root / name).read_bytes())
    if rng.random() < 0.1:
        return [(name, "another header", joined(rng.choice(nasty.NOT_A_DOCUMENT), data))]
    words, roll, key = "", rng.random(), rng.choice(list(header))
    entry = header[key]
    if roll < 0.4 or "dtype" not in entry:
        words, header = nasty.edited(rng, header, ("dtype", "shape", "data_offsets", "__metadata__"))
    elif roll < 0.55:
        entry["dtype"] = rng.choice(_TYPES)
    elif roll < 0.7:
        entry["shape"] = rng.choice(
            ([], [0], entry["shape"][::-1], [*entry["shape"], 1], [-1], [2**62, 2**62], [2**40])
        )
    elif roll < 0.85:
        begin, end = entry["data_offsets"]
        entry["data_offsets"] = rng.choice(
            ([end, begin], [begin, end + 4], [begin - 4, end], [-8, end], [0, 2**63], [begin], [2**64, 2**64], [0, 0])
        )
    else:
        other = rng.choice(list(header))
        header[key], header[other] = header[other], header[key]
        words = f"{key} and {other} swapped"
    return [(name, words or f"{key}: {entry}"[:150], joined(header, data))]


def _length(rng: random.Random, world: World, name: str) -> list[Piece]:
    content = (world.root / name).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    states = rng.choice((0, 1, length - 1, length + 1, length + 8, len(content), 100_000_001, 2**31, 2**63, 2**64 - 1))
    return [(name, f"states a header of {states} bytes", struct.pack("<Q", states) + content[8:])]


def _values(rng: random.Random, world: World, name: str) -> list[Piece]:
    """Insert NaN, infinity or values that overflow sums, and indices out of range."""
    header, data = parts((world.root / name).read_bytes())
    key = rng.choice([key for key, entry in header.items() if entry.get("dtype") in ("F32", "I64")])
    begin, end = header[key]["data_offsets"]
    changed = bytearray(data)
    if header[key]["dtype"] == "I64":
        number: float = rng.choice((-1, 2**31, 2**62, -(2**63)))
        changed[begin : begin + 8] = struct.pack("<q", int(number))
    else:
        number, many = rng.choice(_VALUES), rng.random() < 0.5
        count = (end - begin) // 4 if many else 1
        changed[begin : begin + 4 * count] = struct.pack("<f", number) * count
    return [(name, f"{key} holds {number}", joined(header, bytes(changed)))]


def _shards(rng: random.Random, world: World, name: str) -> list[Piece]:
    """The same weights in two files and an index, one place of which is wrong."""
    header, data = parts((world.root / name).read_bytes())
    folder, keys = Path(name).parent, [key for key in header if key != "__metadata__"]
    pieces: list[Piece] = [(name, "in two files", None)]
    weight_map: dict[str, Any] = {}
    for number, some in enumerate((keys[::2], keys[1::2]), 1):
        file, chunk, own = f"model-0000{number}-of-00002.safetensors", b"", {}
        for key in some:
            begin, end = header[key]["data_offsets"]
            own[key] = {**header[key], "data_offsets": [len(chunk), len(chunk) + end - begin]}
            chunk += data[begin:end]
            weight_map[key] = file
        pieces.append((str(folder / file), "a shard", joined(own, chunk)))
    index: Any = {"metadata": {"total_size": len(data)}, "weight_map": weight_map}
    roll, key = rng.random(), rng.choice(keys)
    if roll < 0.5:
        weight_map[key] = words = rng.choice(_NAMES)
    elif roll < 0.85:
        words, index = nasty.edited(rng, index, keys)
    else:
        pieces.pop(rng.choice((1, 2)))
        words = "a shard is gone"
    return [*pieces, (str(folder / _INDEX), str(words), json.dumps(index).encode())]


def _gone(rng: random.Random, world: World, name: str) -> list[Piece]:
    """A file that is not there, or is something else."""
    name = rng.choice(_SMALL)
    content: Content = rng.choice(_ELSEWHERE)
    return [(name, f"is {content or 'gone'}", content)]
