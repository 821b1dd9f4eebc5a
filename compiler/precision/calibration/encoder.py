"""Text and conversations to token ids, as the checkpoint's own tokenizer and chat template write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....plugins.errors import BuildError
from ...checkpoints.json_files import read_json

Messages = Sequence[Mapping[str, Any]]

_TEMPLATE, _CONFIG, _TOKENIZER = "chat_template.jinja", "tokenizer_config.json", "tokenizer.json"


@dataclass(frozen=True)
class Encoder:
    """The tokenizer of a checkpoint folder; ``template`` is its chat template, empty if it has none."""

    tokenizer: Any
    template: str
    special: Mapping[str, str]

    @classmethod
    def open(cls, folder: Path) -> Encoder:
        """Read tokenizer and template. Raises ``BuildError`` if the tokenizer is missing or damaged."""
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(folder / _TOKENIZER))
        except Exception as error:  # the library raises bare Exception
            raise BuildError(
                f"{folder / _TOKENIZER} cannot be read as a tokenizer",
                why=str(error),
                fix="finish the download of the model, or give samples as input_ids",
            ) from None
        config = _config(folder / _CONFIG)
        stated = {name: config.get(name) for name in ("bos_token", "eos_token", "unk_token", "pad_token")}
        special = {name: _text(value) for name, value in stated.items() if value is not None}
        return cls(tokenizer, _template(folder, config), special)

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text, with the special tokens that the tokenizer adds."""
        return list(self.tokenizer.encode(text).ids)

    def converse(self, messages: Messages) -> list[int]:
        """Ids of a conversation; without a template, of what is said in it. Raises ``ValueError`` if it is refused."""
        if not self.template:
            return self.encode("\n\n".join(str(message["content"]) for message in messages))
        return list(self.tokenizer.encode(self._render(messages), add_special_tokens=False).ids)

    def _render(self, messages: Messages) -> str:
        from jinja2 import TemplateError
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            rendered, _ = render_jinja_template(
                conversations=[[dict(message) for message in messages]], chat_template=self.template, **self.special
            )
        except TemplateError as error:
            raise ValueError(f"the chat template of the model refuses it: {error}") from None
        return str(rendered[0])


def _config(path: Path) -> dict[str, Any]:
    return read_json(path, "") if path.exists() else {}


def _template(folder: Path, config: Mapping[str, Any]) -> str:
    """A file of its own, else part of the configuration, there also as a list of several."""
    if (folder / _TEMPLATE).is_file():
        return (folder / _TEMPLATE).read_text(encoding="utf-8")
    stated = config.get("chat_template")
    if isinstance(stated, list):
        stated = next((each.get("template") for each in stated if each.get("name") == "default"), None)
    return stated if isinstance(stated, str) else ""


def _text(value: Any) -> str:
    return str(value.get("content", "")) if isinstance(value, Mapping) else str(value)
