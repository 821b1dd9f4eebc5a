"""Text of files that flags name: UTF-8, of bounded size, or refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from peagle.compiler.console import input_text
from peagle.compiler.console.input_text import file_text
from peagle.plugins.errors import UsageError


def test_a_file_is_read_without_its_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"\xef\xbb\xbf\xc3\xa9\r\n")
    assert file_text("--config", path) == "é\r\n"


def test_a_pipe_is_read() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"text")
    os.close(writer)
    assert file_text("--config", Path(f"/dev/fd/{reader}")) == "text"
    os.close(reader)


def test_a_file_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_text, "MAX_FILE_BYTES", 2**20)
    with pytest.raises(UsageError, match="--config /dev/zero is longer than 1 MiB"):
        file_text("--config", Path("/dev/zero"))


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin").write_bytes(b"\xe9")
    for name, says in (("latin", "is not UTF-8: byte 0 is 0xe9"), ("absent", "cannot be read"), (".", "cannot be")):
        with pytest.raises(UsageError, match=f"--config .*{says}"):
            file_text("--config", tmp_path / name)
