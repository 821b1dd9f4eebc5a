"""Optional dependencies: which packages of an extra are installed, and the command that installs them."""

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

# Extra -> imported module -> distribution; pyproject.toml has the version ranges.
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


def is_installed(module: str) -> bool:
    """Return True if a module can be found; a folder of that name on the path does not count."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):  # its parent is missing, or an import hook blocks it
        return False
    return spec is not None and spec.origin is not None


def require(extra: str, feature: str, *modules: str) -> None:
    """Raise ``EnvironmentProblem`` with the install command of ``extra`` if ``feature`` lacks packages of it.

    ``modules`` limits the check to those modules.
    """
    needed = EXTRAS[extra] if not modules else {module: EXTRAS[extra][module] for module in modules}
    if absent := [name for module, name in needed.items() if not is_installed(module)]:
        raise _not_installed(extra, absent, feature)


def typed(error: ImportError) -> EnvironmentProblem | None:
    """Return the user-facing error for a failed import; None if the module belongs to no extra."""
    name = error.name or ""
    # If two extras contain the module, choose the one that is more completely installed.
    by_installed = sorted(EXTRAS, key=lambda extra: -sum(map(is_installed, EXTRAS[extra])))
    for extra, modules in ((extra, EXTRAS[extra]) for extra in by_installed):
        for module, distribution in modules.items():
            if name == module or name.startswith(f"{module}."):
                if not is_installed(module):
                    return _not_installed(extra, [distribution], "this")
                return EnvironmentProblem(
                    f"the installed {distribution} cannot be imported",
                    why=" ".join(str(error).split()),
                    fix=f"run `{install(extra)}`",
                )
    return None


def _not_installed(extra: str, absent: Sequence[str], feature: str) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{feature} needs packages that are not installed: {', '.join(absent)}",
        why=f"these packages belong to the extra [{extra}]; the base installation only runs engines on a CPU",
        fix=f"run `{install(extra)}`",
    )


def install(*extras: str, again: bool = False) -> str:
    """Return the command that adds extras to this installation, however it was made; ``again`` reinstalls."""
    options = "--force-reinstall " if again else ""
    return f"{_pip()} install {options}{_requirement(extras)}"


def install_to_build(extra: str) -> str:
    """Return the command that adds an extra, and the build dependencies if they are missing."""
    return install(*(["export"] if not all(map(is_installed, EXTRAS["export"])) else []), extra)


def upgrade() -> str:
    """Return how to upgrade this installation, as a phrase that follows ``or``."""
    folder, editable = _folder()
    if folder is None:
        return f"`{_pip()} install --upgrade {PRODUCT}`"
    return f"update {folder}" + ("" if editable else f", then `{_pip()} install {_quoted(str(folder))}`")


def _pip() -> str:
    """Return the pip command that changes this installation."""
    found = shutil.which("pip")
    bin_folder = Path(sys.executable).parent
    return "pip" if found and Path(found).parent == bin_folder else f"{shlex.quote(sys.executable)} -m pip"


def _requirement(extras: Sequence[str]) -> str:
    """Return pip's requirement: the origin of this installation, or the extra's packages if that is gone."""
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
    """Return the checkout that this was installed from or runs in, if any, and whether the install is editable."""
    origin = _origin()
    about = origin.get("dir_info")
    if isinstance(about, dict) and (folder := _path(str(origin["url"]))).is_dir():
        return folder, bool(about.get("editable"))
    if not origin and not _is_installed() and (_ROOT / "pyproject.toml").is_file():
        return _ROOT, True
    return None, False


def _origin() -> dict[str, object]:
    """Return pip's record of this installation's origin; empty for an install from an index."""
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
    """Return the requirements of extras from this installation's metadata."""
    extra_marker = re.compile(rf"extra\s*==\s*['\"]({'|'.join(extras)})['\"]")
    lines = (line.partition(";") for line in metadata.requires(PRODUCT) or [])
    return list(dict.fromkeys(name.strip() for name, _, marker in lines if extra_marker.search(marker)))


def _path(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _quoted(text: str) -> str:
    """Quote ``text`` as one shell word, in quotes that show where it ends."""
    return "'" + text.replace("'", "'\"'\"'") + "'"
