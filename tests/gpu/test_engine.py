"""Engines of TensorRT and TensorRT-RTX, built for the local GPU and run on it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from peagle.plugins.errors import PeagleError
from tests.gpu.products import gpu_for

if TYPE_CHECKING:
    from peagle.engines import Engine
    from tests.models import Pair

pytestmark = pytest.mark.gpu

PROMPTS = [
    "def fibonacci(n):\n",
    "class Stack:\n    def __init__(self):\n",
    "import os\n",
    "for i in range(10):\n",
    "# sort",
]


@pytest.fixture(scope="module", params=[pytest.param("tensorrt", marks=pytest.mark.tensorrt), "tensorrt-rtx"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The demo pair, three rows at a time."""
    from peagle.compiler.pipeline.build import build
    from peagle.compiler.request.verb_options import BUILD
    from peagle.engines import Engine

    product: str = request.param
    gpu = gpu_for(product)
    out = tmp_path_factory.mktemp(product) / "engine"
    options = BUILD.request(model="demo", out=out, backend=product, gpus=(gpu,), max_batch_size=3)
    return Engine.load(build(options).path, max_batch_size=3)


@pytest.fixture
def onnx_engine(engine: Engine, request: pytest.FixtureRequest) -> Path:
    """The demo engine, built only where ``engine`` could be built: its tests are skipped elsewhere."""
    del engine
    folder: Path = request.getfixturevalue("demo_engine")
    return folder


def _text(engine: Engine, k: int | None, temperature: float = 0.0) -> list[tuple[int, ...]]:
    from peagle.engines import SamplingParams

    params = [
        SamplingParams(max_tokens=32 + 8 * i, ignore_eos=True, temperature=temperature, seed=i)
        for i in range(len(PROMPTS))
    ]
    return [o.token_ids for o in engine.generate(PROMPTS, params, num_speculative_tokens=k)]


