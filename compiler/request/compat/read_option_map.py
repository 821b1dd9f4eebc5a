"""Translation of mappings with option names of TensorRT-LLM, vLLM and this program into option values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....engines.draft_methods import head_named
from ....plugins.errors import UsageError, nearest
from ....plugins.unique_keys import unique_keys
from ..config_file import shown, typed
from ..repeated_keys import repeated_key
from ..verb_options import VerbOptions
from .option_map import ANY_HEAD, BUILD_CONFIG, GROUPS, OPTION_MAP, UNREAD, OptionMapping

SPECULATIVE_CONFIG = "speculative_config"
_PAGE = "see docs/from-tensorrt-llm.md for the supported names"


@dataclass(frozen=True)
class MappedOptions:
    """Option values by name, and messages on what was ignored."""

    values: Mapping[str, Any]
    left_out: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class MappedOption:
    """The ``value`` for an ``option``, ``name`` as given; ``left`` is what was ignored, for ``reason``."""

    name: str
    option: str = ""
    value: Any = None
    left: str = ""
    reason: str = ""


def map_options(
    options: VerbOptions, content: Mapping[Any, Any], origin: str, given: Mapping[str, Any] | None = None
) -> MappedOptions:
    """Translate ``content``; ``origin`` names its origin in errors, and ``given`` are values given along with it.

    Raises ``UsageError`` for an unknown name, for a value without an equivalent here, and for two names of one option
    with different values.
    """
    found = [MappedOption(options.find(name, origin).option.flag, name, value) for name, value in (given or {}).items()]
    for key, value in content.items():
        found += _read(options, key, value, origin)
    answers: dict[str, MappedOption] = {}
    for each in (each for each in found if each.value is not None):
        if each.option in answers:
            each = _one_of(options, answers[each.option], each, origin)
        answers[each.option] = each
    return MappedOptions(
        {option: each.value for option, each in answers.items()}, tuple(_messages_by_reason(found, origin))
    )


def merge_values(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values; ``first`` takes precedence, except that a named head satisfies its request for any head."""
    merged = {**second, **first}
    if first.get("draft") is ANY_HEAD:
        named = second.get("draft")
        merged["draft"] = named if head_named(named) is not None else ANY_HEAD
    return merged


def final(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for ``Form.request``, where None stands for any head."""
    return {option: None if value is ANY_HEAD else value for option, value in values.items()}


def read_speculative_config(options: VerbOptions, text: str, given: Mapping[str, Any]) -> MappedOptions:
    """Translate ``--speculative-config``, given ``given`` other options of a command line. Raises ``UsageError``."""
    origin = "--speculative-config"
    return map_options(options, {SPECULATIVE_CONFIG: _parsed(text, origin)}, origin, given)


def _parsed(text: str, origin: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ``UsageError``."""
    try:
        content = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{origin} is not valid JSON", why=str(error), fix="use a JSON object in vLLM's format"
        ) from None
    if not isinstance(content, dict):
        raise UsageError(f"{origin} is not a JSON object", fix='use an object such as {"method": "ngram"}')
    return content


def is_foreign_config(name: str) -> bool:
    """Return True if a name of ``--set`` is one of TensorRT-LLM or vLLM."""
    return _is_foreign(_normal(name))


def read_foreign_settings(
    options: VerbOptions, settings: Iterable[tuple[str, str]], given: Mapping[str, Any]
) -> MappedOptions:
    """Translate ``--set NAME=TEXT`` with names of TensorRT-LLM or vLLM; ``given`` are this program's own.

    Raises ``UsageError``.
    """
    content: dict[str, Any] = {}
    for name, text in settings:
        path = _normal(name)
        value = _listed(name, text) if text.lstrip().startswith(("{", "[")) else text
        mapping = _mapping_of(path)
        if mapping is not None and mapping.several and isinstance(value, str):  # one element at a time
            value = [*content.get(path, []), value]
        content[path] = value
    return map_options(options, content, "--set", given)


def _listed(name: str, text: str) -> Any:
    """Parse a list or mapping. Raises ``UsageError``."""
    import yaml

    try:
        value, repeated = yaml.safe_load(text), repeated_key(text)
    except Exception as error:  # the loader also passes on errors of int(), date() and deep nesting
        why = " ".join(str(error).split())
        raise UsageError(
            f"--set {name} is neither YAML nor JSON", why=why, fix='use valid YAML or JSON, for example ["a", "b"]'
        ) from None
    if repeated is not None:
        raise UsageError(f"--set {name} sets {shown(repeated[0])} twice", fix="remove one of the two")
    return value


