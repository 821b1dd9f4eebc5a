"""Cache positions copied from a GPU and back by the driver's strided copy, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("onnx_ir", reason="the tests of the runtime need onnx, onnx-ir and ONNX Runtime")
pytest.importorskip("onnxruntime", reason="the tests of the runtime need onnx, onnx-ir and ONNX Runtime")

from tests.engines.backends.tensorrt import test_kept_positions as positions
from tests.engines.mixed_requests import GREEDY, SAMPLED
from tests.engines.scheduling.test_prefix_cache import SHARED, _keeping
from tests.gpu import torch_device
from tests.gpu.plan_engines import plan_engines

if TYPE_CHECKING:
    from peagle.engines import Engine
    from tests.gpu.torch_device import TorchDevice

pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> TorchDevice:
    return torch_device.TorchDevice()


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    return plan_engines("tiny", tmp_path_factory.getbasetemp()).on_the_gpu[0]


test_kept_positions_are_restored_in_any_slot_and_nowhere_else = (
    positions.test_kept_positions_are_restored_in_any_slot_and_nowhere_else
)
test_a_buffer_is_reused_once_its_copy_is_dropped_and_not_before = (
    positions.test_a_buffer_is_reused_once_its_copy_is_dropped_and_not_before
)
test_shared_blocks_of_prompts_and_answers_are_read_once = (
    positions.test_shared_blocks_of_prompts_and_answers_are_read_once
)


def test_prompts_that_begin_alike_are_copied_and_have_the_same_text_and_drafts(plans: Engine) -> None:
    params = [replace(each, max_tokens=14) for each in (GREEDY, SAMPLED, SAMPLED)]
    alone = [plans.generate([prompt], each)[0] for prompt, each in zip(SHARED, params, strict=False)]
    with _keeping(plans, 10**8) as engine:
        results = [engine.generate([prompt], each)[0] for prompt, each in zip(SHARED, params, strict=False)]
        together = engine.generate(SHARED[: len(params)], params)
    assert sum(result.cached_tokens for result in results) > 0
    assert [(each.token_ids, each.acceptance) for each in results] == [
        (each.token_ids, each.acceptance) for each in alone
    ]
    assert [each.token_ids for each in together] == [each.token_ids for each in alone]
