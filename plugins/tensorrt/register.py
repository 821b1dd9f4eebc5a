"""The registration of our plugins with TensorRT's registry in this process."""

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
    """Register a creator for every op (those with a kernel, if None) in namespace ``peagle``, once a process.

    ``packs``, of this call and later ones, are searched for kernels before any is compiled. Raises
    ``EnvironmentProblem`` when another library has taken one of the names.
    """
    with _lock:
        _packs.extend(pack for pack in packs if pack not in _packs)
        registry = trt.get_plugin_registry()
        for spec in kernel_ops() if ops is None else ops:
            key = (trt.__name__, spec.name)
            if key in _creators:
                continue
            if find_creator(trt, spec.name) is not None:
                raise _taken(spec)
            plugin_creator = creator(trt, spec, _packs)
            if not registry.register_creator(plugin_creator, DOMAIN):
                raise _taken(spec)
            _creators[key] = plugin_creator


def find_creator(trt: ModuleType, name: str) -> Any:
    """The registered creator of ``peagle::name`` in our version, ours or another's, or None."""
    creators = trt.get_plugin_registry().all_creators
    key = (name, DOMAIN, str(VERSION))
    return next((c for c in creators if (c.name, c.plugin_namespace, c.plugin_version) == key), None)


def _taken(spec: OpSpec) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"TensorRT has a plugin {DOMAIN}::{spec.name} version {VERSION} that is not ours",
        why="another library came first in this process; libpeagle_plugins.so has the same plugins",
        fix="start a new process without it, or do without this registration",
    )
