"""Routed experts on a GPU: in FP8 with TensorRT's expert layer, if available; in MXFP4 blocks as in GPT-OSS."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import synthetic_checkpoint as synthetic

from tests.gpu.products import gpu_for
from tests.tools.test_synthetic_checkpoint import HEADS, SMALL

pytestmark = pytest.mark.gpu

E4M3 = "float8e4m3fn"
PROMPTS = ["while b:", "def gcd(a, b):", "return"]


@pytest.mark.tensorrt
@pytest.mark.parametrize("experts", ["layer", "layer-one-scale", "dense"])
def test_experts_in_fp8_are_built_and_drafts_change_no_token(experts: str, tmp_path: Path) -> None:
    from peagle.compiler.hardware.gpus import MOE_LAYER_SMS, sm_number
    from peagle.compiler.pipeline.build import build
    from peagle.compiler.request.verb_options import BUILD
    from peagle.engines import Engine, SamplingParams

    gpu = gpu_for("tensorrt")
    if sm_number(gpu) not in MOE_LAYER_SMS:
        pytest.skip(f"TensorRT has no layer of experts on {gpu}")
    sizes = HEADS | SMALL["qwen3-coder-30b"] | {"moe_intermediate_size": 128}
    spec = synthetic.Spec(
        "qwen3-coder-30b", tmp_path / "pair", layers=7, experts=16, hidden=256, vocab=300, sizes=tuple(sizes.items()),
        head="flat",
    )  # fmt: skip
    synthetic.write(spec)
    texts = tmp_path / "texts.jsonl"
    texts.write_text((json.dumps({"text": "while b: a, b = b, a % b; " * 12}) + "\n") * 4)
    request = BUILD.request(
        model=str(spec.out / "target"), draft=str(spec.out / "head"), out=str(tmp_path / "engine"),
        backend="tensorrt", gpus=(gpu,), precision="fp8", experts=experts, calib_data=str(texts), max_seq_len=128,
        num_speculative_tokens=3,
    )  # fmt: skip
    result = build(request)
    record = result.report["precision"]["target"]
    assert record["share"] >= 0.95
    rows = [row for row in result.report["matmuls"]["target"]["list"] if row.get("role") == "experts"]
    assert {(row["stored"], row["computed"]) for row in rows} == {(E4M3, E4M3)}
    engine = Engine.load(result.path)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    plain, drafted = (engine.generate(PROMPTS, params, num_speculative_tokens=k) for k in (0, 3))
    assert [each.token_ids for each in plain] == [each.token_ids for each in drafted]


@pytest.mark.parametrize("product", [pytest.param("tensorrt", marks=pytest.mark.tensorrt), "tensorrt-rtx"])
def test_experts_in_mxfp4_blocks_are_built_and_drafts_change_no_token(product: str, tmp_path: Path) -> None:
    """A token's experts have the same bits in every window; up to near ties of the products around them."""
    from peagle.compiler.pipeline.build import build
    from peagle.compiler.request.verb_options import BUILD
    from peagle.engines import Engine, SamplingParams

    gpu = gpu_for(product)
    sizes = HEADS | SMALL["gpt-oss-20b"]
    spec = synthetic.Spec(
        "gpt-oss-20b", tmp_path / "gpt-oss", layers=7, experts=16, hidden=256, vocab=300, sizes=tuple(sizes.items()),
        format="mxfp4", head="flat",
    )  # fmt: skip
    synthetic.write(spec)
    request = BUILD.request(
        model=str(spec.out / "target"), draft=str(spec.out / "head"), out=str(tmp_path / "engine"), backend=product,
        gpus=(gpu,), precision="bf16", max_seq_len=128, num_speculative_tokens=3,
    )  # fmt: skip
    result = build(request)
    rows = [row for row in result.report["matmuls"]["target"]["list"] if row.get("role") == "experts"]
    assert {(row["blocks"], row["computed"]) for row in rows} == {("mxfp4", "float32")}
    engine = Engine.load(result.path)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    plain, drafted = (engine.generate(PROMPTS, params, num_speculative_tokens=k) for k in (0, 3))
    assert [each.token_ids for each in plain] == [each.token_ids for each in drafted]
