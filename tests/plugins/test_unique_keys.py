"""A JSON object with a repeated key is refused, at any depth."""

from __future__ import annotations

import json

import pytest

from peagle.plugins.unique_keys import unique_keys


def test_objects_keep_their_order() -> None:
    text = '{"b": {"a": 1}, "a": [{"a": 2}]}'
    assert json.dumps(json.loads(text, object_pairs_hook=unique_keys)) == text


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', '{"b": [{"a": 1, "a": 2}]}'])
def test_repeated_key_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="the key 'a' appears twice"):
        json.loads(text, object_pairs_hook=unique_keys)
