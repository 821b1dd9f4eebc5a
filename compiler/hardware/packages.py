"""The packages that this product is and that its builds need, with their installed versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...plugins.errors import EnvironmentProblem

EXPORT_PACKAGES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")


def product_version() -> str:
    """The version of this package, where it is installed."""
    try:
        return version("peagle-compile")
    except PackageNotFoundError:
        return "unknown"


def export_versions() -> dict[str, str]:
    """Versions of the packages that trace. Raises ``EnvironmentProblem`` when the ``[export]`` extra is absent."""
    versions, missing = {}, []
    for package in EXPORT_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            missing.append(package)
    if missing:
        raise EnvironmentProblem(
            f"building needs packages that are not installed: {', '.join(missing)}",
            why="the base installation only runs engines",
            fix="pip install 'peagle-compile[export]'",
        )
    return versions
