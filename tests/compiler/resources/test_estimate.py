"""An estimate is exact in bytes, guesses nothing, and writes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.checkpoints.resolve_names import target_config
from peagle.compiler.precision.decide_recipe import table_of
from peagle.compiler.precision.precision_options import PrecisionOptions
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.resources.estimate import Estimate
from peagle.compiler.resources.estimate import estimate as make_estimate
from peagle.compiler.resources.page import render
from peagle.compiler.resources.weight_bytes import head_weights, too_wide, weight_lines
from peagle.compiler.resources.work import WRITTEN_BYTES_PER_SECOND, Calibration
from peagle.compiler.resources.workload import Workload
from peagle.engines.folder.records import Speculation
from peagle.graphs.drafters import DrafterSpec
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets.skeleton import Skeleton
from peagle.graphs.targets.weight_roles import RoledWeight
from peagle.plugins.errors import UsageError
from tests.models import CONFIGS, VOCAB, make_pair

NOTE = "fp8 export is not in this version: these figures are arithmetic"


def _asked(**changes: Any) -> dict[str, Any]:
    return {
        "precision": "fp8",
        "max_seq_len": 4096,
        "rows": 8,
        "speculation": Speculation(8, 8, 8),
        "lowering": "tensorrt",
    } | changes


def estimate(
    model: str, config: dict[str, Any], origin: str, *, precision: str, lowering: str,
    asked: PrecisionOptions | None = None, **more: Any,
) -> Estimate:  # fmt: skip
    """Return the estimate of a recipe before the checkpoint's wide type is known."""
    recipe = table_of(replace(asked or PrecisionOptions(), name=precision), LOWERINGS[lowering], None)
    head, shared = more.pop("head", None), more.pop("shared", ())
    workload = Workload(Skeleton(config).weights, recipe, LOWERINGS[lowering], head, shared, calibration=Calibration(1))
    return make_estimate(model, config, origin, workload, **more)


