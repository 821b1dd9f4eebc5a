"""The work of a drafter: of a head, tensor by tensor, or of an assumed one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.resources.speed.drafter_work import assumed_head, drafter_passes, drafter_work
from peagle.compiler.resources.speed.pass_work import AttentionWork
from peagle.compiler.resources.weight_bytes import head_weights
from peagle.engines.backends.tensorrt.chain import PlanChain
from peagle.engines.backends.tensorrt.memory import Memory, WindowSizes, tensor_block
from peagle.engines.draft_methods import METHODS
from peagle.engines.folder.records import PlanRecord, PlanTensor
from peagle.graphs.drafters import DrafterSpec
from peagle.graphs.lowering import LOWERINGS, TENSORRT
from peagle.graphs.targets import family_for
from peagle.plugins.graph_contract import HIDDEN, NEXT
from tests.engines.backends.host_device import HostDevice
from tests.engines.folder.test_manifest import manifest_of
from tests.models import CONFIGS, VOCAB, make_pair


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> DrafterSpec:
    """A head of two layers with a vocabulary of its own."""
    return make_pair(tmp_path_factory.mktemp("pair"), "qwen3", draft_vocab=VOCAB - 40).specs()[1]


def test_a_known_head_reads_all_but_its_embedding(head: DrafterSpec) -> None:
    recipe = RECIPES["bf16"]
    work = drafter_work(head, recipe, TENSORRT)
    _, size = head_weights(head, recipe, TENSORRT)
    assert work.weights == {"drafter": size - VOCAB * 48 * 2}
    assert work.head_products == {"bf16": (VOCAB - 40) * 48}
    assert work.attention == (AttentionWork(2 * 2 * 2 * 16 * 2, 4 * 4 * 16 * 2),)
    limited = drafter_work(replace(head, windows=(8, 0)), recipe, TENSORRT)
    assert [part.window for part in limited.attention] == [0, 8]
    assert work.kernels > drafter_work(head, recipe, LOWERINGS["cpu"]).kernels == 0


def test_a_head_of_unknown_sizes_is_assumed_as_published_ones_are() -> None:
    config = CONFIGS["qwen3"]
    spec = family_for(config).describe(config)
    head, said = assumed_head(spec, config, None)
    assert (head.num_layers, head.hidden_size, head.draft_vocab_size) == (4, 48, VOCAB)
    assert said.startswith("assumed drafter: 4 layers")
    one, said = assumed_head(spec, config, None, parallel=False)
    assert (one.num_layers, one.strategy) == (1, "autoregressive")
    assert "1 layer as wide" in said


def test_the_card_of_a_head_sets_its_size() -> None:
    config = CONFIGS["qwen3"]
    head, said = assumed_head(family_for(config).describe(config), config, 300_000)
    count, _ = head_weights(head, RECIPES["bf16"], TENSORRT)
    assert count == pytest.approx(300_000, rel=0.01)
    assert "its card" in said


def test_passes_of_each_draft_method(head: DrafterSpec) -> None:
    work = drafter_work(head, RECIPES["bf16"], TENSORRT)
    (parallel,) = drafter_passes(work, METHODS["peagle"], 4, 100)
    assert parallel == work.over(8, 100, emitted=4)
    first, *rest = drafter_passes(work, METHODS["eagle3"], 4, 100)
    assert (first.columns, [each.columns for each in rest]) == (5, [1, 1, 1])
    assert drafter_passes(work, METHODS["peagle"], 0, 100) == ()
    assert drafter_passes(None, METHODS["ngram"], 4, 100) == ()


def test_passes_of_a_chain_include_the_copies_between_them(head: DrafterSpec) -> None:
    class Counting(HostDevice):
        copies = 0

        def copy(self, *arguments: Any) -> None:
            self.copies += 1
            super().copy(*arguments)

        def copy_box(self, *arguments: Any) -> None:
            self.copies += 1
            super().copy_box(*arguments)

    manifest, device, largest = manifest_of({}), Counting(), WindowSizes(2, 8, 8)
    assert manifest.drafter is not None
    plan = PlanRecord((), {}, {}, (PlanTensor(HIDDEN, "float16", (-1, 8)),))
    memory = Memory(device, replace(manifest, drafter=replace(manifest.drafter, plan=plan)), 2, [largest])
    chain, windows = PlanChain(device, memory.sizer, 2), tensor_block(device, memory.sizer, NEXT, largest)
    chain.lay_out(windows[NEXT[0]], windows[NEXT[1]], 2, 8)
    after_first = device.copies
    chain.feed(2)
    chain.take(2)

    work = drafter_work(head, RECIPES["bf16"], TENSORRT)
    first, further, *_ = drafter_passes(work, METHODS["eagle3"], 4, 100)
    assert first.kernels == work.kernels + after_first
    assert further.kernels == work.kernels + device.copies - after_first
