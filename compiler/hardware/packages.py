"""Versions of this package and of the packages that builds need."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from ...plugins.optional_packages import PRODUCT, require

EXPORT_PACKAGES = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript")


def product_version() -> str:
    """Return the installed version of this package."""
    try:
        return version(PRODUCT)
    except PackageNotFoundError:
        return "unknown"


def export_versions() -> dict[str, str]:
    """Return versions of the packages for tracing. Raises ``EnvironmentProblem`` without the ``[export]`` extra."""
    require("export", "building")
    return {package: version(package) for package in EXPORT_PACKAGES}
