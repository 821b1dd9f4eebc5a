"""References in an input to items of stored responses. The id of an item names its response and its place there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..problems import HttpRefusal
from .rendering import StoredResponse, listed_item

_ID = re.compile(r"[a-z]+_([0-9a-f]{32})([0-9]{4,9})")


def responses_of(items: Any, get: Callable[[str], bytes | None]) -> dict[str, bytes]:
    """Return the stored responses to whose items an input refers, by id; ``get`` returns one."""
    if not isinstance(items, list):
        return {}
    matches = (_ID.fullmatch(_reference(each) or "") for each in items)
    contents = {identity: get(identity) for identity in {f"resp_{match[1]}" for match in matches if match}}
    return {identity: content for identity, content in contents.items() if content is not None}


def resolved(items: Sequence[Any], responses: Mapping[str, bytes], max_bytes: int) -> list[Any]:
    """Return the items of an input with those to which it refers in place of the references.

    ``responses`` are those of ``responses_of``. Raises ``HttpRefusal`` for an item that is not stored, and for more
    than ``max_bytes``.
    """
    stored = dict[str, list[msgspec.Raw]]()
    for response_id, content in responses.items():
        response = msgspec.json.decode(content, type=StoredResponse)
        stored[response_id] = msgspec.json.decode(response.items, type=list[msgspec.Raw])
    found, left = list[Any](), max_bytes
    for at, item in enumerate(items):
        if (identity := _reference(item)) is None:
            found.append(item)
            continue
        raw = _stored_item(identity, stored)
        left -= len(raw)
        if left < 0:
            raise HttpRefusal(
                413,
                f"input refers to items of more than {max_bytes} bytes in total; fix: refer to fewer items, or start "
                "the server with a larger --max-body-bytes",
                param="input",
            )
        full = listed_item(msgspec.json.decode(raw), identity.partition("_")[2]) if raw else None
        if full is None or full["id"] != identity:
            raise HttpRefusal(
                404,
                f"item {identity[:100]} not found: an input refers to the items of stored responses by the ids that "
                "this server gave them; it keeps only the latest responses, in memory, and none with store: false; "
                "fix: send the item itself, or start the server with a larger --response-store-bytes",
                param=f"input[{at}]",
                code="item_not_found",
            )
        found.append(full)
    return found


def _reference(item: Any) -> str | None:
    """Return the id of the item to which an item refers. Without a type, an item that has only an id refers."""
    if not isinstance(item, dict) or {key for key, value in item.items() if value is not None} - {"type"} != {"id"}:
        return None
    identity = item["id"]
    return identity if isinstance(identity, str) and item.get("type") in (None, "item_reference") else None


def _stored_item(identity: str, stored: Mapping[str, Sequence[msgspec.Raw]]) -> bytes:
    """Return the JSON of the item that has or gets this id, or nothing if there is none."""
    if (place := _ID.fullmatch(identity)) is None:
        return b""
    items, at = stored.get(f"resp_{place[1]}", ()), int(place[2])
    return bytes(items[at]) if at < len(items) else b""
