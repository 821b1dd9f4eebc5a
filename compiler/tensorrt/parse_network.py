"""Parse an ONNX file to a TensorRT network, and verify that the parser kept its meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...engines.folder.records import PlanTensor
from ...plugins.errors import BuildError
from ...plugins.number_types import tensorrt_name
from ...plugins.op_spec import SELECTION
from ...plugins.tensorrt.errors import clear, last
from ...plugins.tensorrt.products import FULL_TENSORRT, PRODUCTS, TENSORRT_RTX
from ...plugins.tensorrt.register import find_creator
from .callbacks import Log
from .lowered_graph import Value
from .preflight import Survey

_PLUGIN = "PLUGIN_V3"
_FIX = (
    f"check the versions with `peagle-compile doctor`: {FULL_TENSORRT.title} must be {FULL_TENSORRT.since} or newer, "
    f"{TENSORRT_RTX.title} {TENSORRT_RTX.since} or newer"
)


@dataclass(frozen=True)
class Parsed:
    """A network with its parser, which maps the weights and must outlive the build. ``layers`` counts by type.

    ``unlike`` lists layer types whose count differs from the graph's nodes.
    """

    network: Any
    parser: Any
    layers: Mapping[str, int]
    tensors: tuple[PlanTensor, ...]
    unlike: tuple[str, ...] = ()


def parse(trt: Any, builder: Any, logger: Any, log: Log, survey: Survey) -> Parsed:
    """Parse ``survey.graph`` strongly typed. Raises ``BuildError`` unless all plugins and tensors match the survey."""
    path = survey.graph.path
    network = builder.create_network(_flags(trt))
    parser = trt.OnnxParser(network, logger)
    _require_operators(trt, parser, survey)
    clear()
    if not parser.parse_from_file(str(path)):
        faults = [_fault(parser.get_error(i)) for i in range(parser.num_errors)]
        raise BuildError(
            f"TensorRT cannot parse {path}",
            why="; ".join(filter(None, [plugin_problem(), *faults])) or log.last() or "TensorRT gave no reason",
            fix=_FIX,
        )
    layers = Counter(network.get_layer(i).type.name for i in range(network.num_layers))
    inputs = [network.get_input(i) for i in range(network.num_inputs)]
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    problems = [
        *_plugin_problems(layers, survey),
        *_tensor_problems("input", inputs, survey.graph.inputs),
        *_tensor_problems("output", outputs, survey.graph.outputs),
    ]
    if problems:
        raise _wrong_network(path, problems)
    return Parsed(
        network,
        parser,
        dict(layers),
        tuple(_tensor(tensor) for tensor in (*inputs, *outputs)),
        tuple(
            f"{layers[kind]} {kind} layers, but the graph has nodes for {count}"
            for kind, count in survey.layers.items()
            if kind != _PLUGIN and layers[kind] != count
        ),
    )


def cast_mismatched_types(product: str, parsed: Parsed, path: Path) -> list[str]:
    """Return warnings if the numbers of layers differ from the graph.

    Raises ``BuildError`` for a product whose layer types are known. Those of the full TensorRT are not: another name is
    not an error there, and the check of number types relies on matmuls, not on layers.
    """
    if not parsed.unlike:
        return []
    if PRODUCTS[product].has_known_layers:
        raise _wrong_network(path, parsed.unlike)
    return [
        f"in the {path.parent.name} plan, TensorRT has {'; '.join(parsed.unlike)}: TensorRT may use other names "
        f"than TensorRT-RTX, or may have split nodes, which costs speed; `peagle-compile verify` compares the results"
    ]


def _wrong_network(path: Path, problems: Sequence[str]) -> BuildError:
    return BuildError(
        f"TensorRT parsed {path} incorrectly",
        why="; ".join(problems),
        fix="build the engine again with --force; if the error persists, this version of TensorRT is not supported",
    )


def plugin_problem() -> str:
    """Return the last error of this project's plugins, which TensorRT's own message does not include."""
    error = last()
    return " ".join(filter(None, (error.what, error.why))) if error else ""


def require_layers(layers: Mapping[str, int], expected: Mapping[str, int] | None) -> None:
    """Compare a network with required layer counts. Raises ``BuildError``."""
    wrong = [
        f"{kind}: {layers.get(kind, 0)}, not {n}" for kind, n in (expected or {}).items() if layers.get(kind, 0) != n
    ]
    if wrong:
        raise BuildError("the network does not have the expected layers", why="; ".join(wrong), fix=_FIX)


def _flags(trt: Any) -> int:
    """Return the flags of a strongly typed network, for versions that have other kinds."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _require_operators(trt: Any, parser: Any, survey: Survey) -> None:
    problems = [
        f"there is no plugin for {name}: TensorRT would use the function body instead"
        for name in survey.plugins
        if find_creator(trt, name) is None
    ]
    unknown = [op_type for op_type in survey.others if not parser.supports_operator(op_type)]
    problems += [f"the parser of this version does not know {', '.join(unknown)}"] if unknown else []
    if problems:
        raise BuildError(
            f"TensorRT {trt.__version__} does not support {survey.graph.path}",
            why="; ".join(problems),
            fix=_FIX,
        )


def _fault(error: Any) -> str:
    node = f"{error.node_operator()} {error.node_name()!r}: " if error.node_name() else ""
    return node + " ".join(error.desc().split())


def _plugin_problems(layers: Mapping[str, int], survey: Survey) -> Iterator[str]:
    count, expected = layers.get(_PLUGIN, 0), survey.layers[_PLUGIN]
    if count == expected:
        return
    text = f"{count} {_PLUGIN} layers, but the graph has nodes for {expected}"
    if count < expected:
        text += (
            f" ({', '.join(survey.plugins)}): the function body was used instead, which TensorRT does silently "
            f"if {' and '.join(SELECTION)} of a node match no plugin"
        )
    yield text


def _tensor_problems(kind: str, tensors: list[Any], expected: tuple[Value, ...]) -> Iterator[str]:
    names, expected_names = [tensor.name for tensor in tensors], [value.name for value in expected]
    if names != expected_names:
        yield f"the {kind}s are {', '.join(names)}, not {', '.join(expected_names)}"
        return
    for tensor, value in zip(tensors, expected, strict=True):
        dtype, shape = tensorrt_name(tensor.dtype), tuple(tensor.shape)
        if value.dtype and dtype != value.dtype:
            yield f"{kind} {value.name} is {dtype}, not {value.dtype}"
        if value.shape is not None and shape != tuple(dim if isinstance(dim, int) else -1 for dim in value.shape):
            yield f"{kind} {value.name} has shape {shape}, not {value.shape}"


def _tensor(tensor: Any) -> PlanTensor:
    return PlanTensor(tensor.name, tensorrt_name(tensor.dtype), tuple(tensor.shape))
