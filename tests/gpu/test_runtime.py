"""The plan runtime on a GPU, with the project's CUDA device and kernels; PyTorch runs the graphs.

The text is that of ONNX Runtime on the host, token by token: PyTorch sums in float64 here, so that near ties are those
of exact numbers. In float16 the two round differently, so that only plain decoding on the same device has to be equal.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

pytest.importorskip("onnx_ir", reason="the tests of the runtime need onnx, onnx-ir and ONNX Runtime")
pytest.importorskip("onnxruntime", reason="the tests of the runtime need onnx, onnx-ir and ONNX Runtime")

from peagle.engines.backends.tensorrt import backend as tensorrt
from peagle.engines.backends.tensorrt.kept_rounds import KeptRounds
from tests.engines.backends.plan_engine import write_twin
from tests.engines.backends.stand_in import _Context
from tests.engines.backends.tensorrt import test_backend as backends
from tests.engines.backends.tensorrt import test_device as devices
from tests.engines.backends.tensorrt import test_host_choice as host_choices
from tests.engines.backends.tensorrt import test_pinned as pinned
from tests.engines.mixed_requests import MIXED, PROMPTS, SAMPLED
from tests.engines.running.test_token_choice import PROMPT
from tests.gpu import torch_device
from tests.gpu.plan_engines import PlanEngines, plan_engines

if TYPE_CHECKING:
    from peagle.engines import Engine
    from tests.gpu.torch_device import TorchDevice

pytestmark = pytest.mark.gpu

TEXTS = ["def fibonacci(n):\n", "class Stack:\n    def __init__(self):\n", "import os\n", "# sort"]


@pytest.fixture
def device() -> TorchDevice:
    return torch_device.TorchDevice()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], PlanEngines]:
    """By kind."""
    return lambda name: plan_engines(name, tmp_path_factory.getbasetemp())


@pytest.fixture(scope="module")
def plans(engines: Callable[[str], PlanEngines]) -> tuple[Engine, TorchDevice]:
    """The tiny pair in float32."""
    return engines("tiny").on_the_gpu


@pytest.fixture(scope="module")
def tiny_engine(engines: Callable[[str], PlanEngines]) -> Engine:
    """In the place of ONNX Runtime's engine, whose text is the same: this one needs no kernels for this CPU."""
    return engines("tiny").on_the_host


def test_drafters_come_and_go_while_requests_run(engines: Callable[[str], PlanEngines]) -> None:
    """The engine's drafter loaded a second time, in rounds of both, which are captured pass by pass."""
    engine, _ = engines("tiny").another_on_the_gpu()
    write_twin(engine.folder, engine.manifest)
    params, names = replace(SAMPLED, max_tokens=12, ignore_eos=True), ("built-in", "twin", "none")
    with engine:
        plain = [engine.generate([each], params, draft="none")[0].token_ids for each in PROMPTS]
        for _ in range(2):  # memory that was freed is taken again
            running = [engine.submit(each, params, num_speculative_tokens=3) for each in PROMPTS]
            engine.load_drafter("twin")
            mixed = [engine.submit(each, params, draft=name) for name in names for each in PROMPTS]
            engine.unload_drafter("twin")
            assert [each.result().token_ids for each in running] == plain
            outputs = [each.result() for each in mixed]
            assert [each.token_ids for each in outputs] == plain * len(names)
            assert {each.drafter for each in outputs} == {"built-in", "twin", ""}
            del running, mixed, outputs
            gc.collect()
        engine.generate(PROMPTS, params)
        assert not engine._backend._others  # type: ignore[attr-defined]


def _few(test: Any, **strategies: Any) -> Any:
    """The test with few examples, and without the search for a smaller one that fails: a GPU's time is short."""
    few = settings(max_examples=3, phases=[Phase.generate], suppress_health_check=[HealthCheck.function_scoped_fixture])
    return few(given(**strategies)(test.hypothesis.inner_test))


