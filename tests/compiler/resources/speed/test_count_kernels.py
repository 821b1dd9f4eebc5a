"""Kernels of a layer, by hand; ``tests/scenarios/test_kernels_of_plans.py`` compares them with a plan's steps."""

from __future__ import annotations

import pytest

from peagle.compiler.resources.speed.count_kernels import copies_caches, count_kernels, multiplies_every
from peagle.graphs import layer_trials
from peagle.graphs.layer_trials import Trials
from peagle.graphs.lowering import LOWERINGS
from peagle.graphs.targets import family_for
from peagle.graphs.targets.skeleton import Skeleton
from tests.models import CONFIGS

TENSORRT, SM100 = LOWERINGS["tensorrt"], LOWERINGS["tensorrt-sm100"]


def _trials(family: str) -> Trials:
    config = CONFIGS[family]
    return layer_trials.run_trials(config, family_for(config).describe(config).with_taps(), "bfloat16")


@pytest.fixture(scope="module")
def dense() -> Trials:
    return _trials("qwen3")


@pytest.fixture(scope="module")
def sparse() -> Trials:
    return _trials("qwen3-moe")


def _names(family: str, *roles: str) -> set[str]:
    return {weight.name for weight in Skeleton(CONFIGS[family]).weights if weight.role in roles}


def test_kernels_of_a_dense_layer(dense: Trials) -> None:
    base = count_kernels(dense.base.lowered(TENSORRT))
    more = count_kernels(dense.more["layer"].lowered(TENSORRT)) - base
    matmuls = 4  # q, k and v in one; o; gate and up in one; down
    norms, cache_copies, attention, activation = 3, 2, 2, 1
    assert more == matmuls + norms + cache_copies + attention + activation  # one kernel writes all caches
    assert dense.count(count_kernels, TENSORRT) == base + more * (7 - dense.traced_layers)


def test_matmuls_of_one_input_that_will_be_quantized_alike_are_one_kernel(dense: Trials) -> None:
    graphs = [each.lowered(TENSORRT) for each in (dense.more["layer"], dense.base)]

    def counted(quantized: set[str]) -> int:
        more, base = (count_kernels(graph, quantized) for graph in graphs)
        return more - base

    every = _names("qwen3", "attention", "mlp")
    assert counted(every) == counted(set())
    assert counted({name for name in every if "gate_proj" in name}) == counted(set()) + 1


def test_experts_are_one_layer_or_all_multiplied(sparse: Trials) -> None:
    stacks = _names("qwen3-moe", "experts")
    assert multiplies_every(sparse.base.lowered(TENSORRT), stacks)
    assert not multiplies_every(sparse.base.lowered(SM100), stacks)


def test_kernels_of_a_layer_with_experts(sparse: Trials) -> None:
    """As many as its plan has steps (``tests/scenarios/test_steps_of_plans.py``)."""
    more, base = (count_kernels(each.lowered(TENSORRT)) for each in (sparse.more["sparse"], sparse.base))
    assert more - base == 15


def test_caches_are_copied_up_to_the_reach(dense: Trials) -> None:
    assert copies_caches(dense.base.lowered(TENSORRT))
    assert not copies_caches(dense.base.lowered(LOWERINGS["std"]))
