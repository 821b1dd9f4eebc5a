"""Translation of mappings with option names of TensorRT-LLM, vLLM and this program into option values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ....engines.draft_methods import head_named
from ....plugins.errors import UsageError, nearest
from ..config_file import shown, typed
from ..verb_options import VerbOptions
from .option_map import ANY_HEAD, BUILD_CONFIG, GROUPS, OPTION_MAP, UNREAD, OptionMapping

SPECULATIVE_CONFIG = "speculative_config"
_PAGE = "see docs/from-tensorrt-llm.md for the supported names"


@dataclass(frozen=True)
class MappedOptions:
    """Option values by name, and messages on what was ignored."""

    answers: Mapping[str, Any]
    left_out: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class MappedOption:
    """The ``answer`` for an ``option``, ``spelled`` as given; ``left`` is what was ignored and ``told`` the reason."""

    spelled: str
    option: str = ""
    answer: Any = None
    left: str = ""
    told: str = ""


def read_answers(
    form: VerbOptions, content: Mapping[Any, Any], where: str, beside: Mapping[str, Any] | None = None
) -> MappedOptions:
    """Translate ``content``; ``where`` names its origin in errors, and ``beside`` are values given along with it.

    Raises ``UsageError`` for an unknown name, for a value without an equivalent here, and for two names of one option
    with different values.
    """
    found = [MappedOption(form.find(name, where).option.flag, name, value) for name, value in (beside or {}).items()]
    for key, value in content.items():
        found += _read(form, key, value, where)
    answers: dict[str, MappedOption] = {}
    for each in (each for each in found if each.answer is not None):
        if each.option in answers:
            each = _one_of(form, answers[each.option], each, where)
        answers[each.option] = each
    return MappedOptions({option: each.answer for option, each in answers.items()}, tuple(_together(found, where)))


def merge_answers(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Merge values; ``first`` takes precedence, except that a named head satisfies its request for any head."""
    merged = {**second, **first}
    if first.get("draft") is ANY_HEAD:
        named = second.get("draft")
        merged["draft"] = named if head_named(named) is not None else ANY_HEAD
    return merged


def final(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for ``Form.request``, where None stands for any head."""
    return {option: None if answer is ANY_HEAD else answer for option, answer in answers.items()}


def read_speculative_config(form: VerbOptions, text: str, beside: Mapping[str, Any]) -> MappedOptions:
    """Translate ``--speculative-config``, given ``beside`` other options of a command line. Raises ``UsageError``."""
    where = "--speculative-config"
    return read_answers(form, {SPECULATIVE_CONFIG: _parsed(text, where)}, where, beside)


def _parsed(text: str, where: str) -> dict[str, Any]:
    """Parse a JSON object. Raises ``UsageError``."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{where} is not valid JSON", why=str(error), fix="use a JSON object in vLLM's format"
        ) from None
    if not isinstance(content, dict):
        raise UsageError(f"{where} is not a JSON object", fix='use an object such as {"method": "ngram"}')
    return content


def is_foreign_config(name: str) -> bool:
    """Return True if a name of ``--set`` is one of TensorRT-LLM or vLLM."""
    return _is_theirs(_normal(name))


def read_foreign_settings(
    form: VerbOptions, settings: Iterable[tuple[str, str]], beside: Mapping[str, Any]
) -> MappedOptions:
    """Translate ``--set NAME=TEXT`` with names of TensorRT-LLM or vLLM; ``beside`` are this program's own.

    Raises ``UsageError``.
    """
    content: dict[str, Any] = {}
    for name, text in settings:
        path = _normal(name)
        value = _listed(name, text) if text.lstrip().startswith(("{", "[")) else text
        word = _word(path)
        if word is not None and word.several and isinstance(value, str):  # one element at a time
            value = [*content.get(path, []), value]
        content[path] = value
    return read_answers(form, content, "--set", beside)


def _listed(name: str, text: str) -> Any:
    """Parse a list or mapping. Raises ``UsageError``."""
    import yaml

    try:
        return yaml.safe_load(text)
    except Exception as error:  # the loader also passes on errors of int(), date() and deep nesting
        why = " ".join(str(error).split())
        raise UsageError(
            f"--set {name} is neither YAML nor JSON", why=why, fix='use valid YAML or JSON, for example ["a", "b"]'
        ) from None


