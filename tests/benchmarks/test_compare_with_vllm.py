"""A difference from vLLM is a failure, unless both runtimes give the two tokens nearly the same logit."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
from compare_with_vllm import METHODS, Pair, margins_of, verdict
from peers.process import running
from rounds import Answer, Difference

from peagle.engines import Engine, SamplingParams
from peagle.engines.draft_methods import METHODS as KNOWN

TOKEN = Difference(5, 17, 23)


def test_equal_answers_are_equal() -> None:
    found = verdict(None, None, 1e-3)
    assert (found.text, found.equal, found.tie) == ("equal", True, False)


def test_tokens_within_the_margin_in_both_are_a_tie_that_is_named() -> None:
    found = verdict(TOKEN, (2e-5, -3e-5), 1e-3)
    assert found.tie
    assert not found.equal
    assert found.text == "tie: token 5 is 17 here and 23 there; logit of ours above theirs: 2.0e-05 and -3.0e-05"


@pytest.mark.parametrize("margins", [(2e-5, -0.2), (0.2, -2e-5), (1e-3, 0.0), (math.inf, math.nan)])
def test_tokens_that_one_runtime_tells_apart_are_a_difference(margins: tuple[float, float]) -> None:
    found = verdict(TOKEN, margins, 1e-3)
    assert not found.equal
    assert not found.tie
    assert found.text.startswith("token 5 is 17 here and 23 there; logit of ours above theirs: ")


@pytest.mark.parametrize("difference", [Difference(5, 17, None), Difference(3, (4, 2), (4, 1), round=1)])
def test_ended_text_or_other_round_is_never_a_tie(difference: Difference) -> None:
    found = verdict(difference, None, 1e-3)
    assert not found.equal
    assert not found.tie


def test_other_round_is_named_with_its_drafts() -> None:
    found = verdict(Difference(3, (4, 2), (4, 1), round=1), None, 1e-3)
    assert found.text == "round 1, from token 3: (drafted, accepted) are (4, 2) here and (4, 1) there"


def test_last_table_has_a_row_for_each_runtime() -> None:
    ours, theirs = Answer((1, 2, 3), (4,), (1,)), Answer((1, 2), (4,), (0,))
    assert Pair("P-EAGLE", 4, "0.32.0", [ours], [theirs], []).rows() == [
        "| P-EAGLE, K = 4 | peagle-compile | 3 | 1 | 4 | 1 0 0 0 | 2.000 |",
        "| P-EAGLE, K = 4 | vLLM 0.32.0 | 2 | 1 | 4 | 0 0 0 0 | 1.000 |",
    ]


def test_methods_draft_chains_as_vllm_does() -> None:
    assert {method.ours for method in METHODS} <= {*KNOWN}
    assert not any(KNOWN[method.ours].trees for method in METHODS)


def test_margin_is_read_from_the_logits_of_both_runtimes(demo_engine: Path) -> None:
    start = [5, 6, 7]
    with Engine.load(demo_engine) as engine:
        (output,) = engine.generate([start], SamplingParams(max_tokens=1, logprobs=2))
        (a, first), (b, second) = output.logprobs[0].top
        answer = {"logprobs": [[b, -1.0], [a, -1.5]]}
        program = f"from peers.serve import serve_answers; serve_answers(lambda: ('1', lambda _: {answer}))"
        with running("stand-in", [sys.executable, "-c", program]) as peer:
            here, there = margins_of(engine, peer, start, Difference(0, a, b))
            assert (here, there) == (pytest.approx(first - second, abs=1e-5), -0.5)
            assert margins_of(engine, peer, start, Difference(0, a, 10**6))[1] == math.inf
            assert margins_of(engine, peer, start, Difference(0, a, None)) is None
            assert margins_of(engine, peer, start, Difference(0, (4, 2), (4, 1), round=1)) is None
