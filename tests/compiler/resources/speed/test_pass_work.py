"""The work of a pass: exact for small numbers, and never less for more tokens, rows or context."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.compiler.resources.speed.pass_work import CACHE, COPIES, EXPERTS, LOGITS, AttentionWork, Experts, GraphWork

COUNTS = st.integers(0, 10**9)
EXPERT_SETS = st.integers(1, 256).flatmap(
    lambda count: st.builds(
        Experts,
        st.just(count),
        st.integers(1, count),
        st.integers(1, 10**9),
        st.integers(1, 10**9),
        st.just("fp8"),
        st.booleans(),
    )
)
GRAPHS = st.builds(
    GraphWork,
    weights=st.fixed_dictionaries({"attention": COUNTS}),
    products=st.fixed_dictionaries({"fp8": COUNTS}),
    head_products=st.fixed_dictionaries({"bf16": COUNTS}),
    wide=st.just("bf16"),
    attention=st.lists(st.builds(AttentionWork, COUNTS, COUNTS, st.integers(0, 10**4))).map(tuple),
    logit_bytes=COUNTS,
    row_bytes=COUNTS,
    copies_cache=st.booleans(),
    experts=st.none() | EXPERT_SETS,
)


def test_a_pass_of_a_small_graph_by_hand() -> None:
    experts = Experts(count=4, chosen=2, bytes=4000, values=4000, kind="fp8")
    graph = GraphWork(
        {"attention": 100, "lm_head": 60},
        {"fp8": 100},
        {"bf16": 30},
        "bf16",
        attention=(AttentionWork(8, 5), AttentionWork(100, 7, window=4)),
        logit_bytes=20,
        row_bytes=2,
        kernels=7,
        copies_cache=True,
        experts=experts,
    )
    work = graph.over(3, 10, emitted=2)
    distinct = 4 * (1 - 0.5**3)
    assert work.bytes == {
        "attention": 100, "lm_head": 60, EXPERTS: 1000 * distinct, CACHE: 8 * (10 + 3) + 100 * (3 + 3),
        COPIES: 2 * (8 * 10 + 100 * 3),
        LOGITS: 2 * 20 * 2, "embedding": 2 * 3,
    }  # fmt: skip
    assert work.operations == {"fp8": 2 * 100 * 3 + 2 * 2000 * 3, "bf16": 2 * 30 * 2 + 5 * 13 * 3 + 7 * 6 * 3}
    assert work.first_operations == 2 * (100 + 30 + 1000 * distinct)
    assert work.weight_bytes == 160 + 1000 * distinct
    assert (work.kernels, work.columns) == (7, 3)


def test_dense_experts_are_all_read_and_computed() -> None:
    experts = Experts(8, 2, 800, 800, "fp8", dense=True)
    work = GraphWork({}, {}, {}, "bf16", (), 0, 0, experts=experts).over(1, 0)
    assert (work.bytes[EXPERTS], work.operations["fp8"]) == (800, 2 * 800)


@pytest.mark.parametrize(("tokens", "distinct"), [(1, 8.0), (5, 35.3), (11, 65.1), (19, 90.4)])
def test_distinct_experts_of_qwen3_coder(tokens: int, distinct: float) -> None:
    assert Experts(128, 8, 1, 1, "fp8").distinct(tokens) == pytest.approx(distinct, abs=0.05)


def test_a_context_within_the_attention_window_is_read_in_full() -> None:
    limited, unlimited = (
        GraphWork({}, {}, {}, "bf16", (AttentionWork(8, 5, window),), 0, 0, copies_cache=True) for window in (128, 0)
    )
    assert limited.over(3, 127) == unlimited.over(3, 127)
    assert limited.over(3, 10**6) == limited.over(3, 127)


@given(GRAPHS, st.integers(1, 64), st.integers(0, 10**5), st.integers(1, 8))
def test_more_tokens_rows_or_context_are_never_less_work(
    graph: GraphWork, columns: int, context: int, rows: int
) -> None:
    work = graph.over(columns, context, rows=rows)
    for more in (
        graph.over(columns + 1, context, rows=rows),
        graph.over(columns, context + 1, rows=rows),
        graph.over(columns, context, rows=rows + 1),
    ):
        assert more.total_bytes >= work.total_bytes
        assert more.total_operations >= work.total_operations


@given(EXPERT_SETS, st.integers(1, 64))
def test_distinct_experts_are_at_most_those_chosen_and_those_there_are(experts: Experts, tokens: int) -> None:
    distinct = experts.distinct(tokens)
    assert distinct <= experts.count + 1e-9
    if not experts.dense:
        assert experts.chosen - 1e-9 <= distinct <= experts.chosen * tokens + 1e-6
