"""The server's defaults for JSON outputs: the supported part of vLLM's option, and when they apply."""

from __future__ import annotations

from typing import Any

import pytest

from peagle.engines.serving.structured_outputs_config import FormDefaults, form_defaults_of
from peagle.plugins.errors import UsageError

STANDARD = FormDefaults(disable_additional_properties=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, FormDefaults()),
        ("{}", FormDefaults()),
        ('{"disable_additional_properties": false}', STANDARD),
        ('{"disable_any_whitespace": true, "backend": "auto"}', FormDefaults(disable_any_whitespace=True)),
        ('{"backend": "guidance", "reasoning_parser": "", "enable_in_reasoning": null}', FormDefaults()),
    ],
)
def test_the_option_is_read_as_vllm_has_it(text: str | None, found: FormDefaults) -> None:
    assert form_defaults_of(text) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ('{"backend": "auto", "backend": "auto"}', "the key 'backend' appears twice"),
        ("3", "is not a JSON object"),
        ('{"disable_additional_properties": 1}', "disable_additional_properties must be true or false"),
        ('{"backend": "outlines"}', "backend is not supported"),
        ('{"backend": ["auto"]}', "backend is not supported"),
        ('{"colour": 1}', "unknown key 'colour'"),
    ],
)
def test_unsupported_key_is_rejected_by_name(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        form_defaults_of(text)


@pytest.mark.parametrize(
    ("form", "filled"),
    [
        ({"json": {}}, {"json": {}, "disable_additional_properties": False, "disable_any_whitespace": False}),
        ({"regex": "a"}, {"regex": "a"}),
        (
            {"json": {}, "disable_additional_properties": True, "whitespace_pattern": " "},
            {"json": {}, "disable_additional_properties": True, "whitespace_pattern": " "},
        ),
    ],
)
def test_request_setting_overrides_the_server(form: dict[str, Any], filled: dict[str, Any]) -> None:
    assert STANDARD.filled(form) == filled
