"""The Python module of TensorRT or TensorRT-RTX, and a cure for what the latter's wheel lacks.

The ONNX parser of TensorRT-RTX opens ``libtensorrt_rtx.so`` when a graph holds a plugin and ends the process when it is
not there; the wheel of 1.7 only has ``libtensorrt_rtx.so.1``. A link beside it is the cure, for the parser looks in its
own folder first.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from ..errors import EnvironmentProblem
from ..optional_packages import install, is_there

Product = Literal["tensorrt", "tensorrt-rtx"]

_MODULES: Mapping[str, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "tensorrt_rtx"}
EXTRA_OF: Mapping[str, str] = {"tensorrt": "tensorrt", "tensorrt-rtx": "rtx"}
_TITLES: Mapping[str, str] = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX"}

_LIBRARIES = "tensorrt_rtx_libs"
_LINK = "libtensorrt_rtx.so"


@dataclass(frozen=True)
class LinkState:
    """Whether TensorRT-RTX can read graphs with plugins.

    ``present``: the library has the name the parser asks for. ``missing``: it has not, and ``cure_link`` can help.
    ``cured``: it just did. ``cannot``: ``why``. ``absent``: TensorRT-RTX is not installed as a wheel.
    """

    state: Literal["present", "missing", "cured", "cannot", "absent"]
    folder: Path | None = None
    why: str = ""

    @property
    def usable(self) -> bool:
        """Whether the parser finds the library, or finds it by itself in an installation that is no wheel."""
        return self.state in ("present", "cured", "absent")


def load(product: Product, *, parser: bool = True) -> ModuleType:
    """Import ``tensorrt`` or ``tensorrt_rtx``. With ``parser``, one whose ONNX parser can read our graphs.

    ``EnvironmentProblem`` when it is not installed, does not start, or its parser would end the process.
    """
    name, title = _MODULES[product], _TITLES[product]
    fix = install(EXTRA_OF[product])
    if not is_there(name):
        raise EnvironmentProblem(f"{title} is not installed", why=f"there is no Python module {name}", fix=fix)
    link = cure_link() if product == "tensorrt-rtx" else LinkState("absent")
    if parser and not link.usable:
        raise _cannot(link)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a broken installation raises anything: OSError, ImportError, KeyError
        raise EnvironmentProblem(
            f"{title} does not start",
            why=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
            fix=f"{fix}, with nothing of another version of it installed",
        ) from error
    for interface in ("IPluginV3", "IPluginCreatorV3One", "get_plugin_registry"):
        if not hasattr(module, interface):
            version = getattr(module, "__version__", "of unknown version")
            raise EnvironmentProblem(f"{title} {version} is too old", why=f"it has no {interface}", fix=fix)
    return module


def link_state(environment: Mapping[str, str] | None = None) -> LinkState:
    """Find out what is the matter, without importing TensorRT or changing anything.

    ``environment`` is that of the process in question; the system's loader reads ``LD_LIBRARY_PATH`` when it starts.
    """
    folder = _library_folder()
    if folder is None:
        return LinkState("absent")
    if os.name != "posix" or (folder / _LINK).exists():
        return LinkState("present", folder)
    variables = os.environ if environment is None else environment
    for place in filter(None, variables.get("LD_LIBRARY_PATH", "").split(":")):
        if (Path(place) / _LINK).exists():
            return LinkState("present", Path(place))
    if _library(folder) is None:
        return LinkState("cannot", folder, f"the wheel has no {_LINK}.1 either; it is damaged")
    if not os.access(folder, os.W_OK):
        return LinkState("cannot", folder, "the folder cannot be written to")
    return LinkState("missing", folder)


def cure_link() -> LinkState:
    """Make the link if it is missing. Several processes may do so at once."""
    before = link_state()
    library = _library(before.folder) if before.folder else None
    if before.state != "missing" or before.folder is None or library is None:
        return before
    try:
        _link(before.folder, library.name)
    except OSError as error:
        return LinkState("cannot", before.folder, error.strerror or str(error))
    return LinkState("cured", before.folder)


def child_environment(folder: Path) -> dict[str, str]:
    """Set up environment variables with which a new process can use the parser, whatever this one can do.

    Makes a link in ``folder`` (a private one of the caller's) where the wheel's own folder cannot be written to; empty
    where nothing is needed. ``EnvironmentProblem`` when there is no library to link to.
    """
    state = cure_link()
    if state.usable:
        return {}
    library = _library(state.folder) if state.folder else None
    if library is None:
        raise _cannot(state)
    folder.mkdir(parents=True, exist_ok=True)
    _link(folder, str(library))
    others = os.environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": f"{folder.resolve()}:{others}" if others else str(folder.resolve())}


def _library_folder() -> Path | None:
    spec = importlib.util.find_spec(_LIBRARIES)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return Path(places[0]) if places else None


def _library(folder: Path) -> Path | None:
    """The library under its versioned name, the newest if there are several."""
    return max(folder.glob(f"{_LINK}.*"), key=lambda path: path.stat().st_mtime, default=None)


def _link(folder: Path, target: str) -> None:
    """Put the link there whole: it replaces one that leads nowhere, as an upgrade leaves it."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".link-") as private:
        link = Path(private) / _LINK
        link.symlink_to(target)
        link.replace(folder / _LINK)


def _cannot(link: LinkState) -> EnvironmentProblem:
    library = _library(link.folder) if link.folder else None
    if library is None:
        return EnvironmentProblem(
            "TensorRT-RTX cannot read graphs that hold our plugins",
            why=f"{link.folder}: {link.why}",
            fix=install("rtx", again=True),
        )
    return EnvironmentProblem(
        "TensorRT-RTX cannot read graphs that hold our plugins",
        why=f"its parser asks for {_LINK}, its wheel lacks that name, and in {link.folder} {link.why}",
        fix=f"mkdir -p ~/.local/lib/tensorrt-rtx && ln -sf {library} ~/.local/lib/tensorrt-rtx/{_LINK} && "
        "export LD_LIBRARY_PATH=~/.local/lib/tensorrt-rtx:$LD_LIBRARY_PATH, then start again",
    )
