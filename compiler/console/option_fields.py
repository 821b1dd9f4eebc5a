"""Options declared at the dataclass fields that store them: flag, help and minimum."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any

_KEY = "option"


@dataclass(frozen=True)
class Option:
    """The declaration of an option: ``--flag`` on the command line, ``name`` in an options file.

    ``argument`` is the metavar of an equivalent positional argument; ``split`` separates values at commas; ``minimum``
    is the smallest value.
    """

    flag: str
    name: str
    help: str
    minimum: int | None = None
    argument: str = ""
    split: bool = False


def option(
    flag: str, help: str, default: Any = None, *, minimum: int | None = None, argument: str = "", split: bool = False,
    name: str = "",
) -> Any:  # fmt: skip
    """Return a dataclass field that is an option, named after its flag unless ``name`` is given."""
    declared = Option(flag, name or option_name(flag), help, minimum, argument, split)
    return field(default=default, metadata={_KEY: declared})


def option_of(declared: Field[Any]) -> Option:
    """Return the option declared at a field."""
    option: Option = declared.metadata[_KEY]
    return option


def option_name(flag: str) -> str:
    """Return the name of a flag in an options file: ``--max-seq-len`` becomes ``max_seq_len``."""
    return flag.lstrip("-").replace("-", "_")
