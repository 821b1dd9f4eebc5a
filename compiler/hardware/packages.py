"""The packages that this product is and that its builds need, with their installed versions."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...plugins.optional_packages import PRODUCT, require

EXPORT_PACKAGES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")


def product_version() -> str:
    """The version of this package, where it is installed."""
    try:
        return version(PRODUCT)
    except PackageNotFoundError:
        return "unknown"


def export_versions() -> dict[str, str]:
    """Versions of the packages that trace. Raises ``EnvironmentProblem`` when the ``[export]`` extra is absent."""
    require("export", "building")
    return {package: version(package) for package in EXPORT_PACKAGES}
