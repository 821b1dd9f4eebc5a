"""Fields that every API of this server has beside its own: sampling in vLLM's names, and speculative decoding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from msgspec import Struct

from .problems import HttpRefusal
from .settings import ServerSettings


class ServerFields(Struct, kw_only=True):
    """Fields that no API defines, or not every one. None means absent."""

    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    num_speculative_tokens: int | Literal["auto"] | None = None
    draft: str | None = None
    acceptance_tolerance: float | None = None
    priority: int | None = None
    cache_salt: str | None = None


def priority_of(body: ServerFields, settings: ServerSettings) -> int:
    """Return the priority of a request. Raises ``HttpRefusal`` if the server does not have priorities."""
    if body.priority and settings.scheduling_policy != "priority":
        raise HttpRefusal(
            400,
            "priority is not allowed by this server; fix: remove the field, set it to 0, or start the server with "
            "--scheduling-policy priority",
            param="priority",
            code="unsupported_parameter",
        )
    return body.priority or 0


def draft_of(body: ServerFields, model: str | None, settings: ServerSettings) -> str | None:
    """Return the drafter or draft method of a request: its own, or that of the name that it gives the ``model``."""
    return settings.aliases.get(model or "") if body.draft is None else body.draft


SAMPLING = ("temperature", "top_p", "seed", "top_k", "min_p", "acceptance_tolerance", "cache_salt")


def given_fields(body: Struct, names: Iterable[str] = SAMPLING) -> dict[str, Any]:
    """Return those fields of a body that are not None."""
    return {name: value for name in names if (value := getattr(body, name)) is not None}
