"""Text from the command line, files and pipes, always decoded as UTF-8 whatever the locale."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ...plugins.errors import UsageError

MAX_FILE_BYTES = 256 * 2**20  # of a file that a flag names


def argument_text(name: str, argument: str) -> str:
    """Return the text of an argument, whose bytes Python escapes if the locale cannot decode them.

    Raises ``UsageError`` for an argument that is not UTF-8.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        with suppress(UnicodeEncodeError):  # lone surrogates that no command line produces
            return decoded(name, os.fsencode(argument))
    return argument


def decoded(name: str, content: bytes) -> str:
    """Decode UTF-8. Raises ``UsageError`` naming the first invalid byte."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}",
            why=error.reason,
            fix="convert it to UTF-8, for example with iconv",
        ) from None


def file_text(flag: str, path: Path) -> str:
    """Return the text of the file or pipe that a flag names, without a byte order mark.

    Raises ``UsageError`` if it cannot be read, is not UTF-8, or is longer than ``MAX_FILE_BYTES``.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read", why=str(error.strerror), fix="pass a readable file") from None
    if len(content) > MAX_FILE_BYTES:
        raise UsageError(
            f"{flag} {path} is longer than {MAX_FILE_BYTES // 2**20} MiB",
            why="the file is read as a whole, and a device or a pipe may never end",
            fix="pass a shorter file",
        )
    return decoded(f"{flag} {path}", content).removeprefix("\ufeff")
