"""OpenAI's error object, for every API that reports errors in this format."""

from __future__ import annotations

from typing import Any

from .problems import HttpRefusal


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
