"""Requests and results through the pipe; invalid requests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.tensorrt.worker_protocol import PlanFacts, PlanRequest
from peagle.engines.folder.records import PlanRecord, PlanTensor, Profile
from peagle.plugins.errors import BuildError, UsageError
from tests.compiler.tensorrt.small import profiles, request

FACTS = PlanFacts(
    plan=PlanRecord(profiles(), {"PLUGIN_V3": 1}, {"AcceptPrefix": 1}, (PlanTensor("tokens", "int32", (-1, -1)),)),
    size=5,
    seconds=0.5,
    peak_rss_bytes=7,
    versions={"tensorrt-rtx": "1.7.1.116"},
    warnings=("slow",),
)


@pytest.mark.parametrize(
    "changes",
    [{}, {"timing_cache": Path("a b/t"), "layers": {"MOE": 2}, "optimization_level": 3, "tuned_on": "NVIDIA H200"}],
)
def test_request_round_trips(changes: dict[str, Any]) -> None:
    asked = request(Path("x/model.onnx"), **changes)
    assert PlanRequest.from_json(asked.to_json()) == asked


def test_facts_round_trip() -> None:
    assert PlanFacts.from_record(FACTS.to_record()) == FACTS


def test_invalid_facts_are_refused() -> None:
    with pytest.raises(BuildError):
        PlanFacts.from_record(FACTS.to_record() | {"size": "five"})


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"product": "tensorflow"}, "tensorflow"),
        ({"gpus": ()}, "no GPU"),
        ({"profiles": ()}, "no profile"),
        ({"optimization_level": 6}, "0 to 5"),
        ({"workspace_bytes": 0}, "workspace"),
        ({"profiles": (Profile("prefill", (2, 1, 1), (1, 1, 1), (1, 1, 1)),)}, "prefill"),
        ({"profiles": (Profile("verify", (1, 1), (1, 1, 1), (1, 1, 1)),)}, "sizes of 1 or more"),
        ({"profiles": (Profile("verify", (1, 1, 1), (0, 1, 1), (1, 1, 1)),)}, "columns"),
        ({"profiles": (Profile("verify", (1, 1, 1), (1, 1, 1), (1, 1, 1), (9, 8, 9)),)}, "positions"),
        ({"profiles": (Profile("further", (1, 1, 1), (1, 1, 1), (2, 2, 2), (), (0, 0, -1)),)}, "of 0 or more"),
    ],
)
def test_an_impossible_request_is_refused_before_a_process_starts(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError) as caught:
        replace(request(Path("model.onnx")), **changes).check()
    assert word in caught.value.why
