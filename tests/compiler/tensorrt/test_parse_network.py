"""TensorRT's parsed network compared with the graph, each in a separate process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compiler.tensorrt.small import in_child, set_attribute, written

pytest.importorskip("tensorrt_rtx", reason="needs TensorRT-RTX")

# Checks one graph, parses another (which may be the same) and prints the error.
_PARSE = """
import sys
from dataclasses import replace
from pathlib import Path
from peagle.compiler.tensorrt import callbacks, parse_network
from peagle.compiler.tensorrt.preflight import survey
from peagle.plugins.errors import PeagleError
from peagle.plugins.tensorrt import import_tensorrt, register
from tests.compiler.tensorrt.small import profiles

good, path, registered = sys.argv[1:]
found = survey(Path(good), ("sm_120",), profiles())
found = replace(found, graph=replace(found.graph, path=Path(path)))
trt = import_tensorrt.load("tensorrt-rtx")
if registered == "registered":
    register.register(trt)
log = callbacks.Log()
logger = callbacks.logger(trt, log)
try:
    parsed = parse_network.parse(trt, trt.Builder(logger), logger, log, found)
    print(parse_network.cast_mismatched_types("tensorrt", parsed, Path(path)))
    parse_network.cast_mismatched_types("tensorrt-rtx", parsed, Path(path))
    print(dict(parsed.layers))
except PeagleError as error:
    print(error)
"""


def _said(folder: Path, spoil: Callable[..., None] | None = None, registered: str = "registered") -> str:
    (folder / "good").mkdir()
    (folder / "other").mkdir()
    good = written(folder / "good")
    other = written(folder / "other", spoil) if spoil else good
    return in_child(_PARSE, str(good), str(other), registered)


def test_a_good_graph_has_its_layers(tmp_path: Path) -> None:
    said = _said(tmp_path)
    assert all(part in said for part in ("'PLUGIN_V3': 1", "'KV_CACHE_UPDATE': 1", "'ATTENTION_INPUT': 1"))


def test_unregistered_plugin_is_named(tmp_path: Path) -> None:
    said = _said(tmp_path, registered="not registered")
    assert "there is no plugin for AcceptPrefix: TensorRT would use the function body instead" in said


def _use_a_body_that_parses(made: object) -> None:
    """Without its mark, the node becomes its function body, which TensorRT's parser accepts without a message."""
    import onnx

    set_attribute("accept", "plugin_namespace", None)(made)  # type: ignore[arg-type]
    assert isinstance(made, onnx.ModelProto)
    names = ", ".join(made.functions[0].input)
    body = (
        "best = ArgMax <axis = -1, keepdims = 0> (logits)\n tokens = Cast <to = 6> (best)\n"
        "num_tokens = Identity (window_len)"
    )
    text = f'<domain: "peagle", opset_import: ["" : 24]> AcceptPrefix ({names}) => (tokens, num_tokens) {{ {body} }}'
    made.functions[0].CopyFrom(onnx.parser.parse_function(text))


def test_a_silent_fallback_to_the_body_is_explained(tmp_path: Path) -> None:
    said = _said(tmp_path, _use_a_body_that_parses)
    assert (
        "0 PLUGIN_V3 layers, but the graph has nodes for 1 (AcceptPrefix): the function body was used instead" in said
    )
    assert "plugin_namespace" in said


def _no_scatter(made: object) -> None:
    """The cache is what it was: a graph that parses, and has no layer for an update."""
    for node in made.graph.node:  # type: ignore[attr-defined]
        if node.op_type == "TensorScatter":
            node.op_type = "Identity"
            del node.input[1:], node.attribute[:]


def test_layer_count_mismatch_stops_rtx_and_warns_on_tensorrt(tmp_path: Path) -> None:
    warned, _, refused = _said(tmp_path, _no_scatter).partition("\n")
    assert "0 KV_CACHE_UPDATE layers, but the graph has nodes for 1" in warned
    assert "TensorRT may use other names than" in warned
    assert "TensorRT parsed" in refused
    assert "0 KV_CACHE_UPDATE layers, but the graph has nodes for 1" in refused


def _one_more_output(made: object) -> None:
    made.graph.output.append(made.graph.value_info[0])  # type: ignore[attr-defined]


def _other_columns(made: object) -> None:
    for value in made.graph.input:  # type: ignore[attr-defined]
        if value.name == "mask":
            value.type.tensor_type.shape.dim[1].dim_value = 2


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_one_more_output, ("the outputs are", "logits")),
        (_other_columns, ("input mask has shape (-1, 2, -1, 16), not ('B', 1, 'S', 16)",)),
    ],
)
def test_a_difference_is_explained(spoil: Callable[..., None], words: tuple[str, ...], tmp_path: Path) -> None:
    said = _said(tmp_path, spoil)
    assert all(word in said for word in words), said