def _read(options: VerbOptions, key: Any, value: Any, origin: str) -> Iterator[MappedOption]:
    path = _normal(key)
    if path == SPECULATIVE_CONFIG and isinstance(value, str):  # vLLM's files hold it as JSON text
        value = _parsed(value, f"{origin}: {path}")
    is_group_here = isinstance(value, Mapping) and path == "backend"  # also the name of an option group here
    if is_group_here or not _is_foreign(path):
        for option, answer in options.flat({key: value}, origin).items():
            yield MappedOption(str(key), option, answer)
        return
    if isinstance(value, Mapping) and path in (*GROUPS, BUILD_CONFIG):
        for name, inner in value.items():
            below = _normal(name)
            if path == BUILD_CONFIG and (below == BUILD_CONFIG or below in GROUPS):
                raise _unknown(f"{path}.{below}", origin)
            yield from _in_group(options, f"{path}.{below}", inner, origin)
    elif value is not None or path not in (*GROUPS, BUILD_CONFIG):
        yield from _in_group(options, path, value, origin)


def _in_group(options: VerbOptions, path: str, value: Any, origin: str) -> Iterator[MappedOption]:
    mapping = _mapping_of(path)
    if mapping is None:
        inner = path.removeprefix(f"{BUILD_CONFIG}.")
        if inner == path:
            raise _unknown(path, origin)
        for option, answer in options.flat({inner: value}, origin).items():
            yield MappedOption(path, option, answer)
        return
    mapped = _mapped(mapping, path, value, origin)
    if mapped.option and mapped.value is not None and mapped.value is not ANY_HEAD:
        try:
            entry = options.find(mapped.option, origin)
        except UsageError:
            raise UsageError(
                f"{origin}: {path} corresponds to {mapped.option}, which is not an option of {options.verb}",
                fix=f"omit {path}",
            ) from None
        typed(mapped.value, entry.type, entry.option, f"{origin}: {path}")
    yield mapped


def _mapped(mapping: OptionMapping, path: str, value: Any, origin: str) -> MappedOption:
    """Translate the value of a mapped option."""
    if value is None or value in ("", [], {}, ()):
        return MappedOption(path)
    text = _text(value)
    if text in mapping.values:
        answer = mapping.values[text]
        return (
            MappedOption(path, left=path, reason=mapping.why)
            if answer is UNREAD
            else MappedOption(path, mapping.option, answer)
        )
    if mapping.only:
        raise UsageError(f"{origin}: {path} {shown(value)} is not supported", why=mapping.why, fix=mapping.fix)
    if not mapping.option:
        return MappedOption(path, left=path, reason=mapping.why)
    answer, left = mapping.convert(value) if mapping.convert else (value, [])
    return MappedOption(path, mapping.option, answer, f"{', '.join(left)} of {path}" if left else "", mapping.why)


def _one_of(options: VerbOptions, first: MappedOption, second: MappedOption, origin: str) -> MappedOption:
    """Return the more specific of two values of one option. Raises ``UsageError`` if they differ."""
    if ANY_HEAD in (first.value, second.value):
        other = first if second.value is ANY_HEAD else second
        same = other.value is ANY_HEAD or head_named(other.value) is not None
    else:
        other, entry = first, options.find(first.option, origin)
        one, two = (typed(each.value, entry.type, entry.option, each.name) for each in (first, second))
        same = one == two
    if same:
        return other
    raise UsageError(
        f"{origin}: {_in_words(first)} and {_in_words(second)} cannot be combined",
        why=f"both set {options.find(first.option, origin).option.flag}",
        fix="omit one of them",
    )


def _in_words(mapped: MappedOption) -> str:
    return f"{mapped.name} {'(a head)' if mapped.value is ANY_HEAD else shown(mapped.value)}"


def _messages_by_reason(found: Iterable[MappedOption], origin: str) -> Iterator[str]:
    """Yield a message for each reason, with all names ignored for it."""
    names: dict[str, list[str]] = {}
    for each in found:
        if each.left:
            names.setdefault(each.reason, []).append(each.left)
    for why, left in names.items():
        yield f"{origin}: ignored {', '.join(left)} ({why})"


def _normal(key: Any) -> str:
    return str(key).strip().replace("-", "_") if isinstance(key, str) else _text(key)


def _text(value: Any) -> str:
    """Normalize a scalar as in the table; empty for other values and numbers with too many digits."""
    if not isinstance(value, str | int | float):
        return ""
    try:
        return str(value).strip().lower()
    except ValueError:
        return ""


def _is_foreign(path: str) -> bool:
    root = path.partition(".")[0]
    return path in (*GROUPS, BUILD_CONFIG) or root in (*GROUPS, BUILD_CONFIG) or _mapping_of(path) is not None


def _mapping_of(path: str) -> OptionMapping | None:
    """Return the mapping of a path, or of its parent if that has no option."""
    bare = path.removeprefix(f"{BUILD_CONFIG}.")
    if bare in OPTION_MAP:
        return OPTION_MAP[bare]
    above = OPTION_MAP.get(bare.rpartition(".")[0])
    return above if above is not None and not above.option else None


def _unknown(path: str, origin: str) -> UsageError:
    near = nearest(path, OPTION_MAP)
    return UsageError(
        f"{origin}: unknown option {path!r}",
        why="the name is not a supported option of TensorRT-LLM or vLLM",
        fix=(f"did you mean {' or '.join(near)}? If not, " if near else "") + _PAGE,
    )
