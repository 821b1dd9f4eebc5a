"""The HTTP face of an engine: ``app.create_app`` makes an ASGI application, ``server.Server`` runs it."""

from __future__ import annotations

from importlib.util import find_spec

from ...plugins.errors import EnvironmentProblem

_NEEDED = ("msgspec", "prometheus_client", "starlette", "uvicorn")


def require_extra() -> None:
    """Raise ``EnvironmentProblem`` unless the packages of the extra ``[serve]`` are there."""
    if missing := [name for name in _NEEDED if find_spec(name) is None]:
        raise EnvironmentProblem(
            "the server's packages are not installed",
            why=f"missing: {', '.join(missing)}",
            fix="pip install 'peagle-compile[serve]'",
        )
