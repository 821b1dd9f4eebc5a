"""The chat template of an engine: renders messages as the text that the model was trained on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ..answer_styles import AnswerStyle, style_of
from .meter import TemplateLimitExceeded
from .sandbox import Sandbox, TemplateRefusal
from .template_files import DEFAULT, read_special_tokens, read_template, read_templates

Messages = Sequence[Mapping[str, Any]]

_WITH_TOOLS = "tool_use"
_DEVELOPER = "developer"  # the newer name of "system" in OpenAI's API
_ANSWER = "qwertyuiop"  # a text that no template contains
_FIRST = "asdfghjklzxc"  # another one
_END = "END_OF_THE_FINAL_MESSAGE "  # marks where a continued message ends; templates may strip the space


@dataclass(frozen=True)
class TemplateOrigin:
    """The origin of a template, for errors: ``name`` of the template, and the ``problem`` and ``fix`` of a bad one."""

    name: str
    problem: type[EnvironmentProblem | UsageError]
    fix: str


OF_ENGINE = TemplateOrigin(
    "the model's chat template",
    EnvironmentProblem,
    "correct the checkpoint's chat_template.jinja and rebuild the engine",
)
OF_REQUEST = TemplateOrigin("chat_template of the request", UsageError, "correct the template, or remove chat_template")


class ChatTemplate:
    """Renders messages with the checkpoint's own Jinja template, in a sandbox with limits (``meter.py``).

    ``templates`` maps names to texts; with tools, the one named ``tool_use`` is used if it exists. ``special`` are
    tokens that the template may write, such as ``bos_token``.
    """

    def __init__(
        self, templates: Mapping[str, str], special: Mapping[str, Any], origin: TemplateOrigin = OF_ENGINE
    ) -> None:
        self._sources, self._special, self._origin = dict(templates), dict(special), origin
        self._sandbox, self._compiled, self._turn = Sandbox(), dict[str, Any](), threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> ChatTemplate:
        """Read the templates of a folder. Raises ``UsageError`` if it has none, ``EnvironmentProblem`` if damaged."""
        templates = read_templates(folder)
        if not templates:
            raise UsageError(
                f"{folder} has no chat template",
                why="the checkpoint of the engine has no chat template, so the model was probably not trained for chat",
                fix="use `generate` (`peagle-compile run` without --chat), or put the model's chat_template.jinja into "
                "that folder",
            )
        return cls(templates, read_special_tokens(folder))

    @cached_property
    def style(self) -> AnswerStyle:
        """The model's format of tool calls and reasoning."""
        style = style_of(self._sources.values())
        if style.thoughts is None:
            return style
        try:
            start = self.render([{"role": "user", "content": "?"}])
        except PeagleError:
            return style
        return replace(style, thoughts=replace(style.thoughts, is_opened=style.thoughts.is_open_after(start)))

    @cached_property
    def takes_system(self) -> bool:
        """Return True if the template writes system messages; some reject or drop them."""
        try:
            return _ANSWER in self.render([{"role": "system", "content": _ANSWER}, {"role": "user", "content": "?"}])
        except PeagleError:
            return False

    @cached_property
    def later_roles(self) -> frozenset[str]:
        """Return the roles among "system" and "developer" whose messages within a conversation the template writes.

        Some templates reject or drop them, or write them in place of the first one.
        """
        first = [{"role": "system", "content": _FIRST}] if self.takes_system else []
        turns = [*first, {"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        found = set[str]()
        for role in ("system", _DEVELOPER):
            later = [{"role": role, "content": _ANSWER}, {"role": "user", "content": "?"}]
            with suppress(PeagleError):
                text = self.render([*turns, *later])
                if _ANSWER in text and (not first or _FIRST in text):
                    found.add(role)
        return frozenset(found)

    def check(self) -> None:
        """Compile every template. Raises ``EnvironmentProblem`` for invalid Jinja."""
        for name in self._sources:
            self._template(name)

    def render(
        self,
        messages: Messages,
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> str:
        """Return the text of a conversation, up to the start of the answer.

        Messages of a developer are those of the system if the template does not mention that role. With
        ``continue_final_message``, the text ends with the content of the last message, as in ``transformers``.

        The arguments are plain values, as returned by ``requests.messages``. ``arguments`` are variables of this
        template (``enable_thinking``), and take precedence over special tokens of the same name. Raises ``UsageError``
        for messages that the template rejects or cannot render, and ``EnvironmentProblem`` for a template that is
        invalid Jinja, accesses something forbidden, or exceeds the limits.
        """
        final: str | None = None
        if continue_final_message:
            final = messages[-1].get("content")
            if final is None:
                raise UsageError(
                    f"messages[{len(messages) - 1}] has no content to continue",
                    why="continue_final_message continues the content of the last message",
                    fix="end with a message that has content, or remove continue_final_message",
                )
            messages = [*messages[:-1], {**messages[-1], "content": final + _END}]
        name = self._name(tools)
        if _DEVELOPER not in self._sources[name]:
            messages = [{**each, "role": "system"} if each["role"] == _DEVELOPER else each for each in messages]
        inputs = {"messages": messages, "tools": tools, "documents": documents}
        variables = self._special | dict(arguments or {}) | inputs | {"add_generation_prompt": add_generation_prompt}
        with self._turn:
            template = self._template(name)
            meter = self._sandbox.meter
            meter.begin(_characters(variables))
            try:
                text = str(template.render(variables))
            except Exception as error:
                raise self._typed(error) from None
        return text if final is None else self._up_to(final, text)

    def _up_to(self, final: str, text: str) -> str:
        """Return a rendered text up to the mark in its final message."""
        at = text.rfind(_END.rstrip())
        if at < 0 or final.strip() not in text:
            raise UsageError(
                "the conversation's final message cannot be continued",
                why=f"{self._origin.name} changes the text of the message",
                fix="change the message, or begin a new one instead",
            )
        return text[:at] if text.startswith(_END, at) else text[:at].rstrip()

    def end_of_turn(self, encode: Callable[[str], Sequence[int]], is_special: Callable[[int], bool]) -> int | None:
        """Return the token with which this template ends an answer, or None if that is not a special token.

        It is the token after the answer in a conversation of one question and one answer. If the template cannot render
        that, because it expects other messages, there is none.
        """
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        try:
            rendered = self.render(messages, add_generation_prompt=False)
        except PeagleError:
            return None
        _, found, after = rendered.rpartition(_ANSWER)
        ids = encode(after.lstrip()) if found else ()
        return ids[0] if ids and is_special(ids[0]) else None

    def _name(self, tools: Sequence[Any] | None) -> str:
        if tools and _WITH_TOOLS in self._sources:
            return _WITH_TOOLS
        if DEFAULT in self._sources:
            return DEFAULT
        raise EnvironmentProblem(
            f"there is no chat template named {DEFAULT!r}",
            why=f"the templates are {', '.join(sorted(self._sources))}",
            fix="save one of the checkpoint's templates as chat_template.jinja and rebuild the engine",
        )

    def _template(self, name: str) -> Any:
        if name not in self._compiled:
            try:
                self._compiled[name] = self._sandbox.compiled(self._sources[name])
            except Exception as error:  # also from Python's compiler, for deeply nested templates
                position = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
                title = self._origin.name if name == DEFAULT else f"{self._origin.name} {name!r}"
                raise self._origin.problem(
                    f"{title} is not valid Jinja", why=f"{position}{_error_text(error)}", fix=self._origin.fix
                ) from None
        return self._compiled[name]

    def _typed(self, error: Exception) -> PeagleError:
        """Convert an exception of a template to one of the project's errors."""
        name, problem, fix = self._origin.name, self._origin.problem, self._origin.fix
        if isinstance(error, PeagleError):
            return error
        if isinstance(error, TemplateRefusal):
            return UsageError(
                f"{name} rejected the messages",
                why=f"the template's message is {_error_text(error)!r}",
                fix="change the messages",
            )
        if isinstance(error, TemplateLimitExceeded):
            return problem(f"{name} was stopped", why=_error_text(error), fix=fix)
        if isinstance(error, SecurityError):
            return problem(f"{name} attempted a forbidden access", why=_error_text(error), fix=fix)
        kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
        return UsageError(
            f"{name} cannot render the messages",
            why=f"{kind}{_error_text(error)!r}",
            fix="pass messages in the format that the template expects (roles, order, tools), or correct the template",
        )


def checked_template(path: Path) -> str:
    """Return the chat template in a file. Raises ``EnvironmentProblem`` if it cannot be read or is invalid Jinja."""
    text = read_template(path)
    ChatTemplate({DEFAULT: text}, {}, TemplateOrigin(str(path), EnvironmentProblem, "correct the file")).check()
    return text


def _characters(value: Any) -> int:
    """Return the number of characters in messages and other inputs, which are plain values of limited depth."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return 64 + sum(_characters(each) for item in value.items() for each in item)
    return 64 + sum(map(_characters, value)) if isinstance(value, list | tuple) else 1


def _error_text(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
