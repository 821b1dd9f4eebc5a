"""Convert text and conversations to token ids with the checkpoint's own tokenizer and chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ....engines.text.chat_template import ChatTemplate
from ....engines.text.template_files import DEFAULT, read_special_tokens, read_templates
from ....engines.text.tokenizer import Tokenizer
from ....plugins.errors import BuildError, EnvironmentProblem, PeagleError, UsageError

Messages = Sequence[Mapping[str, Any]]

_DAY = datetime(2026, 1, 1)


@dataclass(frozen=True)
class Encoder:
    """The tokenizer of a checkpoint folder, and its default chat template, or None."""

    tokenizer: Tokenizer
    template: ChatTemplate | None

    @classmethod
    def open(cls, folder: Path) -> Encoder:
        """Read tokenizer and template. Raises ``BuildError`` if the tokenizer is missing or either is damaged."""
        try:
            tokenizer = Tokenizer(folder)
        except EnvironmentProblem as error:
            fix = "complete the download of the model, or pass samples as input_ids"
            raise BuildError(error.what, why=error.why, fix=fix) from None
        try:
            templates, special = read_templates(folder), read_special_tokens(folder)
        except EnvironmentProblem as error:
            raise BuildError(error.what, why=error.why, fix="download the file again, or correct it") from None
        return cls(tokenizer, ChatTemplate(templates, special) if DEFAULT in templates else None)

    @property
    def accepts_system(self) -> bool:
        """True if the template accepts a conversation that begins with a system turn."""
        turns = [{"role": role, "content": "?"} for role in ("system", "user", "assistant")]
        try:
            self.converse(turns)
        except ValueError:
            return False
        return True

    def encode(self, text: str) -> list[int]:
        """Encode plain text, with the tokenizer's special tokens. Raises ``ValueError`` if that fails."""
        return self._ids(text, adds_special=True)

    def converse(self, messages: Messages) -> list[int]:
        """Encode a conversation; without a template, its plain text. Raises ``ValueError`` if it is rejected."""
        if self.template is None:
            return self.encode("\n\n".join(str(message["content"]) for message in messages))
        try:
            text = self.template.render(messages, add_generation_prompt=False, arguments={"strftime_now": _fixed_date})
        except PeagleError as error:
            raise ValueError(f"{error.what}: {error.why}") from None
        return self._ids(text, adds_special=False)

    def _ids(self, text: str, *, adds_special: bool) -> list[int]:
        try:
            return self.tokenizer.encode(text, adds_special=adds_special)
        except UsageError as error:
            raise ValueError(f"{error.what}: {error.why}") from None


def _fixed_date(time_format: str) -> str:
    """Return a fixed date: today's date would change the samples, and everything derived from them, every day."""
    return _DAY.strftime(time_format)
