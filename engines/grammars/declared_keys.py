"""Restricts JSON schemas to declared keys: objects allow no other keys unless they set ``additionalProperties``.

If ``additionalProperties`` is absent, the standard allows any other key, and a model that may write other keys often
writes them until ``max_tokens``. Like vLLM's default backend and llama.cpp, this project allows declared keys only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from ...plugins.errors import UsageError

MAX_STEPS = 100_000  # a schema of a few lines can combine its parts in millions of ways
_ALTERNATIVES = ("anyOf", "oneOf")
_OWN = ("properties", "patternProperties", "required")  # keywords about the object's own keys
_MAPS_OF_VALUES = ("properties", "patternProperties", "$defs", "definitions")  # keywords with maps of schemas
_VALUES = ("items", "prefixItems", "additionalProperties")


def keep_to_declared_keys(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return ``schema`` with ``additionalProperties: false`` in every object that declares keys and does not set it.

    An object declares keys by ``properties`` or ``patternProperties``, including those of its parts (``allOf``,
    ``anyOf``, ``oneOf``, ``$ref``): it allows the keys of all of them. An object stays open if it declares no keys, or
    if one of its parts cannot be read here, such as a reference to another document. Raises ``UsageError``, with
    ``name``, for a schema that combines its parts in too many ways.
    """
    rewriter = _Rewriter(schema, name)
    return rewriter.result() if rewriter.has_keys else dict(schema)


@dataclass
class _Declared:
    """The keys that several parts of one schema declare; ``required`` keys need not be declared."""

    names: dict[str, None] = field(default_factory=dict)  # ordered
    patterns: dict[str, None] = field(default_factory=dict)
    required: dict[str, None] = field(default_factory=dict)
    declares: bool = False
    admits_others: bool = False

    def add(self, other: _Declared) -> _Declared:
        """Return the keys of both."""
        return _Declared(
            self.names | other.names,
            self.patterns | other.patterns,
            self.required | other.required,
            self.declares or other.declares,
            self.admits_others or other.admits_others,
        )


