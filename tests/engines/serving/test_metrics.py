"""Metrics of requests, tokens, drafts and APIs, as Prometheus scrapes them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from peagle.engines import Engine
from peagle.engines.serving.faces import FACES
from peagle.engines.serving.server import Server
from tests.engines.serving.calls import call
from tests.fixtures.servers import MODEL

PROMPT = "def f(x):\n"


def test_metrics_count_requests_tokens_and_drafts(server: Server) -> None:
    def told() -> dict[str, float]:
        text = call(server, "GET", "/metrics")[2].decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line[0] != "#"}

    before = told()
    body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
    usage = json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"]
    after = told()

    def grown(name: str, labels: str = "") -> float:
        key = f'vllm:{name}{{{labels}model_name="{MODEL}"}}'
        return after[key] - before.get(key, 0)

    assert grown("generation_tokens_total") == usage["completion_tokens"] == 20
    assert grown("prompt_tokens_total") == usage["prompt_tokens"]
    assert grown("request_success_total", 'finished_reason="length",') == 1
    exact = 'lossy="false",'
    assert grown("spec_decode_num_draft_tokens_total", exact) == usage["speculation"]["drafted_tokens"]
    assert grown("spec_decode_num_accepted_tokens_total", exact) == usage["speculation"]["accepted_tokens"]
    assert grown("time_to_first_token_seconds_count") == 1
    assert grown("inter_token_latency_seconds_count") == 19
    assert grown("request_time_per_output_token_seconds_count") == 1
    assert 0 < grown("request_time_per_output_token_seconds_sum") < grown("e2e_request_latency_seconds_sum")
    assert grown("request_prompt_tokens_sum") == usage["prompt_tokens"]
    assert grown("request_generation_tokens_sum") == 20

    def ours(name: str) -> float:
        key = f'peagle:{name}{{model_name="{MODEL}"}}'
        return after[key] - before.get(key, 0)

    speculation = usage["speculation"]
    rounds = speculation["rounds"] + speculation["rounds_without_drafts"]
    assert ours("num_rounds_total") == rounds
    assert ours("verify_seconds_total") * 1000 / rounds == pytest.approx(
        speculation["verify_milliseconds_per_round"], abs=1e-3
    )
    assert ours("draft_seconds_total") > 0
    assert 0 <= ours("later_num_drafts_total") <= speculation["rounds"]
    assert after[f'peagle:num_slots{{model_name="{MODEL}"}}'] == 3
    assert 0 <= after[f'vllm:kv_cache_usage_perc{{model_name="{MODEL}"}}'] <= 1
    assert after[f'peagle:drafter_misfit{{model_name="{MODEL}"}}'] == 0


def test_metrics_count_the_requests_of_each_api(server: Server) -> None:
    """Refused ones count as well; monitoring does not."""

    def told() -> dict[str, float]:
        found = re.findall(r'^peagle:api_requests_total{api="(\w+)",.*} (\S+)$', _metrics(server), re.MULTILINE)
        return {name: float(count) for name, count in found}

    before = told()
    assert [*before] == [*FACES]
    messages = [{"role": "user", "content": PROMPT}]
    for path, body in (
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 1}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 1}),
        ("/v1/responses", {"colour": 1}),
        ("/v1/messages", {"messages": messages, "max_tokens": 1}),
        ("/v1/messages/count_tokens", {"messages": messages}),
        ("/v1/messages", {"messages": messages, "max_tokens": 1, "stream": True}),
        ("/invocations", {"prompt": PROMPT, "max_tokens": 1}),
        ("/nothing", {}),
    ):
        call(server, "POST", path, body)
    call(server, "GET", "/ping")
    after = told()
    assert {name: after[name] - before[name] for name in after} == {
        "openai": 1, "responses": 2, "anthropic": 3, "sagemaker": 1,
    }  # fmt: skip


def test_metrics_count_form_outcomes(server: Server) -> None:
    pytest.importorskip("llguidance")

    def told() -> dict[str, float]:
        lines = call(server, "GET", "/metrics")[2].decode().splitlines()
        return {
            line.split("{")[0] + "".join(re.findall(r'(?:form|reason)="\w+"', line)): float(line.rsplit(" ", 1)[1])
            for line in lines
            if line.startswith("peagle:grammar")
        }

    before = told()
    body = {"prompt": PROMPT, "max_tokens": 60, "temperature": 0, "num_speculative_tokens": 3}
    form = {"structured_outputs": {"regex": f"(counted {len(before)} vowels, ){{2}}"}}
    usage = json.loads(call(server, "POST", "/v1/completions", {**body, **form})[2])["usage"]["speculation"]
    assert call(server, "POST", "/v1/completions", {**body, **form})[0] == 200
    assert call(server, "POST", "/v1/completions", {**body, "guided_regex": "("})[0] == 400
    assert (
        call(server, "POST", "/v1/completions", {**body, "guided_regex": "never before", "allowed_token_ids": [5]})[0]
        == 400
    )
    grown = {key: value - before.get(key, 0) for key, value in told().items()}
    assert usage["grammar_drafted_tokens"] > 0
    assert grown["peagle:grammar_draft_tokens_total"] == 2 * usage["grammar_drafted_tokens"]
    assert grown["peagle:grammar_accepted_tokens_total"] == 2 * usage["grammar_accepted_tokens"]
    assert grown['peagle:grammar_requests_totalform="regex"'] == 3
    assert grown["peagle:grammar_compile_seconds_count"] == 2, "what stays compiled is not compiled again"
    assert grown["peagle:grammar_compile_seconds_sum"] > 0
    assert grown['peagle:grammar_failures_totalreason="refused"'] == 1
    assert grown['peagle:grammar_failures_totalreason="stuck"'] == 1


def test_metrics_describe_the_caches_and_the_process(server: Server, served_engine: Engine) -> None:
    text = _metrics(server)
    (labels,) = re.findall(r"^vllm:cache_config_info{(.*)} 1.0$", text, re.MULTILINE)
    told = dict(re.findall(r'(\w+)="(\w*)"', labels))
    assert told["model_name"] == MODEL
    tokens = 3 * served_engine.max_seq_len
    assert (told["kv_cache_size_tokens"], told["num_gpu_blocks"]) == (str(tokens), str(tokens // 16))
    assert (told["block_size"], told["enable_prefix_caching"], told["prefix_cache_bytes"]) == (
        "16",
        "True",
        str(4 << 20),
    )
    if Path("/proc/self/stat").exists():  # the client library knows it only there
        found = dict(re.findall(r"^process_(\w+) (\S+)$", text, re.MULTILINE))
        assert float(found["resident_memory_bytes"]) > 1 << 20
        assert 0 < time.time() - float(found["start_time_seconds"]) < 86400 * 30
        assert float(found["max_fds"]) >= float(found["open_fds"]) > 0


def _metrics(server: Server) -> str:
    return call(server, "GET", "/metrics")[2].decode()
