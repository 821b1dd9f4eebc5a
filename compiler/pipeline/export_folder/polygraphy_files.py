"""Files for Polygraphy next to each graph of an export for TensorRT: scripts, and the shapes of the profiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....engines.folder.records import Profile
from ...tensorrt.lowered_graph import LoweredGraph
from ...tensorrt.node_rules import dim_at, profile_sizes

SHAPES = "shapes.json"


def shapes_of(graph: LoweredGraph, profiles: Sequence[Profile], gpus: Sequence[str], vocab_size: int) -> dict[str, Any]:
    """Return the content of ``shapes.json``: minimum, optimum and maximum of every dynamic input, by profile.

    ``gpus`` (``sm_120``) are those that TensorRT-RTX builds for; ``vocab_size`` bounds token ids.
    """
    varying = [value for value in graph.inputs if any(isinstance(dim, str) for dim in value.shape or ())]
    shapes = {
        profile.name: {
            value.name: [
                [dim_at(dim, profile_sizes(profile, index)) for dim in value.shape or ()] for index in range(3)
            ]
            for value in varying
        }
        for profile in profiles
    }
    return {"gpus": list(gpus), "vocab_size": vocab_size, "profiles": shapes}


_DATA_LOADER = '''\
"""Inputs of the graph in this folder, for Polygraphy: --data-loader-script data_loader.py."""

import json
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
SHAPES = json.loads((HERE / "shapes.json").read_bytes())
SIZES = {"B": 1, "S": 4, "E": 5, "A": 4, "R": SHAPES["profiles"]["verify"]["positions"][0][0]}


def load_data():
    """Yield one window of a new request: random ids, empty caches, greedy decoding."""
    vocabulary = SHAPES["vocab_size"]
    rng = np.random.default_rng(0)
    feed = {}
    for each in json.loads((HERE / "graph.json").read_bytes())["inputs"]:
        name, shape = each["name"], [SIZES.get(dim, dim) for dim in each["shape"]]
        if each["dtype"] in ("bfloat16", "float8e4m3fn"):
            raise SystemExit("Polygraphy and NumPy do not support " + each["dtype"] + ": export with --precision fp16")
        if name in ("input_ids", "tokens"):
            value = rng.integers(0, vocabulary, shape)
        elif name == "uniform":
            value = rng.random(shape)
        elif name == "aux_hidden":
            value = rng.standard_normal(shape)
        elif name == "positions":
            value = np.arange(SIZES["R"])
        else:
            constants = {"window_len": SIZES["S"], "num_tokens": 1, "forced_next": -1, "top_p": 1}
            value = np.full(shape, constants.get(name, 0))
        feed[name] = value.astype(each["dtype"])
    yield feed
'''

_LOAD_NETWORK = '''\
"""The network of the graph in this folder, with peagle-compile's plugins registered, for Polygraphy.

polygraphy convert load_network.py --model-type=trt-network-script --trt-config-script load_config.py -o model.plan
With POLYGRAPHY_USE_TENSORRT_RTX=1, TensorRT-RTX builds the plan, which needs no GPU.
"""

from pathlib import Path

from polygraphy import config
from polygraphy.backend.trt import get_trt_logger

from peagle.plugins.tensorrt import import_tensorrt, register

HERE = Path(__file__).resolve().parent
PRODUCT = "tensorrt-rtx" if config.USE_TENSORRT_RTX else "tensorrt"


def load_network():
    """Return a builder, the network and its parser."""
    trt = import_tensorrt.load(PRODUCT)
    register.register(trt)
    builder = trt.Builder(get_trt_logger())
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = trt.OnnxParser(network, get_trt_logger())
    if not parser.parse_from_file(str(HERE / "model.onnx")):
        raise SystemExit("; ".join(parser.get_error(i).desc() for i in range(parser.num_errors)))
    return builder, network, parser
'''

_LOAD_CONFIG = '''\
"""Builder configuration of the network in this folder: profiles, GPUs, flags."""

import json
from pathlib import Path

from polygraphy import config
from peagle.plugins.tensorrt import import_tensorrt

HERE = Path(__file__).resolve().parent
PRODUCT = "tensorrt-rtx" if config.USE_TENSORRT_RTX else "tensorrt"


def load_config(builder, network):
    """Return a configuration with the profiles of shapes.json and the GPUs that TensorRT-RTX builds for."""
    trt = import_tensorrt.load(PRODUCT)
    shapes = json.loads((HERE / "shapes.json").read_bytes())
    settings = builder.create_builder_config()
    settings.set_preview_feature(trt.PreviewFeature.ALIASED_PLUGIN_IO_10_03, True)
    if config.USE_TENSORRT_RTX:
        gpus = shapes["gpus"] or ["sm_120"]
        settings.num_compute_capabilities = len(gpus)
        for index, gpu in enumerate(gpus):
            name = gpu.replace("sm_", "SM")
            settings.set_compute_capability(getattr(trt.ComputeCapability, name), index)
        settings.set_flag(trt.BuilderFlag.REQUIRE_USER_ALLOCATION)
    for inputs in shapes["profiles"].values():
        profile = builder.create_optimization_profile()
        for name, (minimum, optimum, maximum) in inputs.items():
            profile.set_shape(name, minimum, optimum, maximum)
        settings.add_optimization_profile(profile)
    return settings
'''

SCRIPTS = {"data_loader.py": _DATA_LOADER, "load_network.py": _LOAD_NETWORK, "load_config.py": _LOAD_CONFIG}
