"""Converts the tools of a body to the functions that the model is offered.

A namespace's functions are offered like others. Tools that are not functions are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..problems import HttpRefusal
from ..reading import parse_variant
from ..tools import Tool, function
from .bodies import INERT_IN_TOOLS, LEFT_OUT_TOOLS, FunctionTool, NamespaceTool

_MEMBERS: dict[str, type[FunctionTool | NamespaceTool]] = {"function": FunctionTool}
_TOOLS: dict[str, type[FunctionTool | NamespaceTool]] = {**_MEMBERS, "namespace": NamespaceTool}


@dataclass(frozen=True)
class Member:
    """A function of a namespace, or any other function if the namespace is None, as items name it."""

    namespace: str | None
    name: str


@dataclass(frozen=True)
class OfferedTools:
    """The ``functions`` that the model is offered.

    ``members`` are the functions of namespaces by the names that the model reads, and ``names`` are these names by
    function. ``left_out`` are the tools that the model is not offered, by their paths in the body.
    """

    functions: Sequence[Tool]
    members: Mapping[str, Member]
    names: Mapping[Member, str]
    left_out: Mapping[str, Any]

    def require_function(self) -> None:
        """Raise ``HttpRefusal`` if all tools are left out, so that none of them can be called."""
        if not self.functions:
            for path, tool in self.left_out.items():
                parse_variant(tool, _TOOLS, path)

    def member(self, name: str) -> Member:
        """Return the function that the model calls by this name."""
        return self.members.get(name, Member(None, name))

    def name_of(self, member: Member) -> str:
        """Return the name by which the model reads about a call of this function, which may no longer be offered."""
        return self.names.get(member, member.name)


def offered_tools(entries: Sequence[Any]) -> OfferedTools:
    """Return the tools of a body as functions, those of namespaces included.

    A function of a namespace keeps its name if no other function has it; otherwise, the name is ``NAMESPACE__NAME``.
    Raises ``HttpRefusal`` with the place of a tool that is invalid or of an unknown type.
    """
    left_out = dict[str, Any]()
    found = _functions(entries, "tools", _TOOLS, None, left_out)
    counts = Counter(tool.name for tool, _, _ in found)
    functions, members = list[Tool](), dict[str, Member]()
    for tool, path, namespace in found:
        name = tool.name
        if namespace is not None:
            if counts[name] > 1:
                name = f"{namespace}__{name}"
                if name in counts or name in members:
                    raise HttpRefusal(
                        400,
                        f"{path} has the name {tool.name[:100]!r} of another function, and there is {name[:200]!r} "
                        "too; fix: rename one of them",
                        param=path,
                    )
            members[name] = Member(namespace, tool.name)
        functions.append(function(path, name, tool.description, tool.parameters))
    return OfferedTools(functions, members, {each: name for name, each in members.items()}, left_out)


def _functions(
    entries: Sequence[Any],
    path: str,
    kinds: Mapping[str, type[FunctionTool | NamespaceTool]],
    namespace: str | None,
    left_out: dict[str, Any],
) -> list[tuple[FunctionTool, str, str | None]]:
    """Return the functions with their paths and namespaces, and add the tools that are ``left_out``."""
    found = list[tuple[FunctionTool, str, str | None]]()
    for at, each in enumerate(entries):
        place = f"{path}[{at}]"
        if isinstance(each, dict) and str(each.get("type")) in LEFT_OUT_TOOLS:
            left_out[place] = each
            continue
        fields = INERT_IN_TOOLS.left_out(each, (), place) if isinstance(each, dict) else each
        tool = parse_variant(fields, kinds, place)
        if isinstance(tool, FunctionTool):
            found.append((tool, place, namespace))
        else:
            found += _functions(tool.tools, f"{place}.tools", _MEMBERS, tool.name, left_out)
    return found
