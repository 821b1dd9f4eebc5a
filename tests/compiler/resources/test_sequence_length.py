"""The default length of plans, by the model and by the memory of the GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.compiler.checkpoints.resolve_names import target_config
from peagle.compiler.hardware.machine import LocalGpu, Machine
from peagle.compiler.request.build_plan import BuildPlan
from peagle.compiler.request.verb_options import BUILD, EXPORT
from peagle.compiler.resources import sequence_length
from peagle.compiler.resources.dry_run import decide_build, decide_export
from peagle.compiler.resources.pass_tensors import pass_tensors
from peagle.compiler.resources.sequence_length import MAX_DEFAULT_LENGTH, SequenceLength, decided_length
from peagle.compiler.resources.workload import Workload
from peagle.graphs.targets import family_for
from peagle.graphs.targets.skeleton import Skeleton

CODER = "qwen3-coder-30b"
TOKEN = 98_304  # bytes of Qwen3-Coder's keys and values


def _length(plan: BuildPlan, model: str = CODER) -> SequenceLength:
    config = target_config(model)[0]
    family = family_for(config)
    workload = Workload(Skeleton(config).weights, plan.recipe, plan.lowering)
    return decided_length(plan, family.describe(config), family.text(config), workload)


def _exported(*gpus: str, precision: str = "fp8", model: str = CODER, **sizes: Any) -> SequenceLength:
    request = EXPORT.request(model=model, gpu=gpus, precision=precision, **{"for": "tensorrt"}, **sizes)
    return _length(decide_export(request).plan, model)


def test_a_large_gpu_takes_the_most_by_default() -> None:
    found = _exported("b200")
    assert found == SequenceLength(MAX_DEFAULT_LENGTH, "the largest default; the model allows 262,144")
    assert found.note == (
        "max_seq_len is 32,768: the largest default; the model allows 262,144; --max-seq-len sets another length"
    )


def test_the_length_is_never_above_the_models() -> None:
    assert _exported("b200", precision="bf16", model="smollm2-135m") == SequenceLength(8192, "the model's maximum")


def test_a_requested_length_is_kept_without_a_reason() -> None:
    assert _exported("b200", max_seq_len=100_000) == SequenceLength(100_000, "")


def test_caches_of_all_requests_fit_beside_the_weights() -> None:
    request = EXPORT.request(model=CODER, gpu=("rtx-pro-6000",), precision="bf16", **{"for": "tensorrt"})
    plan = decide_export(request).plan
    found = _length(plan)
    assert 2048 < found.tokens < MAX_DEFAULT_LENGTH
    assert found.tokens % 1024 == 0
    assert found.why == "8 requests of this length fit into 96.0 GB of rtx-pro-6000 alongside 61.1 GB of weights"
    config = target_config(CODER)[0]
    workload, family = Workload(Skeleton(config).weights, plan.recipe, plan.lowering), family_for(config)
    tensors = pass_tensors(family.describe(config), family.text(config), workload, rows=8, num_speculative_tokens=18)

    def taken(tokens: int) -> int:
        length = -(-(tokens + 2 * 18) // 64) * 64
        return workload.bytes + 8 * TOKEN * length + tensors.bytes(length)

    assert taken(found.tokens) <= 0.9 * 96e9 < taken(found.tokens + 1024)


def test_the_smallest_gpu_decides_and_the_usual_length_is_the_least() -> None:
    found = _exported("rtx-pro-6000", "rtx-5090")
    assert found == _exported("sm_120")  # of which the RTX 5090 is the smallest
    assert found.tokens == 2048
    assert (
        found.why
        == "8 requests of a greater length would not fit into 32.0 GB of rtx-5090 alongside 31.2 GB of weights"
    )


def test_without_a_known_memory_the_length_is_the_usual_one() -> None:
    assert _exported("sm_110") == SequenceLength(2048, "the memory of sm_110 is unknown")


def test_graphs_for_no_gpu_and_engines_for_a_cpu_keep_the_usual_length() -> None:
    assert _exported(precision="bf16") == SequenceLength(2048, "")
    on_cpu = BUILD.request(model="smollm2-135m", backend="onnxruntime", precision="fp32")
    assert _length(decide_build(on_cpu).plan, "smollm2-135m") == SequenceLength(2048, "")


@pytest.mark.parametrize(("memory", "tokens"), [("183359 MiB", 32_768), ("24564 MiB", 2048), ("[N/A]", 2048)])
def test_memory_of_a_local_gpu_is_read_from_its_driver(
    memory: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --gpu; a driver that does not say it leaves the smallest GPU of the architecture."""
    request = EXPORT.request(model=CODER, gpu=("sm_120",), precision="fp8", **{"for": "tensorrt"})
    plan = decide_export(request).plan
    plan = replace(plan, request=replace(request, backend=replace(request.backend, gpus=())))
    monkeypatch.setattr(
        sequence_length, "inspect_machine", lambda: Machine((LocalGpu("NVIDIA X", 120, memory=memory),))
    )
    assert _length(plan).tokens == tokens
