"""Graphs of the lowerings ``cpu`` and ``tensorrt`` verify draft trees, with kernels or standard bodies."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from peagle.plugins.graph_contract import ANCESTORS, CANDIDATES, MAX_CANDIDATES, SKIPPED, TARGET_INPUTS
from tests.graphs.running import Graph, target_inputs
from tests.graphs.traced import CACHE, Traced
from tests.models import LAYERS, VOCAB
from tests.plugins.ops.accept_tree.trees import skipped_of

PROMPT = np.array([[5, 9, 17, 3]])
DRAFTS = (11, 23, 42, 8, 30)
PARENTS = (0, 0, 1, 3, 1)  # columns: 1 and 2 follow the newest token, 3 and 5 follow 1, and 4 follows 3
PATHS = {1: (1,), 2: (2,), 3: (1, 3), 4: (1, 3, 4), 5: (1, 5)}


def tree(lowering: str, parents: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Return the tree input of a graph for drafts with these parent columns."""
    if lowering == "tensorrt":
        return {SKIPPED: np.array([skipped_of([*parents])])}
    seen = np.zeros((1, len(parents) + 1, len(parents) + 1), bool)
    for column, parent in enumerate(parents, 1):
        seen[0, column] = seen[0, parent]
        seen[0, column, parent] = True
    return {ANCESTORS: seen}


def begun(traced: Traced, lowering: str) -> Graph:
    """The target's graph behind the prompt."""
    graph = Graph(traced.built("target", lowering), traced.target.caches, CACHE)
    told = {ANCESTORS: np.tri(PROMPT.shape[1], k=-1, dtype=bool)[None]} if lowering == "cpu" else {}
    graph(**target_inputs(PROMPT, 0, 0, 1), **told)
    return graph


def window(graph: Graph, ids: tuple[int, ...], **told: Any) -> dict[str, np.ndarray]:
    return graph(**target_inputs(np.array([[7, *ids]]), PROMPT.shape[1], len(ids), len(ids) + 1), **told)


def test_target_gets_ancestors_and_walks_the_tree(qwen3: Traced) -> None:
    graph = qwen3.lowered("target", "cpu").model.graph
    assert [value.name for value in graph.inputs][: len(TARGET_INPUTS) + 1] == [*TARGET_INPUTS, ANCESTORS]
    assert str(graph.inputs[len(TARGET_INPUTS)].shape) == "[B,S,S]"
    count = Counter(node.op_type for node in graph)
    assert (count["AcceptPrefix"], count["AcceptTree"], count["CachedAttention"]) == (0, 1, LAYERS)


@pytest.mark.parametrize(("lowering", "atol"), [("cpu", 2e-5), ("tensorrt", 1e-4)])
def test_tree_node_matches_the_end_of_its_chain(every: Traced, lowering: str, atol: float) -> None:
    forked = window(begun(every, lowering), DRAFTS, **tree(lowering, PARENTS))
    for column, path in PATHS.items():
        straight = window(begun(every, "std"), tuple(DRAFTS[each - 1] for each in path))
        np.testing.assert_allclose(forked["logits"][0, column], straight["logits"][0, len(path)], atol=atol)
        np.testing.assert_allclose(forked["aux_hidden"][0, column], straight["aux_hidden"][0, len(path)], atol=atol)


@pytest.mark.parametrize("lowering", ["cpu", "tensorrt"])
def test_emitted_tokens_follow_the_targets_own_path(qwen3: Traced, lowering: str) -> None:
    """Each draft that the target would write in place of one that it would not, where the tree forks."""
    first = window(begun(qwen3, "std"), ())["tokens"][0, 0]
    second = window(begun(qwen3, "std"), (int(first),))["tokens"][0, 1]
    other = [int(token + 1) % VOCAB for token in (first, second)]
    ids = (other[0], int(first), int(second), other[1], int(second))
    made = window(begun(qwen3, lowering), ids, **tree(lowering, (0, 0, 1, 2, 2)))
    last = window(begun(qwen3, "std"), (int(first), int(second)))["tokens"][0, 2]
    assert made["tokens"][0, : made["num_tokens"][0]].tolist() == [first, second, last]
    if lowering == "tensorrt":
        assert made["path"].tolist() == [[0, 2, 5, -1, -1, -1]]


def test_a_draft_is_drawn_with_the_number_of_its_position(qwen3: Traced) -> None:
    """A graph for TensorRT finds them itself: it gets those of successive positions."""
    numbers = np.array([[0.9, 0.15, 0.4, 0.7, 0.3, 0.6]], np.float32)
    parents, heat = (0, 0, 1, 2, 4), {"temperature": np.ones(1, np.float32)}
    asked = target_inputs(np.array([[7, *DRAFTS]]), PROMPT.shape[1], len(DRAFTS), len(DRAFTS) + 1) | heat
    for accepted in ((), (2,), (2, 4)):  # the drafts of the path are made the target's own, one by one
        ids = asked["input_ids"]
        by_host = begun(qwen3, "cpu")(**asked | {"uniform": numbers[:, [0, 1, 1, 2, 2, 3]]}, **tree("cpu", parents))
        by_graph = begun(qwen3, "tensorrt")(**asked | {"uniform": numbers}, **tree("tensorrt", parents))
        assert by_graph["tokens"].tolist() == by_host["tokens"].tolist()
        assert by_host["num_tokens"] == 1 + len(accepted)
        ids[0, (2, 4, 5)[len(accepted)]] = by_host["tokens"][0, len(accepted)]


def test_the_drafter_returns_the_most_likely_tokens_of_every_position(qwen3: Traced) -> None:
    graph = qwen3.lowered("drafter", "cpu").model.graph
    count = min(MAX_CANDIDATES, VOCAB)
    assert {value.name: str(value.shape) for value in graph.outputs if value.name in CANDIDATES} == dict.fromkeys(
        CANDIDATES, f"[B,E - 1,{count}]"
    )
    drafter = Graph(qwen3.built("drafter", "cpu"), qwen3.head.caches, CACHE)
    target = Graph(qwen3.built("target", "std"), qwen3.target.caches, CACHE)
    asked = target_inputs(PROMPT, 0, 0, 4)
    emitted = target(**asked)
    inputs = {name: asked[name] for name in ("input_ids", "start", "window_len", "draft_len")}
    made = drafter(**inputs, **{name: emitted[name] for name in ("tokens", "num_tokens", "aux_hidden")})
    ids, scores, logits = made["candidate_ids"], made["candidate_scores"], made["draft_logits"].astype(np.float64)
    assert np.array_equal(ids[..., 0], made["draft_ids"])
    logs = (
        logits
        - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        - logits.max(-1, keepdims=True)
    )
    np.testing.assert_allclose(scores, -np.sort(-logs, -1)[..., :count], atol=1e-4)
