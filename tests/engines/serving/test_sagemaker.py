"""SageMaker's two routes, and the JSON that configures speculation in its containers."""

from __future__ import annotations

import json

import pytest

from peagle.engines import Engine
from peagle.engines.serving.server import Server
from peagle.engines.serving.speculative_config import VARIABLES, DefaultDrafts, SpeculationSettings, speculation_of
from peagle.plugins.errors import UsageError
from tests.engines.serving.calls import call, error_of

PROMPT = "def f(x):\n"
COMPLETION = {"prompt": PROMPT, "max_tokens": 6, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 6, "temperature": 0}
# Like AWS's own endpoint.
DEPLOYED = '{"model": "/opt/ml/additional-model-data-sources/eagle", "method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting": true}'  # noqa: E501


@pytest.mark.parametrize(("body", "path"), [(COMPLETION, "/v1/completions"), (CHAT, "/v1/chat/completions")])
def test_invocation_type_follows_its_body(server: Server, body: dict[str, object], path: str) -> None:
    status, _, content = call(server, "POST", "/invocations", body)
    assert status == 200
    own = json.loads(call(server, "POST", path, body)[2])
    assert json.loads(content)["choices"] == own["choices"]


def test_an_invocation_streams(server: Server) -> None:
    status, headers, content = call(server, "POST", "/invocations", {**CHAT, "stream": True})
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert content.endswith(b"data: [DONE]\n\n")


def test_a_route_names_the_path(server: Server) -> None:
    headers = {"X-Amzn-SageMaker-Custom-Attributes": "a=b, route=/v1/chat/completions"}
    assert json.loads(call(server, "POST", "/invocations", CHAT, headers)[2])["object"] == "chat.completion"
    status, _, content = call(server, "POST", "/invocations", COMPLETION, headers)
    assert status == 400
    assert error_of(content)["param"] in {"messages", "prompt"}
    headers = {"X-Amzn-SageMaker-Custom-Attributes": "route=/etc/passwd"}
    status, _, content = call(server, "POST", "/invocations", CHAT, headers)
    assert status == 400
    assert error_of(content)["param"] == "route"


@pytest.mark.parametrize("variable", VARIABLES)
def test_container_variable_is_read(served_engine: Engine, variable: str) -> None:
    assert speculation_of(None, {variable: DEPLOYED}, served_engine.manifest).drafts == DefaultDrafts(3, None)
    assert speculation_of('{"method": "ngram"}', {variable: DEPLOYED}, served_engine.manifest).drafts.draft == "ngram"
    assert speculation_of(None, {}, served_engine.manifest) == SpeculationSettings()
    lossy = speculation_of(None, {variable: '{"acceptance_tolerance": 0.2}'}, served_engine.manifest)
    assert lossy.drafts == DefaultDrafts(None, None, 0.2)


@pytest.mark.parametrize("variable", VARIABLES)
def test_ignored_setting_is_reported_with_a_reason(served_engine: Engine, variable: str) -> None:
    assert speculation_of(None, {variable: DEPLOYED}, served_engine.manifest).left_out == (
        f"{variable}: ignored: model (the drafter is built into the engine)",
        f"{variable}: ignored: parallel_drafting (the head's config.json declares whether the head drafts in one pass)",
    )
    newer = '{"enforce_eager": true, "quantization": "fp8", "moe_backend": "triton", "draft_len_schedule": {"4": 2}}'
    told = speculation_of(None, {variable: newer}, served_engine.manifest)
    assert [" ".join(each.split()[2:4]) for each in told.left_out] == [
        "enforce_eager, moe_backend", "quantization (a", "draft_len_schedule (the"
    ]  # fmt: skip
    assert told.drafts == DefaultDrafts()


@pytest.mark.parametrize("spec", ['{"num_trees": 2, "tree_depth": 4}', "true", '"4x2"', "[[0], [0, 0], [1]]"])
def test_parallel_draft_trees_are_recognized_in_any_form(served_engine: Engine, spec: str) -> None:
    text = f'{{"method": "eagle3", "num_speculative_tokens": 3, "parallel_drafting_spec": {spec}}}'
    read = speculation_of(text, {}, served_engine.manifest)
    assert read.drafts == DefaultDrafts(3, None)
    (told,) = read.left_out
    assert told.startswith("--speculative-config: ignored: parallel_drafting_spec (the engine chooses the shape")


def test_an_empty_body_is_called_empty(server: Server) -> None:
    status, _, content = call(server, "POST", "/invocations", b"")
    assert (status, "the body is empty" in content.decode()) == (400, True)


def test_default_behaviour_settings_are_accepted_silently(served_engine: Engine) -> None:
    same = '{"draft_tensor_parallel_size": 1, "rejection_sample_method": "standard", "model": null, "method": "EAGLE3"}'
    assert speculation_of(same, {}, served_engine.manifest) == SpeculationSettings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("3", "not a JSON object"),
        ("{", "not valid JSON"),
        ('{"method": "ngram", "method": "eagle3"}', "the key 'method' appears twice"),
        ('{"num_speculative_tokens": 1000}', "num_speculative_tokens 1000 is not supported"),
        ('{"num_speculative_tokens": "3"}', "num_speculative_tokens '3' is not supported"),
        ('{"method": "medusa"}', "unknown method 'medusa'"),
        ('{"method": ["eagle3"]}', "unknown method"),
        ('{"tokens": 3}', "'tokens'"),
        ('{"num_speculative_token": 3}', "unknown key 'num_speculative_token'"),
        ('{"draft_tensor_parallel_size": 2}', "draft_tensor_parallel_size 2 is not supported"),
        ('{"rejection_sample_method": "synthetic"}', "rejection_sample_method 'synthetic'"),
        ('{"posterior_threshold": 0.1}', "posterior_threshold 0.1"),
        ('{"max_draft_len": 3}', "max_draft_len 3"),
        ('{"acceptance_tolerance": 1.5}', "acceptance_tolerance must be"),
        ('{"acceptance_tolerance": true}', "acceptance_tolerance must be"),
    ],
)
def test_unsupported_setting_is_rejected_by_key(served_engine: Engine, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        speculation_of(text, {}, served_engine.manifest)
