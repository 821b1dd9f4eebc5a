"""The table of ops is complete, imports no heavy libraries, and has the required types."""

from __future__ import annotations

import subprocess
import sys

import pytest

from peagle.plugins.errors import BuildError
from peagle.plugins.ops import OPS


def test_ops_are_found_by_name_and_describe_every_operand() -> None:
    plugins = {"AcceptPrefix", "AcceptTree", "CacheWriteFp8", "CloseUp", "GrowTree", "Mxfp4Down", "Mxfp4GateUp"}
    plugins |= {"NumbersAt", "PlaceholderDraft"}
    assert {op.name for op in OPS.values() if op.kernel} == plugins
    on_a_cpu = {"AcceptTree", "CachedAttention", "QuantizedEmbedding", "QuantizedExperts", "QuantizedLinear"}
    on_a_cpu |= {"WideEmbedding", "WideExperts", "WideLinear"}
    assert {op.name for op in OPS.values() if op.cpu_cases} == on_a_cpu | {"PlaceholderDraft"}
    assert {*OPS} == plugins | on_a_cpu | {"MicroscaledRound", "SparseExperts"}
    for name, op in OPS.items():
        assert op.name == name
        assert op.doc
        assert all(operand.doc for operand in (*op.inputs, *op.outputs))
        assert all(attribute.doc for attribute in op.attributes)
        names = {operand.name for operand in op.inputs}
        assert {o.aliases for o in op.outputs if o.aliases} <= names
        assert {o.same_as for o in (*op.inputs, *op.outputs) if o.same_as} <= names


def test_the_ops_load_without_heavy_libraries() -> None:
    code = "import sys, peagle.plugins; print({'torch', 'onnx', 'onnxruntime', 'ml_dtypes'} & set(sys.modules))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "set()"


def test_caches_accept_query_types_or_codes() -> None:
    attention = OPS["CachedAttention"]
    rest = ["float16", "float16"]
    for cache in ("float16", "float8e4m3fn"):
        assert attention.infer_dtypes(["float16", *rest, cache, cache, "int64"])[1:] == [cache, cache]
    with pytest.raises(BuildError, match="k_cache must be float16 or float8e4m3fn"):
        attention.infer_dtypes(["float16", *rest, "float32", "float32", "int64"])