@pytest.fixture(scope="module")
def where(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder to plan in."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("here")
        patch.chdir(folder)
        yield folder


@pytest.fixture(scope="module")
def coder(where: Path) -> Estimate:
    """The published target in FP8, its drafter not at hand."""
    config, origin = target_config("qwen3-coder-30b")
    return estimate("qwen3-coder-30b", config, origin, **_asked(gpu="B200"), notes=(NOTE,))


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> DrafterSpec:
    """A head of two layers with a vocabulary of its own."""
    return make_pair(tmp_path_factory.mktemp("pair"), "qwen3-moe", draft_vocab=VOCAB - 40).specs()[1]


@pytest.fixture(scope="module")
def tiny(head: DrafterSpec) -> Estimate:
    """A tiny target of two kinds of layers with its head, for ONNX Runtime."""
    config = CONFIGS["qwen3-moe"] | {"num_hidden_layers": 3, "mlp_only_layers": [1]}
    asked = _asked(precision="fp32", max_seq_len=1000, lowering="ort")
    return estimate("tiny", config, "A test.", **asked, head=replace(head, taps=(0, 1, 2)))


def _line(plan: Estimate, role: str) -> tuple[int, str, int]:
    return next((each.count, each.precision, each.bytes) for each in plan.weights if each.role == role)


def test_the_fp8_bytes_of_qwen3_coder_by_hand(coder: Estimate) -> None:
    layers, hidden, heads, kv_heads, head_dim = 48, 2048, 32, 4, 128
    experts, inner, vocabulary = 128, 768, 151_936
    attention = layers * 2 * (heads + kv_heads) * head_dim * hidden  # q and o, k and v
    expert_weights = layers * experts * 3 * inner * hidden  # gate, up, down
    router = layers * experts * hidden
    norms = layers * (2 * hidden + 2 * head_dim) + hidden
    scales = layers * (4 + experts * 3 + 4 + 2)  # of every projection; of the inputs of q, k, v, o and of two stacks
    assert _line(coder, "attention") == (attention, "fp8", attention)
    assert _line(coder, "experts") == (expert_weights, "fp8", expert_weights)
    assert _line(coder, "router") == (router, "bf16", 2 * router)
    assert _line(coder, "other") == (norms, "bf16", 2 * norms)
    for role in ("embedding", "lm_head"):
        assert _line(coder, role) == (vocabulary * hidden, "bf16", 2 * vocabulary * hidden)
    assert _line(coder, "scales") == (scales, "fp32", 4 * scales)
    tables = 2 * 4160 * head_dim // 2 * 2  # cos and sin, bf16
    assert _line(coder, "rotary tables")[2] == tables
    wide = 2 * vocabulary * hidden + router + norms
    assert coder.weight_bytes == attention + expert_weights + 2 * wide + 4 * scales + tables == 31_168_386_944
    assert coder.weight_count == 30_532_122_624


def test_the_kv_cache_of_qwen3_coder_by_hand(coder: Estimate) -> None:
    assert coder.kv.precision == "bf16"
    assert coder.kv.target_token_bytes == 48 * 2 * 4 * 128 * 2 == 98_304
    assert coder.cache_length == 4096 + 2 * 8 + 48  # a multiple of 64
    assert coder.kv.target_slot_bytes == 98_304 * 4160


def test_missing_head_is_not_guessed(coder: Estimate) -> None:
    assert (coder.drafter.count, coder.drafter.bytes, coder.kv.drafter_slot_bytes) == (None, None, None)
    text = render(coder)
    assert "unknown until downloaded" in text
    assert "not counting the drafter's" in text


def test_estimate_writes_nothing(coder: Estimate, where: Path) -> None:
    assert list(where.iterdir()) == []


def test_the_verdict_counts_the_slots_that_fit(coder: Estimate) -> None:
    assert coder.gpu is not None
    # The mask, which needs less memory with a layer's keys and values than with its dense experts, logits, and the new
    # keys and values of all layers.
    tensors = 512 * 2 * 4160 + 128 * 512 * (768 + 2048) * 2 + 8 * 9 * 151_936 * 2 + 48 * 2 * 512 * 4 * 128 * 2
    assert coder.gpu.tensor_bytes == tensors
    assert coder.gpu.slots == 8  # those of a build without --max-batch-size
    assert coder.gpu.most_slots == (162 * 10**9 - 31_168_386_944 - tensors) // (98_304 * 4160) == 318
    assert "fits: 8 slots of 4,160 tokens (at most 318)" in render(coder)


def test_the_text_has_every_part(coder: Estimate) -> None:
    text = render(coder)
    for part in ("bundled with peagle-compile", "48 sparse", "30,532,122,624", "98,304 bytes per token", NOTE):
        assert part in text
    assert f"{coder.graph.semantic:,} in the target's semantic graph" in text
    assert "from 2 of 48 layers, in bf16; fp8 adds nodes" in text
    assert {line[:13].rstrip() for line in text.splitlines() if line[:1].strip()} >= {
        "plan", "weights", "drafter", "KV cache", "nodes", "host memory", "time", "GPU", "note",
    }  # fmt: skip


def test_a_plan_is_json(coder: Estimate, tiny: Estimate) -> None:
    content = json.loads(json.dumps(coder.as_json()))
    assert content["weight_bytes"] == coder.weight_bytes
    assert content["gpu"]["fits"] is True
    assert content["graph"]["semantic_operators"]["peagle::CachedAttention"] == 48
    assert content["host"]["bytes"] == coder.host.bytes
    assert json.loads(json.dumps(tiny.as_json()))["gpu"] is None


def test_host_memory_does_not_grow_with_the_weights(coder: Estimate) -> None:
    assert 6e8 < coder.host.bytes < 1.2e9 < coder.weight_bytes / 20


def test_the_time_to_write_is_by_the_recorded_rate_alone(coder: Estimate) -> None:
    assert coder.time.bytes_per_second == WRITTEN_BYTES_PER_SECOND
    assert coder.time.weight_seconds == coder.weight_bytes / WRITTEN_BYTES_PER_SECOND
    (row,) = [line for line in render(coder).splitlines() if line.startswith("time ")]
    assert "`make bench-export`" in row
    assert "trac" not in row.partition(";")[0], "how long a trace takes depends on what else the machine does"


def test_a_known_head_is_counted_tensor_by_tensor(head: DrafterSpec, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    tensors = load_file(make_pair(tmp_path, "qwen3-moe", draft_vocab=VOCAB - 40).head / "model.safetensors")
    tensors.pop("t2d")
    ids = tensors["d2t"].numel()
    count = sum(tensor.numel() for tensor in tensors.values())
    assert head_weights(head, RECIPES["bf16"], LOWERINGS["std"]) == (count, 2 * (count - ids) + 8 * ids)


def test_a_known_head_has_a_cache_in_every_slot(tiny: Estimate, head: DrafterSpec) -> None:
    assert tiny.max_seq_len == CONFIGS["qwen3-moe"]["max_position_embeddings"]
    assert tiny.notes == ("max_seq_len was reduced to 256, the model's maximum",)
    assert tiny.kv.target_token_bytes == 3 * 2 * 2 * 16 * 4
    assert tiny.kv.drafter_token_bytes == head.num_layers * 2 * 2 * 16 * 4
    assert tiny.kv.drafter_slot_bytes == tiny.kv.drafter_token_bytes * (256 + 16)
    assert tiny.layers == {"sparse": 2, "dense": 1}
    assert tiny.graph.traced_layers == 2
    count, size = head_weights(head, RECIPES["fp32"], LOWERINGS["ort"])
    assert (tiny.drafter.count, tiny.drafter.bytes) == (count, size)
    assert f"{count:,} weights in fp32" in render(tiny)


@pytest.mark.parametrize(("precision", "width"), [("fp32", 4), ("fp16", 2), ("bf16", 2)])
def test_one_width_is_the_width_of_every_weight(precision: str, width: int) -> None:
    weights = Skeleton(CONFIGS["gpt-oss"]).weights
    lines = weight_lines(weights, RECIPES[precision], LOWERINGS["std"])
    assert {line.precision for line in lines} == {precision}
    assert sum(line.bytes for line in lines) == width * sum(weight.count for weight in weights)


# Bytes of a matrix of 4096 x 2048, and how many scales of which type it has.
MATRIX = 4096 * 2048
NARROW = {
    ("int8", "tensorrt"): (MATRIX, {"fp32": 4096 + 1}),  # of every row, and of the input
    ("int4", "tensorrt"): (MATRIX // 2, {"bf16": MATRIX // 128}),
    ("mxfp8", "tensorrt"): (MATRIX, {"e8m0": MATRIX // 32}),
    ("mxfp8", "ort"): (MATRIX, {"e8m0": MATRIX // 32}),
    ("fp8", "tensorrt"): (MATRIX, {"fp32": 2}),
    ("int8", "ort"): (MATRIX, {"fp32": MATRIX // 64}),
    ("int4", "ort"): (MATRIX // 2, {"fp32": MATRIX // 32}),
}


@pytest.mark.parametrize(("precision", "lowering"), NARROW)
def test_quantized_matrix_counts_codes_and_scales(precision: str, lowering: str) -> None:
    recipe = RECIPES[precision].on("fp32" if lowering == "ort" else "bf16", LOWERINGS[lowering])
    lines = weight_lines((RoledWeight("a.weight", (4096, 2048), "mlp", 1),), recipe, LOWERINGS[lowering])
    size, scales = NARROW[precision, lowering]
    assert [(each.role, each.precision, each.bytes) for each in lines[:1]] == [("mlp", precision, size)]
    assert {each.precision: each.count for each in lines[1:]} == scales


def test_weights_as_stored_count_by_their_own_type() -> None:
    """With scales, as they are packed: in tiles of sixteen rows. Other weights are wide."""
    recipe, cpu = RECIPES["stored"].on("fp32", LOWERINGS["cpu"]), LOWERINGS["cpu"]
    names = ("a.weight", "b.weight", "c.weight")
    weights = tuple(RoledWeight(name, (40, 64), "mlp", 1) for name in names)
    lines = weight_lines(weights, recipe, cpu, {"a.weight": "Q4_1", "b.weight": "Q8_0"})
    blocks = 48 * 2  # of 40 rows in three tiles
    assert [(each.role, each.precision, each.count, each.bytes) for each in lines] == [
        ("mlp", "fp32", 40 * 64, 40 * 64 * 4),
        ("mlp", "q4_1", 40 * 64, blocks * (16 + 4)),
        ("mlp", "q8_0", 40 * 64, blocks * (32 + 2)),
    ]
    unknown = weight_lines(weights, recipe, cpu)
    assert [(each.precision, each.bytes) for each in unknown] == [("stored", 3 * blocks * 34)]


@pytest.mark.parametrize("lowering", ["tensorrt", "ort"])
def test_rows_of_mxfp8_are_whole_blocks(lowering: str) -> None:
    """The down projection of the demo's target has ten and a half."""
    recipe = RECIPES["mxfp8"].on("fp32" if lowering == "ort" else "bf16", LOWERINGS[lowering])
    weights = (RoledWeight("a.weight", (128, 336), "mlp", 1),)
    found = [(each.precision, each.bytes) for each in weight_lines(weights, recipe, LOWERINGS[lowering])]
    assert found == [("mxfp8", 128 * 352), ("e8m0", 128 * 11)]


def test_explicitly_typed_parts_are_counted_separately(head: DrafterSpec) -> None:
    config = CONFIGS["qwen3"] | {"num_hidden_layers": 3}
    options = _asked(precision="int8", lowering="ort", head=replace(head, taps=(0, 1, 2)))
    plans = [
        estimate("x", config, "x", **options, asked=each)
        for each in (PrecisionOptions(), PrecisionOptions(lm_head="int4", drafter="int8", exclude=("layers.0.*",)))
    ]
    plain, asked = plans
    for plan, kind, size in ((plain, "int8", VOCAB * 48), (asked, "int4", VOCAB * 24)):
        assert _line(plan, "lm_head") == (VOCAB * 48, kind, size)
        assert all(each.role != "embedding" for each in plan.weights), "it is tied, and looked up in the codes"
    kept = {each.precision: each.count for each in asked.weights if each.role == "attention"}
    assert kept["int8"] == 2 * kept["fp32"]
    assert asked.drafter.precision == "int8"
    assert (asked.drafter.bytes or 0) < (plain.drafter.bytes or 0)
    assert "but lm head in int4, drafter in int8, layers.0.* in fp32" in render(asked)


@pytest.mark.parametrize(("lowering", "wide"), [("std", "fp32"), ("ort", "fp32"), ("tensorrt", "bf16")])
def test_unquantized_parts_are_counted_as_written(lowering: str, wide: str) -> None:
    assert table_of(PrecisionOptions("int4"), LOWERINGS[lowering], None).wide == wide
    assert table_of(PrecisionOptions("fp16"), LOWERINGS[lowering], None).wide == "fp16"


def test_the_verdict_looks_at_every_type() -> None:
    asked = _asked(precision="bf16", gpu="a100-80gb", asked=PrecisionOptions(kv_cache="fp8"))
    verdict = estimate("x", CONFIGS["qwen3"], "x", **asked).gpu
    assert verdict is not None
    assert not verdict.fits
    assert "no FP8 arithmetic" in verdict.refusal
    assert "choose a precision without fp8" in verdict.refusal


def test_share_that_a_build_rejects_is_reported() -> None:
    def told(config: dict[str, Any], precision: str, lowering: str) -> list[str]:
        recipe = table_of(PrecisionOptions(precision), LOWERINGS[lowering], None)
        return too_wide(Skeleton(config).weights, None, recipe, LOWERINGS[lowering])

    odd = CONFIGS["qwen3"] | {"intermediate_size": 100}  # no block of eight or more divides it
    (note,) = told(odd, "int4", "tensorrt")
    assert "of the weights that int4 quantizes can be INT4" in note
    assert "below 90% fails" in note
    assert not told(odd, "int8", "tensorrt")
    assert not told(CONFIGS["qwen3"], "int4", "ort")


def test_unknown_precision_is_rejected_with_valid_ones() -> None:
    with pytest.raises(UsageError) as caught:
        estimate("x", CONFIGS["qwen3"], "x", **_asked(precision="int3"))
    assert "int3" in caught.value.what
    assert "fp32, fp16, bf16, fp8" in caught.value.why


def test_unknown_gpu_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        estimate("x", CONFIGS["qwen3"], "x", **_asked(), gpu="rtx-509")
    assert "did you mean rtx-5090" in str(caught.value)
