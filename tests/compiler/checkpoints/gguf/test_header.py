"""Damaged GGUF files: each is refused with one typed error, for any header."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.gguf.header import read_gguf
from peagle.compiler.checkpoints.gguf.side_files import side_files
from peagle.compiler.checkpoints.target import Target
from peagle.plugins.errors import BuildError
from tests import gguf_files

MAX = 2**64 - 1
STRING = 8
LLAMA = (b"general.architecture", STRING, struct.pack("<Q", 5) + b"llama")
Tensor = tuple[bytes, Sequence[int], int, int]  # name, sizes, number of the type, offset


def named(name: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name


def raw(
    keys: Sequence[tuple[bytes, int, bytes]] = (LLAMA,),
    tensors: Sequence[Tensor] = (),
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
    data: bytes = bytes(4096),
) -> bytes:
    """A file written byte by byte, since the ``gguf`` package writes no wrong ones."""
    count = counts or (len(tensors), len(keys))
    head = b"GGUF" + struct.pack("<IQQ", version, *count)
    head += b"".join(named(key) + struct.pack("<I", kind) + value for key, kind, value in keys)
    for name, sizes, kind, offset in tensors:
        head += named(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)
    return head + bytes(-len(head) % 32) + data


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return gguf_files.write(tmp_path_factory.mktemp("gguf") / "tiny.gguf", "llama", kinds=("Q8_0",)).file.read_bytes()


WRONG: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "other": (b"PK\3\4" + bytes(100), "not with b'GGUF'"),
    "cut in the version": (b"GGUF\3", "truncated"),
    "version 1": (raw(version=1), "version 1"),
    "version 4": (raw(version=4), "version 4"),
    "other byte order": (raw(version=3 << 24), "big-endian byte order"),
    "many tensors": (raw(counts=(MAX, 1)), "tensors; "),
    "many keys": (raw(counts=(0, MAX)), "keys; "),
    "a long key": (raw([(b"x" * 2000, 0, b"1")]), "a name of 2000 bytes"),
    "a nameless key": (raw([(b"", 0, b"1")]), "a name of 0 bytes"),
    "a key twice": (raw([LLAMA, LLAMA]), "appears twice"),
    "a key that is not text": (raw([(b"\x1b[2J\xff", 0, b"1")]), "invalid name"),
    "a long string": (raw([(b"a", STRING, struct.pack("<Q", MAX) + b"x")]), "truncated"),
    "a string that is not text": (raw([(b"a", STRING, named(b"\xff\xfe"))]), "not UTF-8"),
    "a type of values": (raw([(b"a", 77, b"")]), "has the type 77"),
    "a long array": (raw([(b"a", 9, struct.pack("<IQ", 4, MAX))]), "items; "),
    "an array beyond the end": (raw([(b"a", 9, struct.pack("<IQ", 4, 1 << 20))]), "truncated"),
    "an array of arrays": (raw([(b"a", 9, struct.pack("<IQ", 9, 1))]), "an array of the unknown type 9"),
    "alignment 0": (raw([(b"general.alignment", 4, struct.pack("<I", 0))]), "must be a power of two"),
    "alignment 3": (raw([(b"general.alignment", 4, struct.pack("<I", 3))]), "must be a power of two"),
    "a tensor twice": (raw(tensors=[(b"a", [32], 0, 0)] * 2), "appears twice"),
    "a tensor of no axes": (raw(tensors=[(b"a", [], 0, 0)]), "has 0 axes"),
    "a tensor of many axes": (raw(tensors=[(b"a", [1] * 9, 0, 0)]), "has 9 axes"),
    "a tensor of nothing": (raw(tensors=[(b"a", [32, 0], 0, 0)]), "impossible shape"),
    "a tensor of everything": (raw(tensors=[(b"a", [2**39, 2**39], 0, 0)]), "impossible shape"),
    "an overflowing shape": (raw(tensors=[(b"a", [2**63, 4], 0, 0)]), "impossible shape"),
    "a tensor beyond the end": (raw(tensors=[(b"a", [4096], 0, 0)]), "truncated"),
    "an offset beyond the end": (raw(tensors=[(b"a", [32], 0, MAX - 31)]), "truncated"),
    "an offset between": (raw(tensors=[(b"a", [32], 0, 7)]), "does not begin at a multiple"),
    "tensors in each other": (raw(tensors=[(b"a", [32], 0, 0), (b"b", [32], 0, 32)]), "overlaps that of a"),
    "half a block": (raw(tensors=[(b"a", [33], 8, 0)]), "has blocks of 32"),
    "an unknown type": (raw(tensors=[(b"a", [32], 99, 0)]), "1 tensor of type 99: a"),
}


@pytest.mark.parametrize("name", WRONG)
def test_invalid_header_is_rejected(name: str, tmp_path: Path) -> None:
    content, said = WRONG[name]
    path = tmp_path / "wrong.gguf"
    path.write_bytes(content)
    with pytest.raises(BuildError) as caught:
        read_gguf(path)
    text = str(caught.value)
    assert said in text
    assert str(path) in caught.value.what
    assert caught.value.fix
    assert "\x1b" not in text


def test_a_file_cut_anywhere_is_refused(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"
    for end in [*range(200), *range(200, len(whole), len(whole) // 60), len(whole) - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(BuildError):
            Checkpoint.open(path)


def test_a_header_with_random_bytes_is_read_or_refused(whole: bytes, tmp_path: Path, rng: np.random.Generator) -> None:
    path, header = tmp_path / "odd.gguf", 6000
    for _ in range(300):
        content = bytearray(whole)
        for at in rng.integers(4, header, rng.integers(1, 4)):
            content[at] = int(rng.integers(0, 256))
        path.write_bytes(content)
        with suppress(BuildError):  # any other exception is a bug
            side_files(read_gguf(path), Target.open(path).config)


def test_numbers_that_are_not_finite_are_found(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "nan.gguf"
    path.write_bytes(whole)
    entry = read_gguf(path).tensors["blk.0.ffn_up.weight"]
    path.write_bytes(whole[: entry.begin] + b"\x00\x7e" + whole[entry.begin + 2 :])  # the scale of its first block
    with pytest.raises(BuildError, match="has 32 NaN"):
        Checkpoint.open(path).read("model.layers.0.mlp.up_proj.weight")


def _opened(path: Path, **more: Any) -> Target:
    return Target.open(gguf_files.write(path / "tiny.gguf", "llama", **more).file)


def test_unknown_architecture_is_rejected_by_name(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="has an unsupported architecture: mamba") as caught:
        _opened(
            tmp_path, edit=lambda writer: writer.add_key_value("general.architecture", "mamba", GGUFValueType.STRING)
        )
    assert "llama, qwen3" in caught.value.why


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    texts = [*gguf_files.tokens()[0], "one more"]
    with pytest.raises(BuildError, match=f"{len(texts)} tokens, but embeddings for {len(texts) - 1}"):
        _opened(tmp_path, edit=lambda writer: writer.add_token_list(texts))


def test_a_part_of_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="one of 3 parts"):
        _opened(tmp_path, edit=lambda writer: writer.add_uint16("split.count", 3))


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("llama.attention.sliding_window", 64, "llama.attention.sliding_window 64"),
        ("llama.expert_count", 8, "llama.expert_count 8"),
        ("llama.rope.dimension_count", 32, "rotates only 32 of 64"),
        ("llama.block_count", 2**32 - 1, "num_hidden_layers"),
        ("llama.embedding_length", 2**31, "hidden_size"),
        ("llama.attention.head_count", 0, "num_attention_heads"),
    ],
)
def test_unsupported_variant_of_a_family_is_rejected(key: str, value: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError) as caught:
        _opened(tmp_path, edit=lambda writer: writer.add_uint32(key, value))
    assert said in str(caught.value)


@pytest.mark.parametrize("missing", ["block_count", "embedding_length", "attention.head_count", "feed_forward_length"])
def test_missing_size_is_named(missing: str, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="the config lacks"):
        _opened(tmp_path, without=[f"llama.{missing}"])


def test_unknown_and_misshaped_tensors_are_named(tmp_path: Path) -> None:
    written = gguf_files.write(tmp_path / "tiny.gguf", "llama")
    content = written.file.read_bytes()
    for other, said in (
        (b"../../../ffn.weight", "does not use"),
        (b"blk.7.ffn_up.weight", "unknown to the model"),
    ):
        (tmp_path / "odd.gguf").write_bytes(content.replace(b"blk.1.ffn_up.weight", other))
        with pytest.raises(BuildError, match=said) as caught:
            Target.open(tmp_path / "odd.gguf").check()
        assert other.decode() in str(caught.value) or "model.layers.7.mlp.up_proj.weight" in str(caught.value)
    wide = gguf_files.write(tmp_path / "wide.gguf", "llama", edit=lambda w: w.add_feed_forward_length(128))
    with pytest.raises(BuildError, match="with a wrong shape"):
        Target.open(wide.file).check()
