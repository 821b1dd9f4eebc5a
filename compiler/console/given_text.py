"""Text that was given on the command line or piped in: whatever the locale, it is UTF-8."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ...plugins.errors import UsageError


def argument_text(name: str, argument: str) -> str:
    """Return the text of an argument; Python keeps its bytes where they are no text in the locale.

    The locale may know no UTF-8. Raises ``UsageError`` for what is none.
    """
    try:
        argument.encode()
    except UnicodeEncodeError:
        with suppress(UnicodeEncodeError):  # nor any bytes: no command line makes that
            return decoded(name, os.fsencode(argument))
    return argument


def decoded(name: str, content: bytes) -> str:
    """Return bytes that were given as UTF-8. Raises ``UsageError`` naming the byte that is none."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{name} is not UTF-8: byte {error.start} is 0x{content[error.start]:02x}",
            why=error.reason,
            fix="convert it first, for example with iconv",
        ) from None


def file_text(flag: str, path: Path) -> str:
    """Return the text of a file that a flag names. Raises ``UsageError`` for one that cannot be read."""
    try:
        return decoded(str(path), path.read_bytes())
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read", why=str(error.strerror), fix="name a file") from None
