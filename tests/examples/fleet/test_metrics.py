"""One text with the metrics of all replicas, and the comparison of their drafters."""

from __future__ import annotations

import json

import pytest
from fleet.metrics import Report, Tally, comparison, merged
from prometheus_client.parser import text_string_to_metric_families

from peagle.engines.serving.server import Server
from tests.engines.serving.calls import call


def _metrics(server: Server) -> str:
    return call(server, "GET", "/metrics")[2].decode()


def test_every_series_of_every_replica_has_its_name_as_a_label(server: Server) -> None:
    text = _metrics(server)
    alone = {family.name: family for family in text_string_to_metric_families(text)}
    together = list(text_string_to_metric_families(merged({"a": text, "b": text})))
    assert sorted(family.name for family in together) == sorted(alone)  # each once, as the format requires
    for family in together:
        own = alone[family.name]
        assert (family.type, family.documentation) == (own.type, own.documentation)
        for replica in ("a", "b"):
            its = [
                (sample.name, {name: value for name, value in sample.labels.items() if name != "replica"}, sample.value)
                for sample in family.samples
                if sample.labels["replica"] == replica
            ]
            assert its == [(sample.name, dict(sample.labels), sample.value) for sample in own.samples]


def test_a_series_that_only_one_replica_has_is_kept() -> None:
    one = "# HELP a A.\n# TYPE a counter\na 1.0\n"
    other = '# HELP b B.\n# TYPE b gauge\nb{x="y z"} 2.0\n'
    assert merged({"r": one, "s": other}).splitlines() == [
        "# HELP b B.", "# TYPE b gauge", 'b{replica="s",x="y z"} 2.0',
        "# HELP a A.", "# TYPE a counter", 'a{replica="r"} 1.0',
    ]  # fmt: skip


def test_the_tally_counts_the_usage_in_answers(server: Server) -> None:
    before = Tally.of(_metrics(server))
    fixed = {"num_speculative_tokens": 2, "temperature": 0}  # the policy might choose no drafts
    body = {"prompt": "def f(x):\n", "max_tokens": 20, "ignore_eos": True, **fixed}
    usages = [json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"] for _ in range(2)]
    grown = Tally.of(_metrics(server)) - before
    assert grown.requests == 2
    assert grown.tokens == sum(usage["completion_tokens"] - 1 for usage in usages)
    said = [usage["speculation"] for usage in usages]
    assert grown.drafted_rounds == sum(each["rounds"] for each in said) > 0
    assert grown.accepted == sum(each["accepted_tokens"] for each in said)
    assert grown.rounds == sum(each["rounds"] + each["rounds_without_drafts"] for each in said)
    assert grown.seconds > 0


def test_drafters_are_compared_over_all_replicas_that_use_them() -> None:
    found = comparison(
        [
            Report("r", "e1", "built-in", Tally(3, 60, 30, 20, 20, 2.0)),
            Report("s", "e1", "built-in", Tally(1, 60, 10, 10, 40, 1.0)),
            Report("t", "e1", "code", Tally(2, 90, 30, 30, 60, 1.5), "it is damaged"),
            Report("u", "e1", "code", Tally()),
        ]
    )
    built_in, code = found["drafters"]
    assert built_in == {
        "drafter": "built-in", "replicas": 2, "requests": 4,
        "acceptance_length": 3.0, "tokens_per_round": 3.0, "tokens_per_second": 40.0,
    }  # fmt: skip
    assert (code["replicas"], code["acceptance_length"], code["tokens_per_second"]) == (2, 3.0, 60.0)
    assert [each["replica"] for each in found["replicas"]] == ["r", "s", "t", "u"]
    assert [each.get("problem") for each in found["replicas"]] == [None, None, "it is damaged", None]
    assert found["replicas"][3]["tokens_per_second"] is None  # nothing counted is not a speed of 0


@pytest.mark.parametrize("sign", [1, -1])
def test_tallies_are_added_and_subtracted_count_by_count(sign: int) -> None:
    ours, theirs = Tally(9, 8, 7, 6, 5, 4.0), Tally(1, 2, 3, 4, 5, 0.5)
    found = ours + theirs if sign > 0 else ours - theirs
    assert found == Tally(9 + sign, 8 + 2 * sign, 7 + 3 * sign, 6 + 4 * sign, 5 + 5 * sign, 4 + sign / 2)
