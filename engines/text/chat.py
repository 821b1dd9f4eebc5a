"""Chat with an engine: the token ids of a rendered conversation, and the tokens that end an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...plugins.errors import EnvironmentProblem
from .answer_styles import Style
from .channels import ENDS
from .messages import Message, messages_of, template_arguments_of, tools_of
from .template_files import read_special_tokens, read_templates
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

Objects = Sequence[Mapping[str, Any]]


class Chat:
    """The chat template of an engine folder at load time, and the tokenizer for its text.

    The folder may change later. A damaged template is reported on use.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, max_seq_len: int) -> None:
        """``max_seq_len`` is the maximum number of tokens of a conversation and its answer."""
        self._folder, self._tokenizer, self._max_seq_len = folder, tokenizer, max_seq_len
        self._read: tuple[dict[str, str], dict[str, Any]] | None = None  # if they are valid
        with suppress(EnvironmentProblem):
            self._read = read_templates(folder), read_special_tokens(folder)

    @property
    def has_template(self) -> bool:
        """Return whether there is a template. Raises ``EnvironmentProblem`` if it is damaged."""
        return bool(self._read[0] if self._read else read_templates(self._folder))

    @cached_property
    def template(self) -> ChatTemplate:
        """The engine's template. Raises ``UsageError`` if it has none, ``EnvironmentProblem`` if it is damaged."""
        from .chat_template import ChatTemplate  # only chat needs Jinja

        return ChatTemplate(*self._read) if self._read and self._read[0] else ChatTemplate.open(self._folder)

    @cached_property
    def style(self) -> Style | None:
        """The format of tool calls and reasoning; None if answers are plain text or there is no template."""
        return self.template.style if self.has_template else None

    @cached_property
    def ends(self) -> frozenset[int]:
        """The tokens that end an answer in the template, which may differ from the engine's end-of-text tokens."""
        if self.style == "channels":  # the token after an answer in a conversation ends every message
            return self._tokenizer.ids_of(ENDS)
        end = self.template.end_of_turn(self._ids, self._tokenizer.is_added)
        return frozenset() if end is None else frozenset({end})

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Objects | None = None,
        documents: Objects | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[int]]:
        """Return the rendered text of a conversation and its token ids; no special tokens are added.

        Raises ``PromptTooLong`` if the number of characters alone shows that it cannot fit.
        """
        text = self.template.render(
            messages_of("messages", messages),
            tools=tools_of("tools", tools),
            documents=tools_of("documents", documents),
            arguments=template_arguments_of("chat_template_kwargs", arguments),
        )
        return text, self._ids(text, self._max_seq_len)

    def _ids(self, text: str, max_seq_len: int | None = None) -> list[int]:
        return self._tokenizer.encode(text, adds_special=False, max_seq_len=max_seq_len, name="the conversation")
