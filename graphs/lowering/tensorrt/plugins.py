"""How a node says that TensorRT shall take our plugin and not the function body that ONNX Runtime runs."""

from __future__ import annotations

import onnx_ir as ir

from ....plugins.spec import DOMAIN, VERSION

SELECTION = {"plugin_namespace": DOMAIN, "plugin_version": str(VERSION)}


def select(model: ir.Model) -> None:
    """Mark every node of our domain. Without the mark the body wins, with it and without the plugin again the body."""
    for node in model.graph.all_nodes():
        if node.domain == DOMAIN:
            for name, value in SELECTION.items():
                node.attributes[name] = ir.AttrString(name, value)
