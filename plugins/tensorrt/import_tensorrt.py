"""Import TensorRT or TensorRT-RTX, and work around a missing library name in the latter's wheel.

The ONNX parser of TensorRT-RTX opens ``libtensorrt_rtx.so`` when a graph contains a plugin, and ends the process if it
is missing; the wheel of 1.7 only has ``libtensorrt_rtx.so.1``. A symbolic link beside it fixes this, because the parser
looks in its own folder first.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Literal

from ..errors import EnvironmentProblem
from ..optional_packages import install, is_installed
from .products import PRODUCTS, TENSORRT_RTX

_LIBRARIES = "tensorrt_rtx_libs"
_LINK = "libtensorrt_rtx.so"


@dataclass(frozen=True)
class LinkState:
    """State of the library link that TensorRT-RTX needs to parse graphs with plugins.

    ``present``: the library has the name that the parser opens. ``missing``: it does not, and ``repair_link`` can help.
    ``cured``: the link was just made. ``cannot``: see ``why``. ``absent``: TensorRT-RTX is not installed as a wheel.
    """

    state: Literal["present", "missing", "cured", "cannot", "absent"]
    folder: Path | None = None
    why: str = ""

    @property
    def is_usable(self) -> bool:
        """True if the parser finds the library, or does not need the link because the installation is not a wheel."""
        return self.state in ("present", "cured", "absent")


def load(product: str, *, parser: bool = True) -> ModuleType:
    """Import ``tensorrt`` or ``tensorrt_rtx``. With ``parser``, its ONNX parser can read graphs with plugins.

    Raises ``EnvironmentProblem`` if it is not installed, fails to import, or its parser would end the process.
    """
    record = PRODUCTS[product]
    name, title = record.module, record.title
    fix = f"run `{install(record.extra)}`"
    if not is_installed(name):
        raise EnvironmentProblem(f"{title} is not installed", why=f"Python cannot find the module {name}", fix=fix)
    link = repair_link() if record.needs_link else LinkState("absent")
    if parser and not link.is_usable:
        raise _cannot(link)
    try:
        module = importlib.import_module(name)
    except Exception as error:  # a broken installation raises anything: OSError, ImportError, KeyError
        raise EnvironmentProblem(
            f"{title} cannot be imported",
            why=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}",
            fix=f"{fix}, and uninstall any other version",
        ) from error
    for interface in ("IPluginV3", "IPluginCreatorV3One", "get_plugin_registry"):
        if not hasattr(module, interface):
            version = getattr(module, "__version__", "of unknown version")
            raise EnvironmentProblem(f"{title} {version} is too old", why=f"this version has no {interface}", fix=fix)
    return module


def link_state() -> LinkState:
    """Return the state of the link, without importing TensorRT or changing anything."""
    folder = _library_folder()
    if folder is None:
        return LinkState("absent")
    if os.name != "posix" or (folder / _LINK).exists():
        return LinkState("present", folder)
    for path in filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")):
        if (Path(path) / _LINK).exists():
            return LinkState("present", Path(path))
    if _library(folder) is None:
        return LinkState("cannot", folder, f"the wheel is damaged: it has no {_LINK}.1")
    if not os.access(folder, os.W_OK):
        return LinkState("cannot", folder, "the folder is not writable")
    return LinkState("missing", folder)


def repair_link() -> LinkState:
    """Create the link if it is missing. Safe for several processes at once."""
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
    """Return environment variables with which a new process can use the parser, even if this process cannot.

    Creates a link in ``folder`` (private to the caller) if the wheel's own folder is not writable; returns an empty
    mapping if nothing is needed. Raises ``EnvironmentProblem`` if there is no library to link to.
    """
    state = repair_link()
    if state.is_usable:
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
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None


def _library(folder: Path) -> Path | None:
    """Return the library under its versioned name, the newest if there are several."""
    return max(folder.glob(f"{_LINK}.*"), key=lambda path: path.stat().st_mtime, default=None)


def _link(folder: Path, target: str) -> None:
    """Create the link atomically; replace a dangling one, which an upgrade leaves."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".link-") as private:
        link = Path(private) / _LINK
        link.symlink_to(target)
        link.replace(folder / _LINK)


def _cannot(link: LinkState) -> EnvironmentProblem:
    library = _library(link.folder) if link.folder else None
    if library is None:
        return EnvironmentProblem(
            "TensorRT-RTX cannot read graphs with peagle plugins",
            why=f"{link.folder}: {link.why}",
            fix=f"run `{install(TENSORRT_RTX.extra, again=True)}`",
        )
    return EnvironmentProblem(
        "TensorRT-RTX cannot read graphs with peagle plugins",
        why=f"TensorRT-RTX's parser opens {_LINK}, which its wheel lacks, and no link can be made in {link.folder}: "
        f"{link.why}",
        fix=f"run `mkdir -p ~/.local/lib/tensorrt-rtx && ln -sf {library} ~/.local/lib/tensorrt-rtx/{_LINK} && "
        "export LD_LIBRARY_PATH=~/.local/lib/tensorrt-rtx:$LD_LIBRARY_PATH`, then start again",
    )
