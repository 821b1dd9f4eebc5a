"""Upper bounds for the text that template methods, filters and operators produce, known before the call."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .meter import MAX_COUNT, TemplateLimitExceeded

Size = Callable[[Any], int]

_TEXT = """capitalize casefold center count endswith expandtabs find format format_map index isalnum isalpha isascii
    isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip
    partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split splitlines startswith
    strip swapcase title upper zfill"""
METHODS: Mapping[type, frozenset[str]] = {
    str: frozenset(_TEXT.split()),
    dict: frozenset({"get", "items", "keys", "values", "copy"}),
    list: frozenset({"count", "index", "copy"}),
    tuple: frozenset({"count", "index"}),
}

_MAX_JSON = 16  # characters of an indent or of separators, which are repeated
_MAX_BITS = 2**14  # size of an integer
_LONG_NUMBER = re.compile(r"\d{6}")  # a width or precision in a format


def growth_of(name: str, value: Any, args: Sequence[Any], kwargs: Mapping[str, Any], size: Size) -> int:
    """Return how many characters the method or filter ``name`` of ``value`` may add to those of its arguments.

    Raises ``TemplateLimitExceeded`` for an unreasonably large number among the arguments that means a length.
    """
    arguments = [*args, *kwargs.values()]
    if any(isinstance(each, int) and abs(each) > MAX_COUNT for each in arguments):
        raise TemplateLimitExceeded(f"the template calls {name} with a number larger than {MAX_COUNT:,}")
    if name in ("format", "format_map", "tojson"):
        return _of_format(str(value), arguments, size) if name != "tojson" else _of_json(arguments, size)
    texts = [each for each in arguments if isinstance(each, str)]
    rule = _RULES.get(name)
    return rule(value, arguments, texts) if rule else 0


def growth_of_operator(operator: str, left: Any, right: Any, size: Size) -> int:
    """Return the approximate number of characters of an operator's result.

    Raises ``TemplateLimitExceeded`` for huge integers.
    """
    if operator == "%" and isinstance(left, str):
        values = right if isinstance(right, tuple | list) else [right]
        if "*" in left and any(isinstance(each, int) and abs(each) > MAX_COUNT for each in values):
            raise TemplateLimitExceeded(f"the template formats a value to a width above {MAX_COUNT:,}")
        return _of_format(left, [right], size)
    if isinstance(left, int) and isinstance(right, int):
        bits = {"**": left.bit_length() * right, "*": left.bit_length() + right.bit_length()}.get(operator, 0)
        if bits > _MAX_BITS:
            raise TemplateLimitExceeded(f"the template computes integers of more than {_MAX_BITS:,} bits")
        return 0
    if operator == "*":
        text, times = (right, left) if isinstance(left, int) else (left, right)
        return size(text) * times if isinstance(times, int) else 0
    return size(left) + size(right) if operator == "+" and not isinstance(left, list | tuple) else 0


def _of_format(template: str, arguments: Sequence[Any], size: Size) -> int:
    if _LONG_NUMBER.search(template):
        raise TemplateLimitExceeded("the template formats a value to a width of more than five digits")
    num_fields = template.count("{") + template.count("%")
    return num_fields * (size(list(arguments)) + (MAX_COUNT if re.search(r"\d{3}|\*|:[^}]*{", template) else 1000))


def _of_json(arguments: Sequence[Any], size: Size) -> int:
    if any(size(each) > _MAX_JSON or (isinstance(each, int) and each > _MAX_JSON) for each in arguments):
        raise TemplateLimitExceeded(
            f"the template writes JSON with an indent or separators of more than {_MAX_JSON} characters"
        )
    return 0


def _of_join(value: Any, arguments: Sequence[Any], texts: Sequence[str]) -> int:
    """Return the growth of ``sep.join(items)`` and of the filter ``items | join(sep)``."""
    if (
        isinstance(value, str)
        and arguments
        and isinstance(arguments[0], Iterable)
        and not isinstance(arguments[0], str)
    ):
        return len(value) * len(list(arguments[0]))
    return max(map(len, texts), default=0) * len(value)


def _of_replace(value: Any, arguments: Sequence[Any], texts: Sequence[str]) -> int:
    if len(arguments) < 2 or not isinstance(arguments[0], str):
        return max(map(len, texts), default=0) * (len(str(value)) + 1)
    return str(value).count(arguments[0]) * len(str(arguments[1]))


def _of_indent(value: Any, arguments: Sequence[Any], texts: Sequence[str]) -> int:
    widths = [each for each in arguments if isinstance(each, int)]
    return (str(value).count("\n") + 1) * max([4, *widths, *map(len, texts)])


def _of_wordwrap(value: Any, arguments: Sequence[Any], texts: Sequence[str]) -> int:
    return len(str(value)) * max(map(len, texts), default=1)


def _of_expandtabs(value: Any, arguments: Sequence[Any], texts: Sequence[str]) -> int:
    return str(value).count("\t") * max([8, *(each for each in arguments if isinstance(each, int))])


_RULES: Mapping[str, Callable[[Any, Sequence[Any], Sequence[str]], int]] = {
    "join": _of_join,
    "replace": _of_replace,
    "indent": _of_indent,
    "wordwrap": _of_wordwrap,
    "expandtabs": _of_expandtabs,
}
