"""The chat template of an engine: messages to the text that the model was trained to answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.exceptions import SecurityError

from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError
from .answer_styles import Style, style_of
from .meter import TooMuchError
from .sandbox import Sandbox, TemplateRefusal
from .template_files import DEFAULT, read_special_tokens, read_templates

Messages = Sequence[Mapping[str, Any]]

_REBUILD = "correct the checkpoint's chat_template.jinja and build again"
_WITH_TOOLS = "tool_use"
_ANSWER = "qwertyuiop"  # no template has it


class ChatTemplate:
    """Renders messages as the checkpoint's own Jinja template says, in a sandbox with limits (``meter.py``).

    ``templates`` are its texts by name; with tools, the one named ``tool_use`` is taken where there is one. ``special``
    are tokens that it may write, ``bos_token`` and the like.
    """

    def __init__(self, templates: Mapping[str, str], special: Mapping[str, Any]) -> None:
        self._sources, self._special = dict(templates), dict(special)
        self._sandbox, self._compiled, self._turn = Sandbox(), dict[str, Any](), threading.Lock()

    @classmethod
    def open(cls, folder: Path) -> ChatTemplate:
        """Read the templates of a folder. Raises ``UsageError`` if it has none, ``EnvironmentProblem`` if damaged."""
        templates = read_templates(folder)
        if not templates:
            raise UsageError(
                f"{folder} has no chat template",
                why="the checkpoint that it was built from has none: it continues texts, and was not taught to answer",
                fix="use generate (peagle-compile run without --chat), or put the chat_template.jinja that the model "
                "was trained with into that folder",
            )
        return cls(templates, read_special_tokens(folder))

    @property
    def style(self) -> Style | None:
        """How the model calls tools and says what it thinks; None where that is no form that is read here."""
        return style_of(self._sources.values())

    def check(self) -> None:
        """Compile every template. Raises ``EnvironmentProblem`` for one that is no Jinja."""
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
    ) -> str:
        """Return the text of a conversation, up to where the answer begins.

        The arguments are plain values, as ``requests.messages`` returns them; ``arguments`` are variables of this
        template (``enable_thinking``), and go before special tokens of the same name. Raises ``UsageError`` for
        messages that the template refuses or cannot render, and ``EnvironmentProblem`` for a template that is no Jinja,
        reaches for what it must not, or uses more than the limits.
        """
        given = {"messages": messages, "tools": tools, "documents": documents}
        variables = self._special | dict(arguments or {}) | given | {"add_generation_prompt": add_generation_prompt}
        with self._turn:
            template = self._template(self._name(tools))
            meter = self._sandbox.meter
            meter.begin(_characters(variables))
            try:
                return str(template.render(variables))
            except Exception as error:
                raise _typed(error) from None

    def end_of_turn(self, encode: Callable[[str], Sequence[int]], is_special: Callable[[int], bool]) -> int | None:
        """Return the token by which this template ends an answer, None if it ends it with no special token.

        It is what follows the answer in a conversation of a question and an answer. A template that cannot render that
        has none: its messages are of another kind.
        """
        asked = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _ANSWER}]
        try:
            rendered = self.render(asked, add_generation_prompt=False)
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
            f"no chat template is called {DEFAULT!r}",
            why=f"there are {', '.join(sorted(self._sources))}",
            fix="name one of the checkpoint's chat_template.jinja and build again",
        )

    def _template(self, name: str) -> Any:
        if name not in self._compiled:
            try:
                self._compiled[name] = self._sandbox.compiled(self._sources[name])
            except Exception as error:  # also of Python's compiler, for what is nested too deep
                where = f"line {error.lineno}: " if isinstance(error, TemplateSyntaxError) else ""
                raise EnvironmentProblem(
                    f"the chat template {name!r} is not valid Jinja", why=f"{where}{_said(error)}", fix=_REBUILD
                ) from None
        return self._compiled[name]


def _characters(value: Any) -> int:
    """The text in messages and what goes with them; plain values, as deep as they were allowed to be."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return 64 + sum(_characters(each) for item in value.items() for each in item)
    return 64 + sum(map(_characters, value)) if isinstance(value, list | tuple) else 1


def _typed(error: Exception) -> PeagleError:
    """The error of ours for what went wrong in a template."""
    if isinstance(error, PeagleError):
        return error
    if isinstance(error, TemplateRefusal):
        return UsageError(
            "the chat template of the model refuses the messages",
            why=f"it says {_said(error)!r}",
            fix="change the messages",
        )
    if isinstance(error, TooMuchError):
        return EnvironmentProblem("the chat template of the model was stopped", why=_said(error), fix=_REBUILD)
    if isinstance(error, SecurityError):
        return EnvironmentProblem(
            "the chat template of the model reaches for what no template may have", why=_said(error), fix=_REBUILD
        )
    kind = "" if isinstance(error, TemplateError) else f"{type(error).__name__}: "
    return UsageError(
        "the chat template of the model cannot render the messages",
        why=f"{kind}{_said(error)!r}",
        fix="give messages of the form that it expects (roles, order, tools), or correct the checkpoint's template",
    )


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__
