"""The content of a tool's result as text.

Tools return images and documents too, and clients send every result again with each later turn. A refusal would end
the conversation for good, so a note takes the place of what is not text, and the model can say what it did not see.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ..reading import parse_variant
from ..turns import omitted
from .bodies import TextBlock


class ImageBlock(Struct):
    """An image, of which nothing is read."""


class DocumentBlock(Struct):
    """A document, which is read if it is plain text."""

    source: dict[str, Any]


class SearchResultBlock(Struct):
    """A text that a search has found."""

    source: str
    title: str
    content: list[Any]


class ToolReferenceBlock(Struct):
    """The name of a tool that a search for tools has found."""

    tool_name: str


_TEXT: dict[str, type[Struct]] = {"text": TextBlock}
_BLOCKS: dict[str, type[Struct]] = {
    **_TEXT,
    "image": ImageBlock,
    "document": DocumentBlock,
    "search_result": SearchResultBlock,
    "tool_reference": ToolReferenceBlock,
}


def text_of_result(content: str | list[Any] | None, path: str) -> str:
    """Return the content of a tool's result at ``path`` as text. Raises ``HttpRefusal`` for an unknown block."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(_text(each, f"{path}[{at}]") for at, each in enumerate(content))


def text_of_blocks(content: list[Any], path: str) -> str:
    """Return the text of blocks that can only be text. Raises ``HttpRefusal`` for others."""
    blocks = (parse_variant(each, _TEXT, f"{path}[{at}]") for at, each in enumerate(content))
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _text(raw_block: Any, path: str) -> str:
    block = parse_variant(raw_block, _BLOCKS, path)
    if isinstance(block, TextBlock):
        return block.text
    if isinstance(block, DocumentBlock):
        data = block.source.get("data")
        return data if block.source.get("type") == "text" and isinstance(data, str) else omitted("document")
    if isinstance(block, SearchResultBlock):
        return f"{block.title}\n{block.source}\n{text_of_blocks(block.content, f'{path}.content')}"
    if isinstance(block, ToolReferenceBlock):
        return f"[tool: {block.tool_name}]"
    return omitted("image")
