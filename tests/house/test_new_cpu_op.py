"""A new op with a CPU kernel requires its folder, the rule that creates its node, and one line for each.

``GatedSilu`` is defined in here, and nothing of the product knows it. ``docs/extend.md`` shows the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnxscript.rewriter import RewriteRuleClassBase, RewriteRuleSet

from peagle.engines import Engine, SamplingParams
from peagle.graphs.fused_region_program import steps_of
from peagle.graphs.lowering import cpu as lowering
from peagle.plugins.cpu import compile, self_test, sources
from peagle.plugins.op_spec import DOMAIN, CpuCase, Operand, OpSpec
from peagle.plugins.ops import OPS
from tests.fixtures.stages import cache_with_the_traces
from tests.models import Pair

pytestmark = pytest.mark.begins_first

Run = Callable[..., Any]


def gated_silu(gate: np.ndarray, up: np.ndarray) -> tuple[np.ndarray]:
    """Return y, float32 [..., N]: the input of an MLP's last matrix product."""
    return (gate / (1 + np.exp(-gate)) * up,)


def body(attributes: Mapping[str, Any], present: frozenset[str]) -> str:
    """The text of the ONNX model-local function, for sessions without the kernel."""
    del attributes, present
    return """<opset_import: ["" : 24], domain: "peagle">
GatedSilu (gate, up) => (y) {
  open = Sigmoid(gate)
  gated = Mul(gate, open)
  y = Mul(gated, up)
}"""


def cpu_cases() -> Iterator[CpuCase]:
    """Yield the inputs on which the kernel is tested wherever it is compiled."""
    rng = np.random.default_rng(0)
    gate, up = rng.normal(size=(2, 3, 37)).astype(np.float32)
    yield CpuCase((gate, up), tolerance=1e-6)


SPEC = OpSpec(
    name="GatedSilu",
    doc="Multiply ``up`` by the SiLU of ``gate``.",
    inputs=(Operand("gate", ("...", "N"), ("float32",)), Operand("up", ("...", "N"), ("float32",))),
    outputs=(Operand("y", ("...", "N"), ("float32",)),),
    reference=gated_silu,
    body=body,
    cpu_cases=cpu_cases,
    in_fused_regions=True,
)

KERNEL = """\
#include "kernel.h"
#include "elementary.h"

namespace peagle {

class GatedSilu : public Kernel {
 public:
  GatedSilu(const GatedSiluAttributes&, const Node&) {}
  bool is_token_wise() const override { return true; }
  void shapes(const Inputs& inputs, Shape* outputs) const override { outputs[0] = inputs[0].shape; }
  std::unique_ptr<Run> start(const Inputs& inputs, const Outputs& outputs) const override {
    return std::unique_ptr<Run>(new Made(inputs, outputs[0]));
  }

 private:
  struct Made : Run {
    Made(const Inputs& inputs, const Tensor& y) : gate(inputs[0]), up(inputs[1]), y(y), n(y.shape.last()) {}
    int phases() const override { return 1; }
    std::size_t pieces(int) const override { return n ? std::size_t(y.shape.count() / n) : 0; }
    Tokens tokens(int) const override { return Tokens::kRows; }
    void work(int, std::size_t token) override {
      const float* a = gate.data<const float>() + token * n;
      const float* b = up.data<const float>() + token * n;
      float* out = y.data<float>() + token * n;
      for (std::int64_t i = 0; i < n; i++) out[i] = a[i] * (1.0f / (1.0f + exponential(-a[i]))) * b[i];
    }
    const Tensor gate, up, y;
    const std::int64_t n;
  };
};

}  // namespace peagle
"""


class GatedSilu(RewriteRuleClassBase):
    """``gate * sigmoid(gate) * up`` -> ``GatedSilu``."""

    def pattern(self, op: Any, gate: Any, up: Any) -> Any:
        return op.Mul(op.Mul(gate, op.Sigmoid(gate)), up)

    def rewrite(self, op: Any, gate: Any, up: Any) -> Any:
        return op.GatedSilu(gate, up, _domain=DOMAIN)


def try_new_op(library: Path) -> str:
    """Test the op's own cases. A process that does not know the op would test all others, slow without optimization."""
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    for case in cpu_cases():
        self_test._check_op(onnxruntime, options, SPEC, case)
    return self_test.instructions_of(library)


@contextmanager
def registered() -> Iterator[None]:
    """The two lines that a new op costs: it is listed among the ops, and its rule among those of the lowering.

    The op's folder is this one. A kernel in a folder of each run would be compiled in each run, as its path is part of
    the source.
    """
    text = sources._text
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(OPS, "GatedSilu", SPEC)  # type: ignore[arg-type]
        patch.setattr(sources, "_text", lambda path: KERNEL if path == SPEC.home / "kernel.cpp" else text(path))
        patch.setattr(lowering, "RULES", RewriteRuleSet([GatedSilu.rule(), *lowering.RULES]))
        # Without optimization, the library is compiled in a third of the time.
        options = tuple("-O0" if option == "-O3" else option for option in sources.OPTIONS)
        patch.setattr(self_test, "try_library", try_new_op)
        for module in (sources, compile):
            patch.setattr(module, "OPTIONS", options)
        for each in (sources.units, sources.digest):
            each.cache_clear()
        yield
    for each in (sources.units, sources.digest):
        each.cache_clear()


def test_an_op_that_is_defined_here_runs_in_an_engine(
    cli: Run, tiny_pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = ("--model", tiny_pair.target, "--draft", tiny_pair.head)
    ask = ("build", *pair, "--num-speculative-tokens", "2", "--max-seq-len", "64")
    with monkeypatch.context() as patch, registered():
        patch.setenv("PEAGLE_CACHE", cache_with_the_traces(tmp_path / "cache"))  # no stage knows of the new rule
        made = cli(*ask, "--out", tmp_path / "with")
        assert made.code == 0, made.err
        assert _counted(tmp_path / "with") == 7  # one in each layer
    without = cli(*ask, "--out", tmp_path / "without")
    assert without.code == 0, without.err
    assert _counted(tmp_path / "without") == 0
    assert b"GatedSilu" in (tmp_path / "with" / "plugins" / "cpu_kernels.so").read_bytes()
    texts = []
    for name in ("with", "without"):
        with Engine.load(tmp_path / name) as engine:
            texts.append(engine.generate([[5, 6, 7]], SamplingParams(max_tokens=24, ignore_eos=True))[0].token_ids)
    assert texts[0] == texts[1]


def _counted(engine: Path) -> int:
    graph = onnx.load_model(engine / "target" / "model.onnx", load_external_data=False).graph
    return [step for node in graph.node for step in steps_of(node)].count((DOMAIN, "GatedSilu"))