def _agreement(found: list[tuple[int, ...]], expected: list[tuple[int, ...]]) -> float:
    """Share of tokens before the first that differs: one near tie decided otherwise changes all that follows."""
    same = 0
    for ours, theirs in zip(found, expected, strict=True):
        differing = (i for i, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
        same += next(differing, len(theirs))
    return same / sum(map(len, expected))


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_speculation_changes_no_text(engine: Engine, temperature: float) -> None:
    """Up to near ties: windows of other widths run other kernels, which round otherwise."""
    plain = _text(engine, 0, temperature)
    for k in (1, 3, None):
        assert _agreement(_text(engine, k, temperature), plain) > 0.9


def test_same_call_gives_the_same_text(engine: Engine) -> None:
    first = _text(engine, None, 0.8)
    assert all(_text(engine, None, 0.8) == first for _ in range(3))


def test_a_request_does_not_depend_on_its_batch(engine: Engine) -> None:
    """Up to near ties: rounds of one row run other kernels, at a profile of their own, than rounds of several."""
    from peagle.engines import SamplingParams

    params = SamplingParams(max_tokens=48, ignore_eos=True)
    together = [o.token_ids for o in engine.generate(PROMPTS, params)]
    alone = [engine.generate([prompt], params)[0].token_ids for prompt in PROMPTS]
    assert _agreement(together, alone) > 0.9


def test_text_is_that_of_onnx_runtime(engine: Engine, onnx_engine: Path) -> None:
    """Up to near ties: 16 bits there, 32 here."""
    from peagle.engines import Engine

    reference = Engine.load(onnx_engine)
    expected = _text(reference, 0)
    assert _agreement(_text(engine, None), expected) > 0.8


def test_drafts_are_accepted_as_often_as_on_onnx_runtime(engine: Engine, onnx_engine: Path) -> None:
    from peagle.engines import Acceptance, Engine, SamplingParams

    lengths = []
    for each in (engine, Engine.load(onnx_engine)):
        total = Acceptance()
        for output in each.generate(PROMPTS, SamplingParams(max_tokens=64, ignore_eos=True), num_speculative_tokens=3):
            total.add(output.acceptance)
        lengths.append(total.acceptance_length)
    assert lengths[0] == pytest.approx(lengths[1], rel=0.1)


def test_logits_are_close_to_onnx_runtime(engine: Engine, onnx_engine: Path) -> None:
    import numpy as np

    from peagle.engines import Engine

    reference = Engine.load(onnx_engine)
    ids = reference.tokenizer.encode(PROMPTS[1])
    for found, expected in (
        (engine.target_logits(ids), reference.target_logits(ids)),
        (engine.draft_logits(ids, 3), reference.draft_logits(ids, 3)),
    ):
        distance = np.linalg.norm(found - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
        assert np.median(distance) < 2e-2


def test_the_host_chooses_the_same_text_with_and_without_drafts(engine: Engine) -> None:
    """Penalties, biases and logprobs: their rounds wait for the host between the two passes."""
    from peagle.engines import SamplingParams

    params = SamplingParams(
        max_tokens=32, ignore_eos=True, repetition_penalty=1.2, frequency_penalty=0.3, bad_token_ids=[5], logprobs=1
    )
    plain, drafted = (engine.generate(PROMPTS, params, num_speculative_tokens=k) for k in (0, 3))
    assert _agreement([o.token_ids for o in drafted], [o.token_ids for o in plain]) > 0.9
    for output in (*plain, *drafted):
        assert 5 not in output.token_ids
        assert [each.token_id for each in output.logprobs] == [*output.token_ids]
        assert all(each.logprob <= 0 for each in output.logprobs)


def test_structured_output_follows_its_grammar(engine: Engine) -> None:
    from peagle.engines import SamplingParams

    params = SamplingParams(max_tokens=24, structured_outputs={"choice": ["return a", "return b + 1"]})
    for k in (0, 3):
        outputs = engine.generate(PROMPTS, params, num_speculative_tokens=k)
        assert {output.text for output in outputs} <= {"return a", "return b + 1"}


def test_prompts_that_begin_alike_are_copied(engine: Engine) -> None:
    """Up to near ties: the rest of a prompt is then a chunk of another width."""
    from peagle.engines import Engine, SamplingParams

    params, ids = SamplingParams(max_tokens=32, ignore_eos=True), engine.tokenizer.encode(PROMPTS[1])
    prompts = [[*(ids * 9)[:80], *engine.tokenizer.encode(each)] for each in PROMPTS]
    expected = [engine.generate([prompt], params)[0].token_ids for prompt in prompts]
    keeping = Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer, prefix_cache_bytes=2**26)
    with keeping:
        outputs = [keeping.generate([prompt], params)[0] for prompt in prompts]
    assert all(output.cached_tokens >= 64 for output in outputs[1:])
    assert _agreement([output.token_ids for output in outputs], expected) > 0.8


@pytest.mark.parametrize("product", [pytest.param("tensorrt", marks=pytest.mark.tensorrt), "tensorrt-rtx"])
def test_an_eagle_3_head_drafts_without_the_host(product: str, eagle3_pair: Pair, tmp_path: Path) -> None:
    """Further passes have an input without columns; up to near ties, the text is that of plain decoding."""
    from peagle.compiler.pipeline.build import build
    from peagle.compiler.request.verb_options import BUILD
    from peagle.engines import Engine

    request = BUILD.request(
        model=str(eagle3_pair.target), draft=str(eagle3_pair.head), out=tmp_path / "engine", backend=product,
        gpus=(gpu_for(product),), max_batch_size=3, max_seq_len=96, num_speculative_tokens=4,
    )  # fmt: skip
    engine = Engine.load(build(request).path, max_batch_size=3)
    plain = _text(engine, 0)
    for k in (1, 3):
        assert _agreement(_text(engine, k), plain) > 0.8
    logits = engine.draft_logits(engine.tokenizer.encode(PROMPTS[1]), 3)
    assert logits.shape[0] == 3


def test_other_gpu_is_rejected(engine: Engine) -> None:
    from peagle.engines.backends.tensorrt.device import find_gpu
    from peagle.engines.folder.checks import check_gpu

    backend = dataclasses.replace(engine.manifest.backend, gpus=("sm_75",))
    gpu = find_gpu(backend.name)
    with pytest.raises(PeagleError, match="built for sm_75"):
        check_gpu(backend, gpu)
