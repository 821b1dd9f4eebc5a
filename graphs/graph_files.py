"""Semantic graphs as files, stored between stages: structure only, with the names of the weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def save(model: ir.Model, path: Path) -> None:
    """Write ``model`` to ``path`` (an ``.onnx`` file readable in Netron; the external file it names does not exist)."""
    import onnx
    import onnx_ir as ir

    onnx.save_model(ir.to_proto(model), path)


def load(path: Path) -> ir.Model:
    """Read a graph written by ``save``."""
    import onnx
    import onnx_ir as ir

    return ir.from_proto(onnx.load_model(path, load_external_data=False))