# The tests of the backend and its parts, with a GPU in the place of the stand-in for it. The first ones need the least.
test_captured_graph_runs_at_each_replay = devices.test_a_captured_graph_runs_when_it_is_replayed_and_as_often
test_staging_is_not_written_again_before_it_was_copied = pinned.test_staging_is_not_written_again_before_it_was_copied
test_half_precision_logits_become_float32 = host_choices.test_half_precision_logits_become_float32
test_logits_are_onnx_runtime_s = backends.test_logits_are_onnx_runtime_s
test_text_and_acceptance_are_onnx_runtime_s = backends.test_text_and_acceptance_are_onnx_runtime_s
test_a_round_is_captured_once_per_k_and_replayed = backends.test_a_round_is_captured_once_per_k_and_replayed
test_rounds_read_what_the_texts_ask_for = backends.test_rounds_read_as_much_of_the_caches_as_the_texts_ask_for
test_idle_rows_point_behind_all_requests = backends.test_an_idle_row_points_behind_all_that_a_request_can_hold
test_the_host_is_one_round_behind = backends.test_the_host_is_one_round_behind
test_prompt_chunking_changes_nothing = backends.test_prompt_chunking_changes_nothing
test_logits_between_two_generations_leave_no_trace = backends.test_logits_between_two_generations_leave_no_trace
test_an_abandoned_stream_leaves_the_engine_usable = backends.test_an_abandoned_stream_leaves_the_engine_usable
test_forced_tokens_are_drafted_beyond_k = host_choices.test_forced_tokens_are_drafted_beyond_the_k_of_a_round
test_only_rows_that_ask_are_read = host_choices.test_only_rows_that_ask_are_read_and_others_run_ahead_again
test_each_pass_of_a_round_that_waits_is_captured_once = (
    host_choices.test_each_pass_of_a_round_that_waits_is_captured_once
)
test_any_batch_at_any_k_gives_onnx_runtime_s_text = _few(
    backends.test_any_batch_at_any_k_gives_onnx_runtime_s_text, data=st.data()
)
test_any_options_give_onnx_runtime_s_result = _few(
    host_choices.test_any_mix_of_options_gives_onnx_runtime_s_result,
    prompts=st.lists(PROMPT, min_size=1, max_size=5),
    k=st.sampled_from([0, 3]),
    data=st.data(),
)


def _tokens(engine: Engine, k: Literal["auto"] | int) -> list[tuple[int, ...]]:
    """Greedy and sampled, more requests than slots."""
    return [output.token_ids for output in engine.generate(PROMPTS, MIXED, num_speculative_tokens=k)]


def test_rounds_that_are_not_captured_give_the_same_text(
    plans: tuple[Engine, TorchDevice], engines: Callable[[str], PlanEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    captured = _tokens(plans[0], 3)
    assert plans[1].replays > 0
    monkeypatch.setattr(_Context, "is_stream_capturable", lambda self, stream: False, raising=False)
    engine, device = engines("tiny").another_on_the_gpu()
    assert _tokens(engine, 3) == captured
    assert device.captures == device.replays == 0


def test_rounds_that_were_dropped_are_made_anew(
    plans: tuple[Engine, TorchDevice], engines: Callable[[str], PlanEngines], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The contexts and CUDA graphs of all but the last few kinds are released, and their memory used again."""
    plain = _tokens(plans[0], 0)
    monkeypatch.setattr(tensorrt, "KeptRounds", lambda device, capacity: KeptRounds(device, 3))
    engine, device = engines("tiny").another_on_the_gpu()
    for k in (3, 1, 3):
        assert _tokens(engine, k) == plain
    assert device.replays > 0


def test_adaptive_k_changes_no_text_and_captures_everything_at_first(plans: tuple[Engine, TorchDevice]) -> None:
    engine, device = plans
    plain = _tokens(engine, 0)
    assert _tokens(engine, "auto") == plain
    captures, replays = device.captures, device.replays
    assert _tokens(engine, "auto") == plain
    assert device.captures == captures
    assert device.replays > replays


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["tiny-float16", "tiny-fp8-caches", "tiny-float16-fp8-caches", "eagle3-float16", "qwen3-moe", "gpt-oss"],
)
def test_speculation_changes_no_text_of_any_graph(engines: Callable[[str], PlanEngines], kind: str) -> None:
    """Of 16 bits, with caches of codes, with experts."""
    engine, device = engines(kind).on_the_gpu
    plain = _tokens(engine, 0)
    for k in (1, 4, 3):
        assert _tokens(engine, k) == plain
    assert device.replays > 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tiny-fp8-caches", "qwen3-moe", "gpt-oss"])
def test_text_of_other_graphs_is_onnx_runtime_s(engines: Callable[[str], PlanEngines], kind: str) -> None:
    engine, host = engines(kind).on_the_gpu[0], engines(kind).on_the_host
    for k in (0, 3):
        assert _tokens(engine, k) == _tokens(host, k)


@pytest.mark.slow
def test_a_trained_pair_answers_as_without_drafts_and_has_them_accepted(engines: Callable[[str], PlanEngines]) -> None:
    """The demo pair in float16: most of ONNX Runtime's tokens in the same type, up to the first near tie."""
    from peagle.engines import SamplingParams

    engine, host = engines("demo").on_the_gpu[0], engines("demo").on_the_host
    greedy = SamplingParams(max_tokens=24, ignore_eos=True)
    plain, drafted = (engine.generate(TEXTS, greedy, num_speculative_tokens=k) for k in (0, 3))
    assert [output.token_ids for output in drafted] == [output.token_ids for output in plain]
    assert all(output.acceptance.acceptance_length > 1.2 for output in drafted)
    expected = host.generate(TEXTS, greedy, num_speculative_tokens=3)
    same = 0
    for ours, theirs in zip(drafted, expected, strict=True):
        pairs = zip(ours.token_ids, theirs.token_ids, strict=True)
        same += next((at for at, (one, other) in enumerate(pairs) if one != other), len(ours.token_ids))
    assert same > 0.8 * 24 * len(TEXTS)
