"""Parsing of sizes such as 500MB, 1.5TB, 1G, 4MiB, or a number of bytes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable

from ...plugins.errors import UsageError

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{ending}": base**power
    for power, letter in enumerate("KMGT", 1)
    for ending, base in (("", 1000), ("B", 1000), ("IB", 1024))
}
_SIZE = re.compile(rf"(\d{{1,15}}(?:\.\d+)?) *({'|'.join(_UNITS)})", re.IGNORECASE | re.ASCII)


def bytes_of(name: str, text: str, minimum: int = 0) -> int:
    """Parse a size in bytes. Raises ``UsageError``, naming ``name``, for an invalid size or one below ``minimum``."""
    if not (match := _SIZE.fullmatch(text)):
        raise UsageError(f"{name} {text} is not a size", fix="use a size such as 500MB, 50GB, 1.5TB, 4MiB or 0")
    count = int(float(match[1]) * _UNITS[match[2].upper()])
    if count < minimum:
        raise UsageError(f"{name} {text} is too small", fix=f"use at least {minimum} bytes")
    return count


def size_option(name: str, minimum: int = 0) -> Callable[[object], int]:
    """Return the parser for a flag that takes a size."""

    def parse(value: object) -> int:
        return bytes_of(name, str(value), minimum)

    return parse


def argument(name: str) -> Callable[[str], int]:
    """Return the same for ``argparse``."""

    def parse(text: str) -> int:
        try:
            return bytes_of(name, text)
        except UsageError as error:
            raise argparse.ArgumentTypeError(error.one_line) from None

    return parse
