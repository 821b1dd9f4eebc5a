"""FP8 caches in the TensorRT backend: half the memory, and a row's text does not depend on other rows.

CUDA and TensorRT are stood in for, as in test_tensorrt.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.tensorrt.memory import Caches
from peagle.engines.folder.manifest import Manifest, contradictions
from peagle.engines.folder.records import Cache, Part
from peagle.engines.folder.strict_json import decode
from tests.engines.backends.host_device import HostDevice
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.models import Pair

PROMPTS = [[5, 9, 30, 7], [11] * 17, [40], list(range(2, 35)), [80, 3]]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
FP8 = "float8e4m3fn"
LENGTH = 128  # a multiple of 64, as the lowering has it, so that every row begins at an aligned address


class Counting(HostDevice):
    """Counts what is allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.allocated = 0

    def allocate(self, size: int) -> int:
        self.allocated += size
        return super().allocate(size)


def _narrow(part: Part) -> Part:
    return replace(part, caches=tuple(replace(cache, dtype=FP8) for cache in part.caches))


def _complaints(manifest: Manifest) -> list[str]:
    """What cannot be true of its caches."""
    return [problem for problem in contradictions(manifest) if "cache" in problem]


@pytest.fixture(scope="module")
def graphs(tiny_pair: Pair) -> dict[str, Path]:
    return lowered(tiny_pair.target, tiny_pair.head, "float32", LENGTH, cache_scale=0.02)


@pytest.fixture(scope="module")
def engine(graphs: dict[str, Path], tiny_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("fp8-caches")
    manifest = plan_manifest(tiny_engine.manifest, graphs, folder)
    shapes = replace(manifest.shapes, cache_length=LENGTH)
    manifest = replace(manifest, target=_narrow(manifest.target), shapes=shapes)
    assert not _complaints(manifest)
    return plan_engine(folder, manifest, tiny_engine.folder, slots=3)[0]


@pytest.mark.parametrize("wide", ["float16", "bfloat16"])
def test_codes_halve_the_memory(engine: Engine, wide: str) -> None:
    part, length = engine.manifest.target, engine.manifest.shapes.cache_length
    narrow, plain = Counting(), Counting()
    caches = Caches(narrow, part, 3, length, wide)
    Caches(plain, replace(part, caches=tuple(replace(cache, dtype="") for cache in part.caches)), 3, length, wide)
    assert plain.allocated == 2 * narrow.allocated
    assert narrow.allocated == 2 * sum(3 * cache.heads * length * cache.head_dim for cache in part.caches)
    (_, first), (_, third) = caches.row(0), caches.row(2)
    cache = part.caches[0]
    assert third["k_cache.0"] - first["k_cache.0"] == 2 * cache.heads * length * cache.head_dim
    assert first["k_cache.0.out"] == first["k_cache.0"]


def test_text_does_not_depend_on_k_or_on_the_other_rows(engine: Engine) -> None:
    """Also where prompts are read in chunks: what was written as a code is read as that code."""
    alone = [engine.generate([prompt], GREEDY, num_speculative_tokens=0)[0].token_ids for prompt in PROMPTS]
    for k in (0, 1, 3):
        together = engine.generate(PROMPTS, GREEDY, num_speculative_tokens=k)
        assert [output.token_ids for output in together] == alone


def test_older_manifest_without_types_is_read() -> None:
    problems: list[str] = []
    assert decode(Cache, {"heads": 2, "head_dim": 16}, problems) == Cache(2, 16)
    assert not problems


def test_a_plan_and_its_manifest_must_agree(engine: Engine) -> None:
    """Memory would be given for codes and written as numbers, or the other way round."""
    good = engine.manifest
    wide = replace(good.target, caches=tuple(replace(cache, dtype="") for cache in good.target.caches))
    odd = replace(good.target, caches=tuple(replace(cache, dtype="int3") for cache in good.target.caches))
    assert _complaints(replace(good, target=wide)) == [
        "target.plan and target.caches have different types for k_cache.0"
    ]
    assert _complaints(replace(good, drafter=_narrow(good.drafter)))
    assert "target.caches: tensorrt-rtx does not support cache type 'int3'" in _complaints(replace(good, target=odd))
