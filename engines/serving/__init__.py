"""HTTP server for an engine: ``app.create_app`` builds the ASGI application and ``server.Server`` runs it."""

from __future__ import annotations

from ...plugins.optional_packages import require


def require_extra() -> None:
    """Raise ``EnvironmentProblem`` unless the packages of the ``[serve]`` extra are installed."""
    require("serve", "the server")
