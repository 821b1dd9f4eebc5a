"""Positions of caches that the driver's strided copy takes out of a GPU and back, bit for bit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("onnx_ir", reason="the tests of the runtime need onnx, onnx-ir and ONNX Runtime")
pytest.importorskip("onnxruntime", reason="the tests of the runtime need onnx, onnx-ir and ONNX Runtime")

from tests.engines.backends.tensorrt import test_kept_positions as positions
from tests.gpu import torch_device
from tests.gpu.plan_engines import PlanEngines

if TYPE_CHECKING:
    from peagle.engines import Engine
    from tests.gpu.torch_device import TorchDevice

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> TorchDevice:
    return torch_device.TorchDevice()


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return PlanEngines("tiny", tmp_path_factory.mktemp("tiny")).on_the_gpu()[0]


test_kept_positions_are_restored_in_any_slot_and_nowhere_else = (
    positions.test_kept_positions_are_restored_in_any_slot_and_nowhere_else
)
test_a_buffer_is_reused_once_its_copy_is_dropped_and_not_before = (
    positions.test_a_buffer_is_reused_once_its_copy_is_dropped_and_not_before
)
test_cached_prompt_gives_the_same_text_and_drafts = positions.test_cached_prompt_gives_the_same_text_and_drafts
test_shared_blocks_of_prompts_and_answers_are_read_once = (
    positions.test_shared_blocks_of_prompts_and_answers_are_read_once
)
