"""Fields that all APIs have."""

from __future__ import annotations

import json
from typing import Any

import pytest

from peagle.engines.serving.server import Server
from tests.engines.serving.calls import call, error_of

TEXT = "One text, which is longer than a block of the prefix cache, and which is in no other test of this folder."
CHAT = {"messages": [{"role": "user", "content": TEXT}]}
APIS = pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": TEXT, "max_tokens": 1}),
        ("/v1/chat/completions", {**CHAT, "max_tokens": 1}),
        ("/v1/messages", {**CHAT, "max_tokens": 1}),
        ("/v1/responses", {"input": TEXT, "max_output_tokens": 1}),
    ],
)


def _cached(usage: dict[str, Any]) -> int:
    """Return the number of cached tokens under the name that the API has for it."""
    told = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    return int(told["cached_tokens"] if told else usage["cache_read_input_tokens"])


@APIS
def test_a_prompt_is_cached_for_its_salt_only(server: Server, path: str, body: dict[str, Any]) -> None:
    def cached(salt: str) -> int:
        status, _, content = call(server, "POST", path, {**body, "cache_salt": path + salt})
        assert status == 200, content
        return _cached(json.loads(content)["usage"])

    assert cached("one") == 0 < cached("one")
    assert cached("two") == 0


@APIS
@pytest.mark.parametrize("salt", ["", 3, ["a"]])
def test_a_salt_that_is_not_text_is_refused_by_name(server: Server, path: str, body: dict[str, Any], salt: Any) -> None:
    status, _, content = call(server, "POST", path, {**body, "cache_salt": salt})
    assert (status, error_of(content).get("param", "cache_salt")) == (400, "cache_salt")
    assert "cache_salt" in error_of(content)["message"]
