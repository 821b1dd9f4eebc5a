"""Chat with an engine: the token ids of a rendered conversation, and the tokens that end an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...plugins.errors import EnvironmentProblem, UsageError
from ..answer_styles import DEFAULT as DEFAULT_STYLE
from ..answer_styles import AnswerStyle
from ..answer_styles.default_calls import in_default_form
from ..requests.arguments import flag
from .later_system import has_later_system, in_user_turns
from .messages import Message, messages_of, template_arguments_of, template_of, tools_of
from .template_files import DEFAULT, read_special_tokens, read_templates
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    from .chat_template import ChatTemplate

Objects = Sequence[Mapping[str, Any]]
_MAX_TEMPLATES = 8  # compiled templates of requests


@dataclass(frozen=True)
class WrittenChat:
    """The rendered text of a conversation, and its token ids.

    The answer begins ``in_thought`` if the text ends inside reasoning between tags.
    """

    text: str
    ids: list[int]
    in_thought: bool = False


class Chat:
    """The chat template of an engine folder at load time, and the tokenizer for its text.

    The folder may change later. A damaged template is reported on use. A conversation may bring a template of its own,
    which does not change the format in which answers are read. System messages within a conversation that the template
    would drop or reject become text of the user (``later_system.py``). If the engine's template has no format of tool
    calls, templates get tools, calls and results as text (``answer_styles/default_calls.py``).
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, max_seq_len: int, template: str | None = None) -> None:
        """``max_seq_len`` is the maximum number of tokens of a conversation and its answer.

        ``template`` replaces those of the folder.
        """
        self._folder, self._tokenizer, self._max_seq_len = folder, tokenizer, max_seq_len
        self._read: tuple[dict[str, str], dict[str, Any]] | None = None  # if they are valid
        with suppress(EnvironmentProblem):
            templates = read_templates(folder) if template is None else {DEFAULT: template}
            self._read = templates, read_special_tokens(folder)
        self._of_request = lru_cache(_MAX_TEMPLATES)(self._passed)

    @property
    def has_template(self) -> bool:
        """Return True if there is a template. Raises ``EnvironmentProblem`` if it is damaged."""
        return bool(self._read[0] if self._read else read_templates(self._folder))

    @cached_property
    def template(self) -> ChatTemplate:
        """The engine's template. Raises ``UsageError`` if it has none, ``EnvironmentProblem`` if it is damaged."""
        from .chat_template import ChatTemplate  # only chat needs Jinja

        return ChatTemplate(*self._read) if self._read and self._read[0] else ChatTemplate.open(self._folder)

    @cached_property
    def style(self) -> AnswerStyle:
        """The format of tool calls and reasoning."""
        return self.template.style if self.has_template else DEFAULT_STYLE

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end an answer in the template, which may differ from the engine's end-of-text tokens."""
        if self.style.ends:
            return self._tokenizer.ids_of(self.style.ends)
        end = self.template.end_of_turn(self._ids, self._tokenizer.is_added)
        return frozenset() if end is None else frozenset({end})

    def ends_with(self, chat_template: str | None) -> frozenset[int]:
        """Return ``end_ids``, with the token that ends an answer in a conversation's own template, if it has one."""
        if chat_template is None:
            return self.end_ids
        own = self.end_ids if self.has_template else frozenset()
        end = self._template(chat_template).end_of_turn(self._ids, self._tokenizer.is_added)
        return own if end is None else own | {end}

    def prompt(
        self,
        messages: Sequence[Message],
        tools: Objects | None = None,
        documents: Objects | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        keep_last: int | None = None,
        can_think: bool = True,
    ) -> WrittenChat:
        """Return the rendered text of a conversation and its token ids; no special tokens are added.

        ``add_generation_prompt`` is the default unless the conversation ``continue_final_message``. If it is True, the
        last message may be the assistant's, which a new one then follows; by default, that is an error. Raises
        ``PromptTooLong`` if the number of characters alone shows that it cannot fit. With ``keep_last``, nothing is too
        long: the ids are those of the end of the text, at least the last ``keep_last``. Unless the answer
        ``can_think``, reasoning that the template opens, or that the last message begins, is closed at once.
        """
        continues = flag("continue_final_message", continue_final_message)
        opens = not continues if add_generation_prompt is None else flag("add_generation_prompt", add_generation_prompt)
        if continues and opens:
            raise UsageError(
                "continue_final_message and add_generation_prompt are both true",
                why="the first continues the last message, and the second begins a new one",
                fix="set only one of them",
            )
        template = self._template(chat_template)
        is_question = opens and add_generation_prompt is None
        checked, offered = messages_of("messages", messages, is_question=is_question), tools_of("tools", tools)
        if has_later_system(checked):
            checked = in_user_turns(checked, template.later_roles)
        if not self.style.is_in_template:
            checked = in_default_form(checked, offered or [], takes_system=bool(offered) and template.takes_system)
            offered = None
        text = template.render(
            checked,
            tools=offered,
            documents=tools_of("documents", documents),
            arguments=template_arguments_of("chat_template_kwargs", arguments),
            add_generation_prompt=opens,
            continue_final_message=continues,
        )
        in_thought = False
        if (tags := self.style.thoughts) is not None:
            in_thought = tags.is_open_in(checked[-1]["content"]) if continues else opens and tags.is_open_after(text)
            if in_thought and not can_think:
                text, in_thought = tags.closed(text), False
        ids = self._ids(text, self._max_seq_len, keep_last)
        return WrittenChat(text, ids, in_thought)

    def _template(self, text: str | None) -> ChatTemplate:
        """Return the template that a conversation brings, or the engine's. Raises ``UsageError`` for a long one."""
        if text is None:
            return self.template
        return self._of_request(template_of(text))

    def _passed(self, text: str) -> ChatTemplate:
        from .chat_template import OF_REQUEST, ChatTemplate

        special = self._read[1] if self._read else read_special_tokens(self._folder)
        return ChatTemplate({DEFAULT: text}, special, OF_REQUEST)

    def _ids(self, text: str, max_seq_len: int | None = None, keep_last: int | None = None) -> list[int]:
        return self._tokenizer.encode(
            text, adds_special=False, max_seq_len=max_seq_len, keep_last=keep_last, name="the conversation"
        )
