"""Register the plugins with TensorRT's registry in this process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from ..errors import EnvironmentProblem
from ..kernels.pack import Pack
from ..kernels.sources import kernel_ops
from ..op_spec import DOMAIN, VERSION, OpSpec
from .plugin_class import creator

_lock = threading.Lock()
_creators: dict[tuple[str, str], Any] = {}  # by module and op; the registry does not keep them alive
_packs: list[Pack] = []


def register(trt: ModuleType, ops: Iterable[OpSpec] | None = None, packs: Sequence[Pack] = ()) -> None:
    """Register a creator for every op (those with a kernel, if None) in namespace ``peagle``, once per process.

    ``packs`` of this and later calls are searched for kernels before any is compiled. Raises ``EnvironmentProblem`` if
    another library has registered one of the names.
    """
    with _lock:
        _packs.extend(pack for pack in packs if pack not in _packs)
        registry = trt.get_plugin_registry()
        for spec in kernel_ops() if ops is None else ops:
            key = (trt.__name__, spec.name)
            if key in _creators:
                continue
            if find_creator(trt, spec.name) is not None:
                raise _name_in_use(spec)
            plugin_creator = creator(trt, spec, _packs)
            if not registry.register_creator(plugin_creator, DOMAIN):
                raise _name_in_use(spec)
            _creators[key] = plugin_creator


def find_creator(trt: ModuleType, name: str) -> Any:
    """Return the registered creator of ``peagle::name`` in the current version, from any library, or None."""
    creators = trt.get_plugin_registry().all_creators
    key = (name, DOMAIN, str(VERSION))
    return next((c for c in creators if (c.name, c.plugin_namespace, c.plugin_version) == key), None)


def _name_in_use(spec: OpSpec) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"another library has registered the TensorRT plugin {DOMAIN}::{spec.name} version {VERSION}",
        why="plugin names are unique in a process, and libpeagle_plugins.so has plugins of the same names",
        fix="start a new process without that library, or skip this registration",
    )
