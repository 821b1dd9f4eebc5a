"""Build ONNX files and print the results; runs as a child process, because TensorRT may crash.

The argument is the product: ``tensorrt-rtx`` builds ahead of time, ``tensorrt`` for the GPU that is there. Reads a JSON
list of cases from standard input: ``model`` (a path), ``gpus``, ``profiles`` (each input name to least, usual and
greatest shape), ``ops`` (plugins to register; none if empty), or ``library`` (the path of one with plugins, and whether
the ``registry`` or the ``program`` opens it, the same in all cases). Prints one line of JSON for each.
"""

from __future__ import annotations

import ctypes
import functools
import json
import sys
from typing import Any

from peagle.plugins.ops import OPS
from peagle.plugins.tensorrt import errors, import_tensorrt
from peagle.plugins.tensorrt.register import register


def logger(trt: Any) -> Any:
    """A logger that keeps errors in ``lines``."""

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.lines: list[str] = []

        def log(self, severity: Any, text: str) -> None:
            if int(severity) <= int(trt.ILogger.ERROR):
                self.lines.append(text)

    return Logger()


def register_ops(trt: Any, names: list[str]) -> list[str]:
    """Register plugins of Python, and name them."""
    register(trt, [OPS[name] for name in names])
    return names


@functools.cache
def open_library(trt: Any, path: str, by: str) -> list[str]:
    """Open a library, and name the plugins that it brought."""
    registry = trt.get_plugin_registry()
    before = len(registry.all_creators)
    if by == "registry":
        registry.load_library(path)
    else:
        ctypes.CDLL(path)
    return [creator.name for creator in registry.all_creators[before:]]


def build(trt: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Return the result of one case: layers, inputs and outputs, plan bytes by GPU; or the errors."""
    errors.clear()
    flags = trt.NetworkDefinitionCreationFlag
    bits = 1 << int(flags.STRONGLY_TYPED) if hasattr(flags, "STRONGLY_TYPED") else 0
    plugins = open_library(trt, *case["library"]) if "library" in case else register_ops(trt, case["ops"])
    log = logger(trt)
    builder = trt.Builder(log)
    network = builder.create_network(bits)
    parser = trt.OnnxParser(network, log)
    result: dict[str, Any] = {"plugins": plugins, "parsed": bool(parser.parse_from_file(case["model"])), "plans": {}}
    if result["parsed"]:
        layers = [network.get_layer(i) for i in range(network.num_layers)]
        result["layers"] = [layer.type.name for layer in layers]
        result["tensors"] = [
            [layer.name, [[tensor.name, tensor.dtype.name, list(tensor.shape)] for tensor in tensors_of(layer)]]
            for layer in layers
        ]
        outputs = [network.get_output(i) for i in range(network.num_outputs)]
        result["outputs"] = {t.name: [t.dtype.name, list(t.shape)] for t in outputs}
        for gpu in case["gpus"]:
            result["plans"][gpu] = _plan(trt, builder, network, gpu, case["profiles"])
    error = errors.last()
    result["error"] = None if error is None else str(error)
    result["log"] = log.lines
    return result


def tensors_of(layer: Any) -> list[Any]:
    """The inputs and the outputs of a layer."""
    inputs = [layer.get_input(i) for i in range(layer.num_inputs)]
    return [tensor for tensor in inputs if tensor is not None] + [layer.get_output(i) for i in range(layer.num_outputs)]


def _plan(trt: Any, builder: Any, network: Any, gpu: str, profiles: list[dict[str, Any]]) -> str | None:
    config = builder.create_builder_config()
    if gpu != "present":
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, gpu), 0)
    config.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    for shapes in profiles:
        profile = builder.create_optimization_profile()
        for name, (least, usual, most) in shapes.items():
            profile.set_shape(name, least, usual, most)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    return None if plan is None else bytes(plan).hex()


if __name__ == "__main__":
    loaded = import_tensorrt.load("tensorrt" if sys.argv[1] == "tensorrt" else "tensorrt-rtx")
    for each in json.load(sys.stdin):
        print(json.dumps(build(loaded, each)), flush=True)
