"""The HTTP face of an engine: ``app.create_app`` makes an ASGI application, ``server.Server`` runs it."""

from __future__ import annotations

from ...plugins.optional_packages import require


def require_extra() -> None:
    """Raise ``EnvironmentProblem`` unless the packages of the extra ``[serve]`` are there."""
    require("serve", "the server")
