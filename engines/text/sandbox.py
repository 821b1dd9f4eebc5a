"""The environment of a chat template: Jinja as in ``transformers``, with every operation that can grow counted.

A template comes with a checkpoint and is untrusted. Jinja's sandbox protects files and Python's internals, but does not
stop a template from doubling a string fifty times. So its syntax tree is changed before it is compiled: loops, joined
text, literals, slices and comparisons go through added filters, whose names no template can write. Jinja's own filters,
operators, calls and output are counted through Jinja's hooks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

from jinja2 import TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from .growth import METHODS, growth_of, growth_of_operator
from .meter import Meter, TemplateLimitExceeded

_STEPS, _JOINED, _MADE = "<steps>", "<joined>", "<made>"
_REMOVED_FILTERS = ("urlize", "xmlattr", "pprint")  # removed: their growth is hard to bound, and no prompt is HTML
_MAX_FORMAT_LENGTH = 1000


class TemplateRefusal(TemplateError):
    """The message of a template's ``raise_exception``."""


class Sandbox(ImmutableSandboxedEnvironment):
    """Compiles chat templates, and counts with ``meter`` during rendering. One rendering at a time."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        self.meter = meter = Meter()
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, loopcontrols],
            optimized=False,  # no constant folding at compile time
            finalize=pass_context(lambda _context, value: self._shown(value)),
        )
        self.filters["tojson"] = _tojson
        for name in _REMOVED_FILTERS:
            del self.filters[name]
        self.filters = {name: self._counted(name, each) for name, each in self.filters.items()}
        self.filters |= {_STEPS: lambda value: _Steps(value, meter), _JOINED: self._joined, _MADE: meter.count}
        del self.globals["lipsum"]
        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": _strftime_now,
            "dict": lambda *args, **kwargs: dict(*args, **kwargs),
            "namespace": _Attributes,
        }

    def compiled(self, source: str) -> Any:
        """Compile a template. Raises ``TemplateError``, and whatever Python's compiler raises."""
        tree = _Counting().visit(self.parse(source))
        tree.set_environment(self)
        return self.from_string(tree)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator after checking the size of its result."""
        self.meter.require(growth_of_operator(operator, left, right, self.meter.size))
        return self.meter.count(super().call_binop(context, operator, left, right))

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a macro, a function passed to the template, or a harmless method of a value."""
        bound = getattr(__obj, "__wrapped__", __obj)  # Jinja wraps str.format
        owner = getattr(bound, "__self__", None)
        if isinstance(owner, _VALUES):
            name = bound.__name__
            if not any(isinstance(owner, kind) and name in names for kind, names in METHODS.items()):
                raise SecurityError(f"templates cannot call {type(owner).__name__}.{name}")
            args = __self._allowed(name, owner, args, kwargs)
        __self.meter.step()
        result = super().call(__context, __obj, *args, **kwargs)
        return (
            result if isinstance(__obj, Macro) else __self.meter.count(result)
        )  # a macro's text is counted when written

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a filter with counting; the attributes by which Jinja selects its arguments are kept."""
        before = 1 if hasattr(function, "jinja_pass_arg") else 0

        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            value, *rest = args[before:]
            if name == "join" and not isinstance(value, str | list | tuple | dict):
                value = list(value)  # its length must be known
            self._allowed(name, value, tuple(rest), kwargs)
            return self.meter.count(function(*args[:before], value, *rest, **kwargs))

        return counted

    def _allowed(self, name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return the arguments of a method or filter. Raises if its result could be too large."""
        self.meter.step()
        if name == "join" and isinstance(value, str) and args and not isinstance(args[0], str | list | tuple | dict):
            args = (list(args[0]), *args[1:])
        self.meter.require(growth_of(name, value, args, kwargs, self.meter.size))
        return args

    def _joined(self, values: list[Any]) -> str:
        """Apply ``~``."""
        self.meter.step()
        self.meter.charge(sum(map(self.meter.size, values)))
        return "".join(map(str, values))

    def _shown(self, value: Any) -> Any:
        """Count text that is written to the result."""
        self.meter.charge(self.meter.size(value))
        return value


_VALUES = (str, int, float, complex, bytes, list, tuple, set, frozenset, dict, range, type)


class _Counting(NodeTransformer):
    """Wraps operations that can grow or loop in counting filters."""

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        """Convert text between tags to a value, which is counted when written."""
        self.generic_visit(node)
        node.nodes = [nodes.Const(n.data) if isinstance(n, nodes.TemplateData) else n for n in node.nodes]
        return node

    def visit_For(self, node: nodes.For) -> nodes.Node:
        """Count iterations."""
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _STEPS)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        """Count joined text."""
        self.generic_visit(node)
        return _filtered(nodes.List(node.nodes), _JOINED)

    def _made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _filtered(node, _MADE)

    visit_List = visit_Dict = visit_Compare = _made

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        """Count tuples that are values, not assignment targets."""
        return self._made(node) if node.ctx == "load" else node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Count slices, which are copies."""
        self.generic_visit(node)
        return _filtered(node, _MADE) if isinstance(node.arg, nodes.Slice) else node


def _filtered(node: Any, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Steps:
    """The iterable of a loop, with every step counted; it has a length if the original has one."""

    def __init__(self, values: Iterable[Any], meter: Meter) -> None:
        self._values, self._meter = values, meter

    def __iter__(self) -> Iterator[Any]:
        for value in self._values:
            self._meter.step()
            yield value

    def __len__(self) -> int:
        return len(self._values)  # type: ignore[arg-type] # Jinja expects a TypeError if there is no length


class _Generation(Extension):
    """The tag ``generation``, with which templates mark answers for training; here it has no effect on its content."""

    tags = {"generation"}  # noqa: RUF012 - declared as in Jinja

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Attributes(Namespace):
    """A template's ``namespace`` that rejects names with a leading underscore and prints without its content."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        for name in dict(*rest, **kwargs):
            _require_public(name)
        Namespace.__init__(self, *rest, **kwargs)

    def __setitem__(self, name: str, value: Any) -> None:
        _require_public(name)
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<Namespace>"


def _require_public(name: Any) -> None:
    if not isinstance(name, str) or name.startswith("_"):
        raise SecurityError(f"{name!r} is not a valid attribute name")


def _raise_exception(message: Any) -> None:
    raise TemplateRefusal(str(message))


def _strftime_now(time_format: str) -> str:
    if len(time_format) > _MAX_FORMAT_LENGTH:
        raise TemplateLimitExceeded("the template uses a date format that is too long")
    return datetime.now().strftime(time_format)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as written by Python; Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