class _Rewriter:
    """Rewrites one schema. A reference to a part that must stay open points to an open copy of it."""

    def __init__(self, root: Mapping[str, Any], name: str) -> None:
        self._root, self._name, self._steps = dict(root), name, 0
        self._copies: dict[tuple[str, bool], str] = {}  # copied definitions' names, by pointer and whether closed
        self._uncopied: list[tuple[str, bool]] = []
        inner = list(_nodes_in(self._root.values()))
        self.has_keys = any("properties" in node or "patternProperties" in node for node in (self._root, *inner))
        self._has_other_bases = any(isinstance(node.get("$id"), str) for node in inner)

    def result(self) -> dict[str, Any]:
        """Return the rewritten schema."""
        done, definitions = dict(self._closed(self._root, _Declared())), dict[str, Any]()
        while self._uncopied:  # not recursive: chains of references can exceed Python's stack
            pointer, is_closed = key = self._uncopied.pop()
            target = self._target(pointer)
            definitions[self._copies[key]] = self._closed(target, _Declared()) if is_closed else self._open(target)
        if definitions:
            given = done.get("$defs")
            done["$defs"] = {**(given if isinstance(given, dict) else {}), **definitions}
        return done

    def _closed(self, node: Any, others: _Declared) -> Any:
        """Rewrite the schema of a value; ``others`` are the keys declared by the rest of that value's schema."""
        if node is True and others.declares:
            node = {}
        if not isinstance(node, dict):
            return node
        self._step(1 + len(others.names) + len(others.patterns))
        if "additionalProperties" in node:
            return self._open(node)
        alternatives = [key for key in _ALTERNATIVES if isinstance(node.get(key), list)]
        if alternatives:
            done = self._open({key: value for key, value in node.items() if key not in alternatives})
            for key in alternatives:
                rest = self._declared({name: value for name, value in node.items() if name != key}).add(others)
                done[key] = [self._closed(each, rest) for each in node[key]]
            return {key: done[key] for key in node}  # keeps the order of the text
        parts = node["allOf"] if isinstance(node.get("allOf"), list) else []
        if len(parts) + ("$ref" in node) == 1 and not others.declares and not any(key in node for key in _OWN):
            done = self._with_values(node)
            if parts:
                done["allOf"] = [self._closed(parts[0], others)]
            else:
                done["$ref"] = self._reference(node["$ref"], is_closed=True)
            return done
        declared, types = others.add(self._declared(node)), node.get("type", "object")
        done = self._open(node)
        is_object = "object" in types if isinstance(types, list) else types == "object"
        if is_object and declared.declares and not declared.admits_others:
            self._close(done, declared)
        return done

    def _close(self, node: dict[str, Any], declared: _Declared) -> None:
        """Restrict an object to the declared keys."""
        names = declared.names if declared.patterns else declared.names | declared.required
        self._step(len(names) + len(declared.patterns))
        for key, kept in (("properties", names), ("patternProperties", declared.patterns)):
            given = node[key] if isinstance(node.get(key), dict) else {}
            if added := {name: True for name in kept if name not in given}:
                node[key] = {**given, **added}
        node["additionalProperties"] = False

    def _open(self, node: Any) -> Any:
        """Rewrite one of several parts of a schema: nested values are closed, the part itself stays open."""
        if not isinstance(node, dict):
            return node
        self._step()
        done = self._with_values(node)
        for key in ("allOf", *_ALTERNATIVES):
            if isinstance(done.get(key), list):
                done[key] = [self._open(each) for each in done[key]]
        if "$ref" in done:
            done["$ref"] = self._reference(done["$ref"], is_closed=False)
        return done

    def _with_values(self, node: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of a schema in which the schemas of nested values are closed."""
        done, nothing = dict(node), _Declared()
        for key in _MAPS_OF_VALUES:
            if isinstance(given := done.get(key), dict):
                done[key] = {name: self._closed(each, nothing) for name, each in given.items()}
        for key in _VALUES:
            if isinstance(given := done.get(key), list):
                done[key] = [self._closed(each, nothing) for each in given]
            elif isinstance(given, dict):
                done[key] = self._closed(given, nothing)
        return done

    def _reference(self, pointer: Any, *, is_closed: bool) -> Any:
        """Return a reference to the closed or open version of the schema at ``pointer``."""
        if self._target(pointer) is None or not (is_closed or self._declared({"$ref": pointer}).declares):
            return pointer
        parts = pointer.split("/")
        if is_closed and (len(parts) == 1 or (len(parts) == 3 and parts[1] in ("$defs", "definitions"))):
            return pointer  # closed in place
        key = pointer, is_closed
        if key not in self._copies:
            name = f"{'closed' if is_closed else 'open'}-{len(self._copies)}"
            while self._target(f"#/$defs/{name}") is not None:
                name += "-"
            self._copies[key] = name
            self._uncopied.append(key)
        return f"#/$defs/{self._copies[key]}"

    def _declared(self, schema: dict[str, Any]) -> _Declared:
        """Return the keys that a schema and its parts declare. A part that cannot be read may declare any key."""
        found, visited, left = _Declared(), set[str](), list[Any]([schema])
        while left:
            node = left.pop()
            self._step()
            if not isinstance(node, dict):
                continue
            for key, keys in (("properties", found.names), ("patternProperties", found.patterns)):
                if isinstance(given := node.get(key), dict):
                    found.declares = True
                    self._step(len(given))
                    keys.update(dict.fromkeys(given))
            if isinstance(given := node.get("required"), list):
                found.required.update(dict.fromkeys(each for each in given if isinstance(each, str)))
            found.admits_others |= node.get("additionalProperties", False) is not False
            if "$ref" in node:
                pointer = node["$ref"]
                target = self._target(pointer)
                found.admits_others |= target is None
                if target is not None and pointer not in visited:
                    visited.add(pointer)
                    left.append(target)
            for key in (*_ALTERNATIVES, "allOf"):
                left += reversed(node[key]) if isinstance(node.get(key), list) else []
        return found

    def _target(self, pointer: Any) -> dict[str, Any] | None:
        """Return the schema that a reference points to, or None if it is outside this document."""
        if not isinstance(pointer, str) or self._has_other_bases or not (pointer == "#" or pointer.startswith("#/")):
            return None
        node: Any = self._root
        for part in unquote(pointer).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and name.isascii() and name.isdigit() and len(name) < 6 and int(name) < len(node):
                node = node[int(name)]
            elif isinstance(node, dict) and name in node:
                node = node[name]
            else:
                return None
        return node if isinstance(node, dict) else None

    def _step(self, count: int = 1) -> None:
        self._steps += count
        if self._steps > MAX_STEPS:
            raise UsageError(
                f"{self._name} combines its parts in too many ways",
                why="an object allows every key that any of its parts (allOf, anyOf, oneOf, $ref) declares, "
                f"and collecting them takes more than {MAX_STEPS:,} steps",
                fix="combine fewer parts, or set additionalProperties in them",
            )


def _nodes_in(values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    """Yield all objects in ``values``, at any depth."""
    left = list(values)
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            left += node.values()
        elif isinstance(node, list):
            left += node
