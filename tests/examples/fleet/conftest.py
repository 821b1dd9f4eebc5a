"""Ray is not installed for the tests. The modules that import it get stand-ins."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class RayError(Exception):
    """Any error of Ray."""


class ActorDiedError(RayError):
    """The process of an actor ended."""


class ActorUnavailableError(RayError):
    """An actor starts again, or cannot be reached."""


EXCEPTIONS = {each.__name__: each for each in (RayError, ActorDiedError, ActorUnavailableError)}
MODULES: dict[str, dict[str, Any]] = {
    "ray": {"serve": SimpleNamespace(get_replica_context=lambda: SimpleNamespace(rank=None))},
    "ray.exceptions": EXCEPTIONS,
}


@pytest.fixture
def module_of_fleet(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Any]]:
    """Return a function that imports a module of ``fleet`` without Ray."""
    loaded: list[str] = []
    for name, contents in MODULES.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)

    def load(name: str) -> Any:
        loaded.append(f"fleet.{name}")
        return importlib.import_module(f"fleet.{name}")

    yield load
    for name in loaded:
        del sys.modules[name]
