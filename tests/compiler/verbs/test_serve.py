"""``serve`` as a process: it answers requests, and shuts down on request."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.verbs.serve import _keys
from tests.fixtures.commands import Run
from tests.fixtures.servers import serving


def _complete(url: str, **fields: Any) -> dict[str, Any]:
    body = json.dumps({"prompt": "def f(x):\n", "ignore_eos": True, **fields}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=60) as response:
        answer: dict[str, Any] = json.loads(response.read())
    return answer


def test_running_requests_finish_on_shutdown(talking_engine: Path) -> None:
    with serving(talking_engine, "--check", "sizes") as (process, url):
        assert _complete(url, max_tokens=1)["choices"]
        answers: list[int] = []

        def ask() -> None:
            answers.append(_complete(url, max_tokens=200)["usage"]["completion_tokens"])

        threads = [threading.Thread(target=ask) for _ in range(6)]
        for thread in threads:
            thread.start()
        while _begun(url) < 7:
            time.sleep(0.02)  # continuous requests fill the pipe of the log, which is not read yet
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        _, log = process.communicate(timeout=30)
        assert answers == [200] * 6
        assert process.returncode == 0
        events = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
        assert [event["checked"] for event in events if event["event"] == "loaded"] == ["sizes"]
        assert sum(event.get("path") == "/v1/completions" and event["status"] == 200 for event in events) == 7
        assert "def f" not in log


def _begun(url: str) -> float:
    """How many requests wait, run or have ended."""
    begun = ("vllm:num_requests_", "vllm:request_success_total")
    with urllib.request.urlopen(f"{url}/metrics", timeout=30) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(begun))


def test_responses_that_do_not_fit_are_not_stored_and_a_second_stop_does_not_wait(talking_engine: Path) -> None:
    """One server, since each takes a second to begin."""
    with serving(talking_engine, "--max-batch-size", "1", "--response-store-bytes", "0") as (process, url):
        assert _status_of_a_stored_response(url) == 404
        body = json.dumps({"prompt": "a", "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body), timeout=60) as response:
            assert response.readline().startswith(b"data: ")
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)  # two at once count as one
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=10)


def test_flags_set_access_limits_template_context_and_root_path(talking_engine: Path, tmp_path: Path) -> None:
    site, template = "https://example.com", tmp_path / "own.jinja"
    template.write_text("{{ messages[0].content }}!")
    flags = ("--chat-template", str(template), "--max-model-len", "24", "--root-path", "/llm/")
    flags += ("--max-prefill-tokens", "16")
    flags += ("--per-request-spec-decode-metrics", "summary", "--trust-request-chat-template")
    flags += ("--cors-origin", site, "--allowed-host", "ai.example.com", "--max-body-bytes", "1KiB")
    with serving(talking_engine, *flags) as (_, url):

        def status(host: str, body: bytes | None = None) -> tuple[int, str | None]:
            headers = {"Host": host, "Origin": site, "Content-Type": "application/json"}
            request = urllib.request.Request(f"{url}/{'detokenize' if body else 'health'}", body, headers)
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return response.status, response.headers["Access-Control-Allow-Origin"]
            except urllib.error.HTTPError as error:
                return error.code, error.headers["Access-Control-Allow-Origin"]

        assert status("ai.example.com") == (200, site)
        assert status("ai.example.com", b'{"tokens": [5]}') == (200, site)
        assert status("localhost", b" " * 1025) == (413, site)
        assert status("evil.example") == (403, site)

        def asked(path: str, **body: Any) -> Any:
            request = urllib.request.Request(f"{url}{path}", json.dumps(body).encode())
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                return json.loads(error.read())["error"]

        messages = [{"role": "user", "content": "def f"}]
        told = asked("/llm/tokenize", messages=messages)
        assert told == {**asked("/tokenize", prompt="def f!"), "max_model_len": 24}
        assert asked("/tokenize", messages=messages, chat_template="def f!") == told
        assert asked("/v1/completions", prompt=[5] * 24)["code"] == "context_length_exceeded"
        assert asked("/v1/completions", prompt=[5] * 4, max_tokens=21)["param"] == "max_tokens"
        answer = asked("/v1/chat/completions", messages=messages, num_speculative_tokens=4)
        assert answer["usage"]["total_tokens"] <= 24
        assert answer["metrics"]["speculative_decoding"]["num_spec_steps"] > 0
        assert _status_of_a_stored_response(url) == 200, "as by default"


def test_flags_choose_and_name_drafters(drafters_folder: Path) -> None:
    flags = ("--draft", "twin", "--load-drafter", "noisy", "--model-alias", "first=built-in", "--auto-draft")
    with serving(drafters_folder, *flags) as (_, url):
        with urllib.request.urlopen(f"{url}/v1/drafters", timeout=60) as response:
            listed = json.loads(response.read())["data"]
        assert {each["id"]: (each["loaded"], each["default"]) for each in listed} == {
            "built-in": (True, False), "noisy": (True, False), "twin": (True, True),
        }  # fmt: skip
        texts = {
            _complete(url, max_tokens=8, temperature=0, **fields)["choices"][0]["text"]
            for fields in ({}, {"draft": "noisy"}, {"model": "first"}, {"draft": "none"})
        }
        assert len(texts) == 1


def _status_of_a_stored_response(url: str) -> int:
    body = json.dumps({"input": "def f(x):", "max_output_tokens": 1}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/responses", body), timeout=60) as response:
        identity = json.loads(response.read())["id"]
    try:
        with urllib.request.urlopen(f"{url}/v1/responses/{identity}", timeout=60) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        (["--host", "203.0.113.7"], 3, "cannot listen on 203.0.113.7"),
        (["--speculative-config", '{"num_speculative_tokens": 99}'], 2, "num_speculative_tokens 99 is not supported"),
        (["--max-batch-size", "0"], 2, "max-batch-size"),
        (["--prefix-cache-bytes", "1G", "--max-body-bytes", "4MiB", "--host", "203.0.113.7"], 3, "cannot listen on"),
        (["--prefix-cache-bytes", "much"], 2, "--prefix-cache-bytes much is not a size"),
        (["--max-body-bytes", "1K"], 2, "--max-body-bytes 1K is too small"),
        (["--api-key", "first", "--api-key", " "], 2, "--api-key is empty"),
        (["--api-key", "schlüssel"], 2, "--api-key is not usable"),
        (["--cors-origin", "example.com"], 2, "--cors-origin example.com is not a valid origin"),
        (["--allowed-host", "https://a"], 2, "--allowed-host https://a is not a host name"),
        (["--structured-outputs-config", "{"], 2, "--structured-outputs-config is not valid JSON"),
        (["--ssl-certfile", "a.pem"], 2, "--ssl-keyfile is missing"),
        (["--root-path", "llm"], 2, "--root-path llm is not a path"),
        (["--chat-template", "gone.jinja"], 3, "gone.jinja cannot be read"),
        (["--model-alias", "coder"], 2, "--model-alias coder is not valid"),
        (["--model-alias", "a=none", "--model-alias", "a=ngram"], 2, "the alias was given twice"),
        (["--model-alias", "coder=code"], 2, "draft must be"),
        (["--served-model-name", "a", "--model-alias", "a=none"], 2, "this is the model's own name"),
        (["--model-alias", "coder=eagle3"], 2, "draft is eagle3, but this engine has no such drafter"),
        (["--load-drafter", "code"], 2, "the engine has no drafter 'code'"),
        (["--load-drafter", "ngram"], 2, "ngram is a draft method, not a drafter"),
        (["--max-model-len", "1000000"], 2, "--max-model-len is 1000000, but this engine was built for at most"),
    ],
)
def test_unservable_engine_fails_before_listening(
    cli: Run, talking_engine: Path, flags: list[str], code: int, says: str
) -> None:
    done = cli("serve", talking_engine, "--port", 0, "--threads", 1, *flags)
    assert done.code == code
    assert says in done.err


@pytest.mark.parametrize("key", ["", " ", "schl\u00fcssel"])
def test_a_key_in_the_environment_is_checked(
    cli: Run, talking_engine: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("PEAGLE_API_KEY", key)
    done = cli("serve", talking_engine, "--host", "203.0.113.7")
    assert (done.code, "$PEAGLE_API_KEY is" in done.err) == (2, True)
    done = cli("serve", talking_engine, "--host", "203.0.113.7", "--api-key", "k")
    assert (done.code, "cannot listen on 203.0.113.7" in done.err) == (3, True), "the flag takes precedence"


def test_a_key_in_the_environment_may_have_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_API_KEY", "correct horse")
    assert _keys(["correct", "horse"]) == [("correct horse", "$PEAGLE_API_KEY")]
    assert _keys(["a", "b"]) == [("a", "--api-key"), ("b", "--api-key")]
    monkeypatch.delenv("PEAGLE_API_KEY")
    assert _keys([]) == []


def test_engine_that_fails_to_load_leaves_no_socket_behind(cli: Run, talking_engine: Path, tmp_path: Path) -> None:
    engine, path = tmp_path / "engine", tmp_path / "s"
    shutil.copytree(talking_engine, engine)
    (engine / "tokenizer.json").unlink()
    options = ("serve", engine, "--uds", path)
    done = cli(*options)
    assert done.code == 3
    assert "tokenizer.json" in done.err
    assert not path.exists()

    wrong = cli(*options, "--speculative-config", '{"num_speculative_tokens": 99}')
    assert "num_speculative_tokens 99 is not supported" in wrong.err, "options are checked before the engine is loaded"


def test_folder_without_an_engine_is_not_served(cli: Run, tmp_path: Path) -> None:
    done = cli("serve", tmp_path)
    assert done.code == 3
    assert "is not an engine folder" in done.err