def _read(form: VerbOptions, key: Any, value: Any, where: str) -> Iterator[MappedOption]:
    path = _normal(key)
    if path == SPECULATIVE_CONFIG and isinstance(value, str):  # vLLM's files hold it as JSON text
        value = _parsed(value, f"{where}: {path}")
    ours = isinstance(value, Mapping) and path == "backend"  # also the name of an option group here
    if ours or not _is_theirs(path):
        for option, answer in form.flat({key: value}, where).items():
            yield MappedOption(str(key), option, answer)
        return
    if isinstance(value, Mapping) and path in (*GROUPS, BUILD_CONFIG):
        for name, inner in value.items():
            below = _normal(name)
            if path == BUILD_CONFIG and (below == BUILD_CONFIG or below in GROUPS):
                raise _unknown(f"{path}.{below}", where)
            yield from _in_group(form, f"{path}.{below}", inner, where)
    elif value is not None or path not in (*GROUPS, BUILD_CONFIG):
        yield from _in_group(form, path, value, where)


def _in_group(form: VerbOptions, path: str, value: Any, where: str) -> Iterator[MappedOption]:
    word = _word(path)
    if word is None:
        inner = path.removeprefix(f"{BUILD_CONFIG}.")
        if inner == path:
            raise _unknown(path, where)
        for option, answer in form.flat({inner: value}, where).items():
            yield MappedOption(path, option, answer)
        return
    said = _answer(word, path, value, where)
    if said.option and said.answer is not None and said.answer is not ANY_HEAD:
        try:
            entry = form.find(said.option, where)
        except UsageError:
            raise UsageError(
                f"{where}: {path} corresponds to {said.option}, which is not an option of {form.verb}",
                fix=f"omit {path}",
            ) from None
        typed(said.answer, entry.type, entry.option, f"{where}: {path}")
    yield said


def _answer(word: OptionMapping, path: str, value: Any, where: str) -> MappedOption:
    """Translate the value of a mapped option."""
    if value is None or value in ("", [], {}, ()):
        return MappedOption(path)
    text = _text(value)
    if text in word.spelled:
        answer = word.spelled[text]
        return (
            MappedOption(path, left=path, told=word.why)
            if answer is UNREAD
            else MappedOption(path, word.option, answer)
        )
    if word.only:
        raise UsageError(f"{where}: {path} {shown(value)} is not supported", why=word.why, fix=word.fix)
    if not word.option:
        return MappedOption(path, left=path, told=word.why)
    answer, left = word.turned(value) if word.turned else (value, [])
    return MappedOption(path, word.option, answer, f"{', '.join(left)} of {path}" if left else "", word.why)


def _one_of(form: VerbOptions, first: MappedOption, second: MappedOption, where: str) -> MappedOption:
    """Return the more specific of two values of one option. Raises ``UsageError`` if they differ."""
    if ANY_HEAD in (first.answer, second.answer):
        other = first if second.answer is ANY_HEAD else second
        same = other.answer is ANY_HEAD or head_named(other.answer) is not None
    else:
        other, entry = first, form.find(first.option, where)
        one, two = (typed(each.answer, entry.type, entry.option, each.spelled) for each in (first, second))
        same = one == two
    if same:
        return other
    raise UsageError(
        f"{where}: {_in_words(first)} and {_in_words(second)} cannot be combined",
        why=f"both set {form.find(first.option, where).option.flag}",
        fix="omit one of them",
    )


def _in_words(said: MappedOption) -> str:
    return f"{said.spelled} {'(a head)' if said.answer is ANY_HEAD else shown(said.answer)}"


def _together(found: Iterable[MappedOption], where: str) -> Iterator[str]:
    """Yield a message for each reason, with all names ignored for it."""
    names: dict[str, list[str]] = {}
    for each in found:
        if each.left:
            names.setdefault(each.told, []).append(each.left)
    for why, left in names.items():
        yield f"{where}: ignored {', '.join(left)} ({why})"


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


def _is_theirs(path: str) -> bool:
    root = path.partition(".")[0]
    return path in (*GROUPS, BUILD_CONFIG) or root in (*GROUPS, BUILD_CONFIG) or _word(path) is not None


def _word(path: str) -> OptionMapping | None:
    """Return the mapping of a path, or of its parent if that has no option."""
    bare = path.removeprefix(f"{BUILD_CONFIG}.")
    if bare in OPTION_MAP:
        return OPTION_MAP[bare]
    above = OPTION_MAP.get(bare.rpartition(".")[0])
    return above if above is not None and not above.option else None


def _unknown(path: str, where: str) -> UsageError:
    near = nearest(path, OPTION_MAP)
    return UsageError(
        f"{where}: unknown option {path!r}",
        why=f"did you mean {' or '.join(near)}?"
        if near
        else "the name is not a supported option of TensorRT-LLM or vLLM",
        fix=_PAGE,
    )
