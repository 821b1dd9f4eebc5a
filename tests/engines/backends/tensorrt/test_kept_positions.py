"""Cache positions of a device are kept on the host and copied back unchanged to any slot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.tensorrt.device import Box, box_copy
from peagle.engines.backends.tensorrt.kept_positions import KeptMemory, position_bytes
from peagle.engines.backends.tensorrt.memory import Caches
from peagle.engines.folder.records import Cache
from peagle.engines.scheduling.prefix_cache import BLOCK
from tests.engines.backends.host_device import HostDevice
from tests.engines.backends.plan_engine import lowered, plan_engine, plan_manifest
from tests.engines.scheduling.test_prefix_cache import DRAFTS, PROMPTS, SHARED, _keeping
from tests.models import Pair

SLOTS, LENGTH = 3, 64


def _caches(device: HostDevice, *caches: Cache) -> Caches:
    return Caches(device, SimpleNamespace(caches=caches), SLOTS, LENGTH, "float16")  # type: ignore[arg-type]


@pytest.fixture
def device() -> HostDevice:
    return HostDevice()


def _contents(device: HostDevice, caches: Caches) -> dict[str, np.ndarray]:
    """Every cache as the device has it, byte by byte: [slots, heads, length, bytes]."""
    shapes, addresses = caches.first_rows(SLOTS)
    sizes = {name: caches._rows[name] // (shape[1] * LENGTH) for name, shape in shapes.items()}
    device.record().wait()
    return {
        name: device.view(addresses[name], (*shape[:3], sizes[name]), np.uint8).copy() for name, shape in shapes.items()
    }


def _fill(device: HostDevice, caches: Caches, contents: dict[str, np.ndarray]) -> None:
    """Upload such contents."""
    _, addresses = caches.first_rows(SLOTS)
    for name, content in contents.items():
        source = device.pinned(content.shape, np.uint8)
        source[:] = content
        device.upload(addresses[name], source)


def test_kept_positions_are_restored_in_any_slot_and_nowhere_else(device: HostDevice) -> None:
    """Layers of several shapes and types, as Gemma-4 has them."""
    rng = np.random.default_rng(1)
    caches = _caches(device, Cache(2, 8), Cache(4, 16), Cache(2, 8), Cache(2, 32, "float8e4m3fn"))
    memory = KeptMemory(device)
    before = {
        name: rng.integers(0, 256, each.shape).astype(np.uint8) for name, each in _contents(device, caches).items()
    }
    _fill(device, caches, before)
    kept = memory.keep([caches], 1, 16, 32)
    assert kept.num_bytes == 16 * position_bytes([caches])
    memory.restore([caches], 2, kept)
    for name, each in _contents(device, caches).items():
        before[name][2, :, 16:32] = before[name][1, :, 16:32]
        assert np.array_equal(each, before[name])


def test_a_buffer_is_reused_once_its_copy_is_dropped_and_not_before(device: HostDevice) -> None:
    """Even if the copy out of it has not run yet: copies run in order."""
    caches = _caches(device, Cache(1, 8))
    memory, contents = KeptMemory(device), _contents(device, caches)
    for slot in range(2):
        for each in contents.values():
            each[slot] = slot + 1
    _fill(device, caches, contents)
    held = memory.keep([caches], 0, 0, 4)
    addresses = {held.content.ctypes.data}
    for _ in range(40):
        kept = memory.keep([caches], 1, 0, 4)
        memory.restore([caches], 2, kept)
        addresses.add(kept.content.ctypes.data)
        del kept
    assert len(addresses) <= 3
    memory.restore([caches], 1, held)
    for each in _contents(device, caches).values():
        assert (each[1, :, :4] == 1).all()
        assert (each[2, :, :4] == 2).all()


def test_the_driver_gets_the_same_copy() -> None:
    pytest.importorskip("cuda.bindings")
    copy: Any = box_copy(Box(4096, 64, 8), Box(1 << 20, 16, 2), 16, 2, 5)
    assert (int(copy.srcDevice), copy.srcPitch, copy.srcHeight) == (1 << 20, 16, 2)
    assert (int(copy.dstDevice), copy.dstPitch, copy.dstHeight) == (4096, 64, 8)
    assert (copy.WidthInBytes, copy.Height, copy.Depth) == (16, 2, 5)


@pytest.fixture(scope="module")
def plans(tiny_pair: Pair, tiny_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    graphs = lowered(tiny_pair.target, tiny_pair.head, "float32", tiny_engine.manifest.shapes.cache_length)
    folder = tmp_path_factory.mktemp("plans")
    return plan_engine(folder, plan_manifest(tiny_engine.manifest, graphs, folder), tiny_engine.folder, slots=3)[0]


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    asked=st.lists(st.tuples(PROMPTS, DRAFTS), min_size=2, max_size=6),
    tokens=st.sampled_from([40, 10_000]),
    max_prefill_tokens=st.sampled_from([5, 64]),
)
def test_cached_prompt_gives_the_same_text_and_drafts(
    plans: Engine, asked: list[Any], tokens: int, max_prefill_tokens: int
) -> None:
    """One after the other, and together: there, rows share the widths of their windows, so drafts may differ."""
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0.8, seed=4)
    alone = [plans.generate([prompt], params, **drafts)[0] for prompt, drafts in asked]
    limit = tokens * plans._backend.kept_bytes
    with _keeping(plans, limit, max_prefill_tokens=max_prefill_tokens) as engine:
        for (prompt, drafts), expected in zip(asked, alone, strict=True):
            result = engine.generate([prompt], params, **drafts)[0]
            assert (result.token_ids, result.acceptance) == (expected.token_ids, expected.acceptance)
        told = [engine.submit(prompt, params, **drafts) for prompt, drafts in asked]
        assert [each.result().token_ids for each in told] == [each.token_ids for each in alone]


def test_shared_blocks_of_prompts_and_answers_are_read_once(plans: Engine) -> None:
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    with _keeping(plans, 10**8) as engine:
        first, again = (engine.generate([SHARED[0]], params)[0] for _ in range(2))
        assert (first.cached_tokens, again.cached_tokens) == (0, 2 * BLOCK)
        said = [*SHARED[0], *first.token_ids, 8, 9]
        assert engine.generate([said], params)[0].cached_tokens == len(said) // BLOCK * BLOCK - BLOCK * (
            len(said) % BLOCK == 0
        )
        assert engine.generate([SHARED[2]], params, draft="none")[0].cached_tokens == 0
        assert engine.generate([SHARED[2]], params)[0].cached_tokens == 0, "the drafter has not read it"
