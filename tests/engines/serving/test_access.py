"""API keys, request ids and the log: what it records of each request, and what it never records."""

from __future__ import annotations

import io
import json
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from peagle.engines import Engine
from peagle.engines.policy import misfit
from peagle.engines.serving.access import JsonLines, check_api_key, log
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.plugins.errors import UsageError
from tests.engines.serving.calls import all_slots_taken, call, error_of
from tests.fixtures.servers import MODEL

PROMPT = "def f(x):\n"


def _log(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> io.StringIO:
    """Capture the output of ``serve`` on standard error from here on."""
    lines, root = io.StringIO(), logging.getLogger()
    handler = logging.StreamHandler(lines)
    handler.setFormatter(JsonLines())
    monkeypatch.setattr(root, "handlers", [*root.handlers, handler])
    caplog.set_level(logging.INFO, "peagle.serving")
    return lines


@contextmanager
def _serving_anew(served_engine: Engine, prefix_cache_bytes: int = 0) -> Iterator[Server]:
    """A server over an engine that has seen nothing yet."""
    folder, manifest, tokenizer = served_engine.folder, served_engine.manifest, served_engine.tokenizer
    with Engine(folder, manifest, served_engine._backend, tokenizer, prefix_cache_bytes=prefix_cache_bytes) as engine:
        server = Server(engine, ServerSettings(MODEL), port=0)
        server.start()
        yield server
        server.stop()
        assert server.wait(10)


def test_usage_log_and_metrics_agree(
    served_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = _log(monkeypatch, caplog)
    prompt = PROMPT * 9
    body = {"prompt": prompt, "max_tokens": 60, "ignore_eos": True, "temperature": 0, "num_speculative_tokens": 3}
    with _serving_anew(served_engine, prefix_cache_bytes=1 << 26) as server:
        usage = [json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"] for _ in range(2)]
        series = call(server, "GET", "/metrics")[2].decode().splitlines()
    told = [line for line in map(json.loads, lines.getvalue().splitlines()) if line.get("path") == "/v1/completions"]
    counted = {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in series if line[0] != "#"}
    room = served_engine.load_now.cache_tokens
    for line, one in zip(told, usage, strict=True):
        assert line["cached_tokens"] == one["prompt_tokens_details"]["cached_tokens"]
        assert 0 < line["time_to_first_token"] <= line["seconds"]
        assert 0 < line["inter_token_latency"] < line["seconds"]
        assert 0 <= line["queue_seconds"] <= line["time_to_first_token"]
        assert line["cache_usage"] == round((one["prompt_tokens"] + 60) / room, 4)
        same = ("accepted_per_position", "acceptance_length", "later_acceptance_length", "tokens_per_round")
        for name in (*same, "verify_milliseconds_per_round", "draft_milliseconds_per_round"):
            assert line[name] == one["speculation"][name]
    assert told[0]["cached_tokens"] == 0 < told[1]["cached_tokens"] == counted["vllm:prefix_cache_hits_total"]
    assert counted["vllm:prefix_cache_queries_total"] == 2 * usage[0]["prompt_tokens"]
    assert counted["peagle:later_num_drafts_total"] > 0


def test_cached_tokens_count_equal_prompts_of_a_request_one_by_one(served_engine: Engine) -> None:
    body = {"prompt": [PROMPT * 9] * 2, "n": 2, "max_tokens": 1}
    with _serving_anew(served_engine, prefix_cache_bytes=1 << 26) as server:
        asked = [json.loads(call(server, "POST", "/v1/completions", each)[2])["usage"] for each in (body, body)]
        alone = json.loads(call(server, "POST", "/v1/completions", {**body, "prompt": PROMPT * 9})[2])["usage"]
    cached = [each["prompt_tokens_details"]["cached_tokens"] for each in (*asked, alone)]
    assert asked[1]["prompt_tokens"] == 2 * alone["prompt_tokens"]
    assert cached[1] == 2 * cached[2] > 0


def _refusals(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [line for record in caplog.records if (line := json.loads(record.message)).get("error")]


def test_log_states_why_a_request_was_rejected(
    server: Server, locked_server: Server, served_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "peagle.serving")
    assert call(server, "POST", "/v1/completions", {"prompt": "a", "top_p": 2})[0] == 400
    assert call(server, "POST", "/v1/completions", {"prompt": [5] * 3000})[0] == 400
    assert call(server, "GET", "/v1/models/other")[0] == 404
    assert call(server, "GET", "/nothing")[0] == 404
    assert call(locked_server, "GET", "/v1/models")[0] == 401
    body = {"prompt": PROMPT, "max_tokens": 1900, "n": 4, "ignore_eos": True, "stream": True}
    with all_slots_taken(served_engine):
        assert call(locked_server, "POST", "/v1/completions", body, {"Authorization": "Bearer first"})[0] == 200
    _until(lambda: len(_refusals(caplog)) == 6)
    told = {
        (line["status"], *(line["error"][name] for name in ("type", "param", "code"))) for line in _refusals(caplog)
    }
    assert told == {
        (400, "invalid_request_error", "top_p", None),
        (400, "invalid_request_error", "prompt", "context_length_exceeded"),
        (404, "not_found_error", "model", "model_not_found"),
        (404, "not_found_error", None, None),
        (401, "authentication_error", None, "invalid_api_key"),
        (200, "timeout_error", None, None),  # the answer had begun
    }
    messages = "\n".join(line["error"]["message"] for line in _refusals(caplog))
    words = ("top_p must be", "3000 tokens", "model other not found", "/nothing", "API key", "after 0.5 seconds")
    assert [each for each in words if each not in messages] == []


def _until(is_so: Callable[[], bool]) -> None:
    """The line of a request is written after its answer."""
    end = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


SECRET = "swordfish"
LEAKS: list[dict[str, Any]] = [
    {"prompt": [SECRET, 5]},
    {"prompt": {"text": SECRET}},
    {"prompt": SECRET + "\ud800"},
    {"prompt": "a", "stop": [SECRET, ""]},
    {"prompt": "a", "bad_words": [SECRET, " "]},
    {"prompt": "a", "logit_bias": {SECRET: 1}},
    {"prompt": "a", "draft": f"'{SECRET}' and {SECRET}'s"},
    {"prompt": "a", "guided_json": '{"title": "' + SECRET},
    {"prompt": "a", "guided_choice": [SECRET, 3]},
    {"prompt": "a", "response_format": {"type": SECRET}},
    {"prompt": "a", "suffix": SECRET},
    {"messages": [{"role": "user", "content": {"text": SECRET}}]},
    {"messages": [{"role": "user", "content": [{"type": SECRET, "text": SECRET}]}]},
    {
        "messages": [{"role": "user", "content": SECRET}, {"role": "assistant", "content": SECRET}],
        "continue_final_message": True,
        "add_generation_prompt": True,
    },
    {"messages": [{"role": [SECRET], "content": f"it's {SECRET}"}]},
    {"messages": [{"role": "user", "content": SECRET, "x": [[[SECRET * 100]]] * 40}], "tools": [{"type": SECRET}]},
    {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"messages": SECRET}},
    {"messages": [{"role": "refuse", "content": f"it's \"{SECRET}\", not '{SECRET}'"}]},
    {"messages": [{"role": "break", "content": f"it's \"{SECRET}\", not '{SECRET}'"}]},
]


def test_no_refusal_puts_the_text_of_a_request_into_the_log(
    served_engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = Path(shutil.copytree(served_engine.folder, tmp_path / "engine"))
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'refuse' %}{{ raise_exception(m.content) }}{% endif %}"
        "{% if m.role == 'break' %}{% include m.content %}{% endif %}{{ m.content }}{% endfor %}"
    )
    caplog.set_level(logging.INFO, "peagle.serving")
    with Engine.load(folder, threads=1) as engine:
        server = Server(engine, ServerSettings(MODEL), port=0)
        server.start()
        statuses = []
        for body in LEAKS:
            path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
            statuses.append(call(server, "POST", path, {"max_tokens": 1, **body})[0])
        server.stop()
        assert server.wait(10)
    assert set(statuses) == {400}, statuses
    assert len(_refusals(caplog)) == len(LEAKS)
    for body, record in zip(LEAKS, caplog.records, strict=True):
        assert SECRET not in record.message, body
        assert len(record.message) < 2000


def test_every_line_of_the_log_is_json_and_a_misfit_has_one(
    served_engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(misfit, "MIN_RATE", 2.0)  # any acceptance is too low
    lines = _log(monkeypatch, caplog)
    body = {"prompt": PROMPT, "max_tokens": 120, "ignore_eos": True, "temperature": 0, "num_speculative_tokens": 2}
    with _serving_anew(served_engine) as server:
        for _ in range(2):
            assert call(server, "POST", "/v1/completions", body)[0] == 200
    logging.getLogger("a.library").error("it failed", exc_info=ValueError("of a kind"))
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert [each["event"] for each in told if each["event"] != "request"] == ["warning", "error"]
    (warning,) = (each for each in told if each["event"] == "warning")
    assert "does not match this target" in warning["message"]
    assert (told[-1]["logger"], told[-1]["trace"]) == ("a.library", "ValueError: of a kind")


def test_log_escapes_paths_that_are_not_utf_8(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = _log(monkeypatch, caplog)
    log("loaded", engine="/é/engine-\udcff", checked="sizes")
    loaded = json.loads(lines.getvalue())
    assert (loaded["engine"], loaded["checked"]) == ("/é/engine-\\udcff", "sizes")
    record = logging.LogRecord("a.library", logging.ERROR, "", 0, "cannot read %s", ("engine-\udcff",), None)
    assert json.loads(JsonLines().format(record))["message"] == "cannot read engine-\\udcff"


def test_lossy_acceptance_is_labelled_everywhere(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    def counted(lossy: str) -> float:
        text = call(server, "GET", "/metrics")[2].decode()
        name = f'vllm:spec_decode_num_accepted_tokens_total{{lossy="{lossy}",model_name="{MODEL}"}} '
        return next((float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name)), 0.0)

    def asked(**fields: Any) -> dict[str, Any]:
        body = {"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        body |= {"num_speculative_tokens": 3, **fields}
        told: dict[str, Any] = json.loads(call(server, "POST", "/v1/completions", body)[2])["usage"]["speculation"]
        return told

    caplog.set_level(logging.INFO, "peagle.serving")
    exact, lossy = counted("false"), counted("true")
    told = asked(acceptance_tolerance=0.9)
    assert (told["lossy"], told["acceptance_tolerance"]) == (True, 0.9)
    assert counted("true") - lossy == told["accepted_tokens"] > 0
    assert counted("false") == exact
    assert not asked()["lossy"]
    assert not asked(acceptance_tolerance=0.9, num_speculative_tokens=0)["lossy"], "nothing was drafted"
    lines = [json.loads(record.message) for record in caplog.records]
    named = [(line.get("lossy"), line.get("acceptance_tolerance")) for line in lines if "completions" in line["path"]]
    assert named[:2] == [(True, 0.9), (None, None)]  # the last line is written after its answer


@pytest.mark.parametrize("header", ["x-request-id", "request-id"])  # Anthropic's clients read the second
def test_every_response_names_its_request(server: Server, header: str) -> None:
    assert call(server, "GET", "/health", headers={"X-Request-Id": "mine-1"})[1][header] == "mine-1"
    given = call(server, "GET", "/nothing", headers={"X-Request-Id": "x" * 999})[1][header]
    assert 0 < len(given) < 64


def test_api_key_is_required_when_configured(locked_server: Server) -> None:
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic first"},
        {"Authorization": "Bearer "},
    ):
        status, answered, content = call(locked_server, "GET", "/v1/models", headers=headers)
        assert status == 401
        assert answered["www-authenticate"] == "Bearer"
        assert error_of(content)["code"] == "invalid_api_key"
    for key in ("first", "second"):
        assert call(locked_server, "GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})[0] == 200
        assert call(locked_server, "GET", "/v1/models", headers={"x-api-key": key})[0] == 200
    assert call(locked_server, "GET", "/health")[0] == 200


@pytest.mark.parametrize("key", ["", " ", "\t", "clé", "a\nb", " padded", "half\udcff"])
def test_key_that_protects_nothing_or_never_matches_is_refused(key: str) -> None:
    with pytest.raises(UsageError, match="--api-key is") as refused:
        check_api_key(key)
    assert not key.strip() or key not in str(refused.value)
    assert check_api_key("sk-a key") == "sk-a key"


def test_root_path_does_not_bypass_the_key(served_engine: Engine) -> None:
    server = Server(served_engine, ServerSettings(MODEL, api_keys=("k",), root_path="/llm"), port=0)
    server.start()
    try:
        for prefix in ("", "/llm"):
            assert call(server, "GET", f"{prefix}/health")[0] == 200
            assert call(server, "GET", f"{prefix}/v1/models")[0] == 401
            assert call(server, "GET", f"{prefix}/v1/models", headers={"x-api-key": "k"})[0] == 200
        assert call(server, "GET", "/llm/llm/v1/models", headers={"x-api-key": "k"})[0] == 404
        assert call(server, "GET", "/llmv1/models", headers={"x-api-key": "k"})[0] == 404
    finally:
        server.stop(immediately=True)
        assert server.wait(10)


@pytest.mark.parametrize(("root", "path"), [("/v1", "/v1/models"), ("/page", "/page/page.js")])
def test_root_path_may_be_the_beginning_of_a_route(served_engine: Engine, root: str, path: str) -> None:
    server = Server(served_engine, ServerSettings(MODEL, root_path=root), port=0)
    server.start()
    try:
        assert [call(server, "GET", each)[0] for each in (path, root + path, root)] == [200, 200, 200]
        assert call(server, "GET", f"{root}/nothing")[0] == 404
    finally:
        server.stop(immediately=True)
        assert server.wait(10)
