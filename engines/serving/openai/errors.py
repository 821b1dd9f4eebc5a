"""OpenAI's error object, and the field names that its ``param`` can have."""

from __future__ import annotations

from typing import Any

from ..problems import HttpRefusal
from .formats import GUIDED

ERROR_FIELDS = frozenset({"max_completion_tokens", "tool_choice", "response_format", *GUIDED})


def error_body(refusal: HttpRefusal) -> dict[str, Any]:
    """Return ``{"error": {message, type, param, code}}``."""
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.kind,
            "param": refusal.param,
            "code": refusal.code,
        }
    }
