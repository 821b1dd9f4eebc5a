"""Keys that a mapping in YAML or JSON has twice: PyYAML keeps the last value and drops the others."""

from __future__ import annotations

from typing import Any

_MERGE = "tag:yaml.org,2002:merge"  # the key <<, which several mappings may be merged with


def repeated_key(text: str) -> tuple[str, int] | None:
    """Return a key that a mapping has twice, and the line of its second place; None if there is none.

    Raises what PyYAML raises for text that is not YAML.
    """
    import yaml

    open_nodes: list[Any] = [yaml.compose(text, yaml.SafeLoader)]
    visited: set[int] = set()
    while open_nodes:
        node = open_nodes.pop()
        if id(node) in visited:  # an alias refers to a node again
            continue
        visited.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            open_nodes += node.value
        elif isinstance(node, yaml.MappingNode):
            if (found := _repeated(node)) is not None:
                return found
            open_nodes += [value for _, value in node.value]
    return None


def _repeated(mapping: Any) -> tuple[str, int] | None:
    names: set[str] = set()
    for key, _ in mapping.value:
        if not isinstance(key.value, str) or key.tag == _MERGE:
            continue
        if key.value in names:
            return key.value, key.start_mark.line + 1
        names.add(key.value)
    return None
