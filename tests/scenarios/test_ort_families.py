"""INT4 and INT8 targets of every family on ONNX Runtime, compared with the dequantized codes."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from peagle.compiler.console.progress import Quiet
from peagle.compiler.pipeline import graph_stages
from peagle.compiler.pipeline.component import target_component
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.store.stages import StageStore
from peagle.graphs import graph_files
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.quantization import products_of
from peagle.graphs.targets import TargetSpec
from tests.graphs.quantized_graphs import with_wide_inputs
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE
from tests.models import BLOCKED, LAYERS, VOCAB, make_pair

SPARSE = ("qwen3-moe", "gpt-oss")  # their usual tiny experts are too narrow for the kernels


@dataclass(frozen=True)
class Narrow:
    """A family's target in a precision, with and without kernels of ONNX Runtime's."""

    spec: TargetSpec
    compiled: Callable[[str, str], graph_stages.Compiled]


@pytest.fixture(scope="session")
def narrow_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Narrow]:
    @cache
    def make(family: str) -> Narrow:
        folder = tmp_path_factory.mktemp(f"{family}-integers")
        sizes = {"sizes": BLOCKED} if family in SPARSE else {}
        target = make_pair(folder, family, **sizes).opened()  # with the taps of its head, as builds trace it

        @cache
        def compiled(precision: str, lowering: str) -> graph_stages.Compiled:
            kept = StageStore.default()
            half = target_component(target, RECIPES[precision].on("fp32", LOWERINGS["ort"]), LOWERINGS["ort"])
            stage = graph_stages.trace(kept, half, "float32", Quiet())
            return graph_stages.attach(
                kept, half, stage, lowering=LOWERINGS[lowering], cache_length=CACHE, progress=Quiet()
            )

        return Narrow(target.spec, compiled)

    return make


SLOW = ("llama", "gemma-4", "gpt-oss")


@pytest.mark.parametrize("precision", ["int4", "int8"])
@pytest.mark.parametrize(
    "family", ["qwen3", "qwen3-moe", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)]
)
def test_family_matches_its_dequantized_weights(
    family: str,
    precision: str,
    narrow_of: Callable[[str], Narrow],
    rng: np.random.Generator,
    tmp_path: Path,
) -> None:
    narrow = narrow_of(family)
    ort, std = narrow.compiled(precision, "ort"), narrow.compiled(precision, "std")
    assert ort.precision is not None
    assert ort.precision["share"] == 1
    found = Counter(each["op"] for each in ort.precision["matmuls"] if each["stored"] == precision)
    assert found["MatMulNBits"] >= 2 * LAYERS  # q+k+v and o
    assert (found["QMoE"] > 0) == (family in SPARSE)
    spec, ids = narrow.spec, rng.integers(2, VOCAB, (1, 12))
    window = target_inputs(ids, 0, 11, 12)
    ir.save(with_wide_inputs(graph_files.load(ort.attached.path / graph_stages.MODEL)), tmp_path / "exact.onnx")
    shutil.copy(ort.attached.path / f"{graph_stages.MODEL}.data", tmp_path)
    files = (ort.attached.path / graph_stages.MODEL, tmp_path / "exact.onnx", std.attached.path / graph_stages.MODEL)
    fast, exact, theirs = (Graph(file, spec.caches, CACHE)(**window)["logits"] for file in files)
    if found["QMoE"] and precision == "int8":  # whose inputs that kernel rounds whatever it is told
        assert np.linalg.norm(exact - theirs) / np.linalg.norm(theirs) < 0.05
    else:
        np.testing.assert_allclose(exact, theirs, atol=1e-4)
    assert 0 < np.linalg.norm(fast - theirs) / np.linalg.norm(theirs) < 0.25  # Gemma's logits move most
    semantic = graph_files.load(ort.attached.path / graph_stages.SEMANTIC)
    names = [each["weight"].split("+") for each in ort.precision["matmuls"] if each["stored"] == precision]
    assert {each.weight for each in products_of(semantic) if each.stored == precision} == {
        n for each in names for n in each
    }
