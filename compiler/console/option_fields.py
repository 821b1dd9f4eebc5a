"""Options declared where they are kept: a field of a dataclass says its flag, its help and its least value."""

from __future__ import annotations

from dataclasses import Field, dataclass, field
from typing import Any

_KEY = "option"


@dataclass(frozen=True)
class Option:
    """How a field is asked for: ``--flag``, and ``name`` in a file of options.

    ``argument`` is what the same is called where it may stand without a flag; ``split`` has commas part one text.
    ``former`` is a flag that is still taken and no longer shown.
    """

    flag: str
    name: str
    help: str
    least: int | None = None
    argument: str = ""
    split: bool = False
    former: str = ""


def option(
    flag: str, help: str, default: Any = None, *, least: int | None = None, argument: str = "", split: bool = False,
    name: str = "",
) -> Any:  # fmt: skip
    """A dataclass field that is an option; it is called as its flag is, unless ``name`` says otherwise."""
    declared = Option(flag, name or named(flag), help, least, argument, split)
    return field(default=default, metadata={_KEY: declared})


def option_of(declared: Field[Any]) -> Option:
    """The option that a field is."""
    option: Option = declared.metadata[_KEY]
    return option


def named(flag: str) -> str:
    """What a flag is called in a file of options: ``--max-seq-len`` is ``max_seq_len``."""
    return flag.lstrip("-").replace("-", "_")
