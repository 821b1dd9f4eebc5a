"""A foreign file is read up to a limit, and only if it is a regular file."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from peagle.plugins.regular_files import read_recorded, read_regular


def test_read_stops_at_the_size_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 11)
    assert read_regular(path, max_bytes=11) == b"x" * 11
    with pytest.raises(ValueError, match="more than 10 bytes"):
        read_regular(path, max_bytes=10)


def test_a_recorded_file_has_its_size_and_its_content(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"code")
    sha256 = hashlib.sha256(b"code").hexdigest()
    assert read_recorded(path, 4, sha256, max_bytes=4) == b"code"
    with pytest.raises(ValueError, match="4 bytes instead of 5"):
        read_recorded(path, 5, sha256, max_bytes=5)
    path.write_bytes(b"c0de")
    with pytest.raises(ValueError, match="does not match its hash"):
        read_recorded(path, 4, sha256, max_bytes=4)


def test_a_pipe_is_not_waited_for_and_a_device_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError):  # noqa: PT011  # of a folder the system says it in its own words
            read_regular(path, max_bytes=10)
