"""A store of answers in memory, bounded by number and by bytes."""

from __future__ import annotations

from collections import OrderedDict


class BoundedStore:
    """Contents by id. A new one displaces those that were stored longest ago.

    Contents larger than the whole store are not stored. Any thread may ``get`` one; all other methods are called by one
    thread.
    """

    def __init__(self, max_entries: int, max_bytes: int) -> None:
        self._most, self._max_bytes = max_entries, max_bytes
        self._contents: OrderedDict[str, bytes] = OrderedDict()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._contents)

    def put(self, identity: str, content: bytes) -> bool:
        """Store a content under a new id; return whether it fits."""
        if len(content) > self._max_bytes or self._most < 1:
            return False
        self._contents[identity] = content
        self.bytes += len(content)
        while len(self._contents) > self._most or self.bytes > self._max_bytes:
            _, displaced = self._contents.popitem(last=False)
            self.bytes -= len(displaced)
        return True

    def get(self, identity: str) -> bytes | None:
        """Return a content, or None if there is none."""
        return self._contents.get(identity)

    def delete(self, identity: str) -> bool:
        """Delete a content; return whether there was one."""
        content = self._contents.pop(identity, None)
        self.bytes -= len(content or b"")
        return content is not None
