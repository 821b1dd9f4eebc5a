"""``/v1/drafters``: drafters are listed, loaded, selected, counted and unloaded while the server answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.pipeline.engine_drafters import remove_drafter
from peagle.engines import Engine
from peagle.engines.folder.manifest import BUILT_IN
from peagle.engines.serving.server import Server
from peagle.engines.serving.settings import ServerSettings
from peagle.engines.serving.speculative_config import DefaultDrafts
from tests.engines.serving.calls import call, error_of
from tests.fixtures.servers import MODEL

KEY = {"authorization": "Bearer secret"}


@pytest.fixture
def server(drafters_folder: Path, tmp_path: Path) -> Iterator[Server]:
    """It has a key, and a folder of its own."""
    folder = Path(shutil.copytree(drafters_folder, tmp_path / "engine"))
    with Engine.load(folder, max_batch_size=2, threads=1) as engine:
        server = Server(engine, ServerSettings(MODEL, api_keys=("secret",)), port=0)
        server.start()
        yield server
        server.stop(immediately=True)
        assert server.wait(10)


def ask(server: Server, method: str, path: str = "", body: Any = None) -> tuple[int, Any]:
    status, _, content = call(server, method, f"/v1/drafters{path}", body, KEY)
    return status, json.loads(content)


def loaded(content: Any) -> list[str]:
    return [each["id"] for each in content["data"] if each["loaded"]]


def complete(server: Server, **fields: Any) -> tuple[int, Any]:
    body = {"prompt": "def area(w, h):\n", "max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields}
    status, _, content = call(server, "POST", "/v1/completions", body, KEY)
    return status, json.loads(content)


def test_drafter_is_loaded_chosen_counted_and_unloaded(server: Server) -> None:
    status, content = ask(server, "GET")
    assert status == 200
    assert {each["head"] for each in content["data"]} == {"demo", "noisy"}, "a path on the server is nobody's affair"
    assert [(each["id"], each["method"], each["loaded"], each["default"]) for each in content["data"]] == [
        (BUILT_IN, "peagle", True, True),
        ("noisy", "peagle", False, False),
        ("twin", "peagle", False, False),
    ]
    status, content = complete(server, draft="twin")
    assert status == 400
    assert (content["error"]["param"], "not loaded" in content["error"]["message"]) == ("draft", True)
    status, content = ask(server, "POST", body={"name": "twin"})
    assert (status, loaded(content)) == (200, [BUILT_IN, "twin"])
    texts = [complete(server, draft="twin", num_speculative_tokens=3), complete(server, draft="none"), complete(server)]
    assert len({content["choices"][0]["text"] for _, content in texts}) == 1
    figures = call(server, "GET", "/metrics")[2].decode().splitlines()
    of_twin = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in figures
        if line.startswith("peagle:drafter_") and 'drafter="twin"' in line and "_total" in line
    }
    speculation = texts[0][1]["usage"]["speculation"]
    assert of_twin == {
        "peagle:drafter_requests_total": 1,
        "peagle:drafter_rounds_total": speculation["rounds"],
        "peagle:drafter_draft_tokens_total": speculation["drafted_tokens"],
        "peagle:drafter_accepted_tokens_total": speculation["accepted_tokens"],
    }
    status, content = ask(server, "DELETE", "/twin")
    assert (status, loaded(content)) == (200, [BUILT_IN])
    assert complete(server, draft="twin")[0] == 400


def test_model_has_a_name_for_each_drafter(drafters_folder: Path) -> None:
    settings = ServerSettings(MODEL, aliases={"coder": "twin", "plain": "none"})
    headers = {"anthropic-version": "2023-06-01"}
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with Engine.load(drafters_folder, threads=1, drafters=["twin"], chat_template=template) as engine:
        server = Server(engine, settings, port=0)
        server.start()
        try:
            for face in ({}, headers):
                listed = json.loads(call(server, "GET", "/v1/models", headers=face)[2])["data"]
                assert [each["id"] for each in listed] == [MODEL, "coder", "plain"]
                named = json.loads(call(server, "GET", "/v1/models/coder", headers=face)[2])
                assert named["id"] == "coder"
            messages = [{"role": "user", "content": "def f():"}]
            asked: dict[str, dict[str, Any]] = {
                "/v1/completions": {"prompt": "def f():", "max_tokens": 2},
                "/v1/chat/completions": {"messages": messages, "max_tokens": 2},
                "/v1/responses": {"input": "def f():", "max_output_tokens": 2},
                "/v1/messages": {"messages": messages, "max_tokens": 2},
            }
            for path, body in asked.items():
                for fields in ({"model": "coder"}, {"model": "coder", "draft": "built-in"}, {"model": "plain"}):
                    assert call(server, "POST", path, body | fields)[0] == 200
            status, _, content = call(server, "POST", "/v1/completions", {"prompt": "a", "model": "other"})
            assert (status, error_of(content)["code"]) == (404, "model_not_found")
            counted = call(server, "GET", "/metrics")[2].decode()
            for drafter in ("twin", BUILT_IN):
                labels = f'drafter="{drafter}",model_name="{MODEL}"'
                assert f"peagle:drafter_requests_total{{{labels}}} {len(asked)}.0" in counted
        finally:
            server.stop(immediately=True)
            assert server.wait(10)


def test_usual_number_of_drafts_refuses_no_drafter(drafters_folder: Path) -> None:
    settings = ServerSettings(MODEL, drafts=DefaultDrafts(num_speculative_tokens=4), aliases={"plain": "none"})
    with Engine.load(drafters_folder, threads=1, drafters=["noisy"]) as engine:
        server = Server(engine, settings, port=0)
        server.start()
        try:
            for fields in ({"draft": "noisy"}, {"draft": "none"}, {"model": "plain"}, {}):
                assert complete(server, **fields)[0] == 200
            assert complete(server, draft="noisy", num_speculative_tokens=4)[0] == 400
        finally:
            server.stop(immediately=True)
            assert server.wait(10)


def test_loaded_drafter_stays_listed_after_its_removal_from_the_folder(server: Server) -> None:
    ask(server, "POST", body={"name": "twin"})
    remove_drafter(server._state.engine.folder, "twin")
    status, content = ask(server, "GET")
    assert (status, loaded(content)) == (200, [BUILT_IN, "twin"])
    assert complete(server, draft="twin")[0] == 200


def test_refusals_name_the_reason(server: Server) -> None:
    for body, said in (
        ({"name": "unknown"}, "unknown"),
        ({}, "name"),
        ({"name": 3}, "name"),
        ({"title": "x"}, "title"),
    ):
        status, content = ask(server, "POST", body=body)
        assert (status, said in content["error"]["message"]) == (400, True)
    status, content = ask(server, "DELETE", "/unknown")
    assert (status, "the loaded drafters are: built-in" in content["error"]["message"]) == (404, True)
    status, content = ask(server, "DELETE", f"/{BUILT_IN}")
    assert (status, "cannot be unloaded" in content["error"]["message"]) == (400, True)


def test_changes_need_a_key(server: Server, drafting_server: Server) -> None:
    for method, path, body in (("GET", "", None), ("POST", "", {"name": "twin"}), ("DELETE", "/twin", None)):
        assert call(server, method, f"/v1/drafters{path}", body)[0] == 401
    assert call(drafting_server, "GET", "/v1/drafters")[0] == 200
    for method, path, body in (("POST", "", {"name": "twin"}), ("DELETE", "/twin", None)):
        status, _, content = call(drafting_server, method, f"/v1/drafters{path}", body)
        assert status == 403
        assert "start the server with --api-key" in error_of(content)["message"]
