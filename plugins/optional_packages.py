"""The packages that an extra brings, which need not be there: whether they are, and the line that installs them."""

from __future__ import annotations

import importlib.util
import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .errors import EnvironmentProblem

PRODUCT = "peagle-compile"

# Extra -> module that is imported -> distribution that has it; pyproject.toml says of which versions.
EXTRAS: Mapping[str, Mapping[str, str]] = {
    "export": {
        "torch": "torch", "transformers": "transformers", "onnx": "onnx", "onnx_ir": "onnx-ir",
        "onnxscript": "onnxscript", "ml_dtypes": "ml-dtypes", "safetensors": "safetensors",
        "huggingface_hub": "huggingface-hub", "gguf": "gguf",
    },
    "cpu": {"ziglang": "ziglang"},
    "rtx": {"tensorrt_rtx": "tensorrt-rtx", "cuda.core": "cuda-core", "cuda.bindings": "cuda-bindings"},
    "tensorrt": {"tensorrt": "tensorrt", "cuda.core": "cuda-core", "cuda.bindings": "cuda-bindings"},
    "grammar": {"llguidance": "llguidance"},
    "serve": {
        "msgspec": "msgspec", "prometheus_client": "prometheus-client", "starlette": "starlette", "uvicorn": "uvicorn",
    },
}  # fmt: skip
_ROOT = Path(__file__).resolve().parent.parent


def is_there(module: str) -> bool:
    """Whether a module can be found; a folder of that name that happens to lie on the path is no package."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # its parent is absent, or it is kept from being imported
        return False
    return spec is not None and spec.origin is not None


def require(extra: str, what: str, *modules: str) -> None:
    """Raise ``EnvironmentProblem`` with the line that installs ``extra``, where ``what`` lacks packages of it.

    ``modules`` are those that it needs, where it does not need all.
    """
    needed = EXTRAS[extra] if not modules else {module: EXTRAS[extra][module] for module in modules}
    if absent := [name for module, name in needed.items() if not is_there(module)]:
        raise _not_installed(extra, absent, what)


def typed(error: ImportError) -> EnvironmentProblem | None:
    """What a failed import says to a user; None where the module is none of an extra's."""
    name = error.name or ""
    # Of two extras that have the module, the one of which more is there.
    by_what_is_there = sorted(EXTRAS, key=lambda extra: -sum(map(is_there, EXTRAS[extra])))
    for extra, modules in ((extra, EXTRAS[extra]) for extra in by_what_is_there):
        for module, distribution in modules.items():
            if name == module or name.startswith(f"{module}."):
                if not is_there(module):
                    return _not_installed(extra, [distribution], "this")
                return EnvironmentProblem(
                    f"{distribution} cannot be used as it is installed",
                    why=" ".join(str(error).split()),
                    fix=install(extra),
                )
    return None


def _not_installed(extra: str, absent: Sequence[str], what: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{what} needs packages that are not installed: {', '.join(absent)}",
        why=f"they belong to the extra [{extra}]; the base installation only runs engines on a CPU",
        fix=install(extra),
    )


def install(*extras: str, again: bool = False) -> str:
    """The command that adds extras to this installation, however it was made; ``again`` replaces what is there."""
    options = "--force-reinstall " if again else ""
    return f"{_pip()} install {options}{_requirement(extras)}"


def install_to_build(extra: str) -> str:
    """The command that adds an extra, and what every build needs where that is absent too."""
    return install(*(["export"] if not all(map(is_there, EXTRAS["export"])) else []), extra)


def upgrade() -> str:
    """How a newer version of this installation is had, in words that follow ``or``."""
    folder, editable = _folder()
    if folder is None:
        return f"`{_pip()} install --upgrade {PRODUCT}`"
    return f"update {folder}" + ("" if editable else f", then `{_pip()} install {_quoted(str(folder))}`")


def _pip() -> str:
    """Pip as it must be called to change this installation and no other."""
    found = shutil.which("pip")
    beside = Path(sys.executable).parent
    return "pip" if found and Path(found).parent == beside else f"{shlex.quote(sys.executable)} -m pip"


def _requirement(extras: Sequence[str]) -> str:
    """What pip is to be told: where this installation came from, or where that is gone the extra's own packages."""
    extra = ",".join(extras)
    folder, editable = _folder()
    if folder is not None:
        return ("-e " if editable else "") + _quoted(f"{folder}[{extra}]")
    origin = _origin()
    url = str(origin.get("url", ""))
    if not url:
        return _quoted(f"{PRODUCT}[{extra}]")
    if url.startswith("file:"):
        wheel = _path(url)
        return _quoted(f"{wheel}[{extra}]") if wheel.exists() else " ".join(map(_quoted, _packages(extras)))
    repository = origin.get("vcs_info")
    if isinstance(repository, dict):
        url = f"{repository.get('vcs')}+{url}@{repository.get('commit_id')}"
    return _quoted(f"{PRODUCT}[{extra}] @ {url}")


def _folder() -> tuple[Path | None, bool]:
    """The checkout that this was installed from or runs in, if any, and whether it is installed editable."""
    origin = _origin()
    about = origin.get("dir_info")
    if isinstance(about, dict) and (folder := _path(str(origin["url"]))).is_dir():
        return folder, bool(about.get("editable"))
    if not origin and not _is_installed() and (_ROOT / "pyproject.toml").is_file():
        return _ROOT, True
    return None, False


def _origin() -> dict[str, object]:
    """What pip recorded of where this was installed from; nothing of what came from an index."""
    try:
        text = metadata.distribution(PRODUCT).read_text("direct_url.json")
        content = json.loads(text or "{}")
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_installed() -> bool:
    try:
        metadata.distribution(PRODUCT)
    except metadata.PackageNotFoundError:
        return False
    return True


def _packages(extras: Sequence[str]) -> list[str]:
    """The requirements of extras, as the metadata of this installation has them."""
    asked = re.compile(rf"extra\s*==\s*['\"]({'|'.join(extras)})['\"]")
    lines = (line.partition(";") for line in metadata.requires(PRODUCT) or [])
    return list(dict.fromkeys(name.strip() for name, _, marker in lines if asked.search(marker)))


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _quoted(text: str) -> str:
    """``text`` as one word of a shell, in quotes that show where it ends."""
    return "'" + text.replace("'", "'\"'\"'") + "'"
