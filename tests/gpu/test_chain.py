"""EAGLE-3 heads in the plan runtime on a GPU: further passes and the copies between them are captured too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("onnx_ir", reason="the tests of the runtime need onnx, onnx-ir and ONNX Runtime")
pytest.importorskip("onnxruntime", reason="the tests of the runtime need onnx, onnx-ir and ONNX Runtime")

from tests.engines.backends.tensorrt import test_chain as chains
from tests.gpu.plan_engines import PlanEngines, plan_engines

if TYPE_CHECKING:
    from peagle.engines import Engine
    from tests.gpu.torch_device import TorchDevice

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> PlanEngines:
    return plan_engines("eagle3", tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def plans(engines: PlanEngines) -> tuple[Engine, TorchDevice]:
    return engines.on_the_gpu


@pytest.fixture(scope="module")
def engine(engines: PlanEngines) -> Engine:
    """In the place of ONNX Runtime's engine, whose drafts are the same."""
    return engines.on_the_host


test_drafts_of_every_round_are_onnx_runtime_s = chains.test_drafts_of_every_round_are_onnx_runtime_s
test_text_and_acceptance_are_onnx_runtime_s = chains.test_text_and_acceptance_are_onnx_runtime_s
test_draft_logits_of_every_pass_are_onnx_runtime_s = chains.test_draft_logits_of_every_pass_are_onnx_runtime_s
test_rounds_are_captured_once_and_the_host_is_one_behind = (
    chains.test_rounds_are_captured_once_and_the_host_is_one_behind
)
