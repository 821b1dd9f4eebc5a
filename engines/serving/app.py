"""The ASGI application: routes of all API faces, health, metrics and the chat page."""

from __future__ import annotations

from importlib import metadata
from typing import cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ..engine import Engine
from .access import ID_HEADERS, PAGE_FILES, REFUSAL, Access
from .answering import json_response
from .api_face import face_of
from .browsers import AllowedHosts
from .drafters import DRAFTERS
from .faces import FACES
from .health import health
from .metrics import ServerMetrics
from .openapi import described
from .page import page, page_file
from .problems import HttpRefusal
from .settings import ServerSettings
from .state import ServerState


def create_app(engine: Engine, settings: ServerSettings, hosts: AllowedHosts | None = None) -> Starlette:
    """Create an ASGI application over ``engine``, which the caller still has to close.

    ``hosts`` are the names that requests may use in their ``Host`` header; None allows any.
    """
    metrics_of_engine = ServerMetrics(settings.model, engine, FACES)
    faces = dict(FACES)
    state = ServerState(engine, settings, metrics_of_engine, faces, hosts)
    cors = Middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_methods=("GET", "POST", "DELETE"),
        allow_headers=("*",),
        expose_headers=(*ID_HEADERS, "Retry-After", "X-Should-Retry"),
        allow_private_network=True,  # lets a public web page use a server in the visitor's private network
    )
    app = Starlette(
        routes=[
            Route("/", page, include_in_schema=False),
            Route(f"{PAGE_FILES}{{name:path}}", page_file, include_in_schema=False),
            *(route for face in faces.values() for route in face.routes),
            *DRAFTERS,
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/load", load),
            Route("/version", version),
            Route("/openapi.json", openapi, include_in_schema=False),
        ],
        middleware=[*([cors] if settings.cors_origins else []), Middleware(Access, state=state)],
        exception_handlers={HttpRefusal: _refused, HTTPException: _no_such_path},
    )
    app.router.redirect_slashes = False  # a redirect would follow the request's Host header
    app.state.server = state
    return app


async def load(request: Request) -> Response:
    """``GET /load``: the number of requests that run or wait, as vLLM counts it, and both numbers."""
    now = ServerState.of(request).engine.load_now
    return json_response({"server_load": now.running + now.waiting, "running": now.running, "waiting": now.waiting})


async def version(request: Request) -> Response:
    """``GET /version``: the version of this program."""
    del request
    return json_response({"version": _version()})


async def openapi(request: Request) -> Response:
    """``GET /openapi.json``: this description."""
    settings = ServerState.of(request).settings
    needs_key = bool(settings.api_keys)
    return json_response(described(request.app.routes, _version(), settings.root_path, needs_key=needs_key))


def _version() -> str:
    try:
        return metadata.version("peagle-compile")
    except metadata.PackageNotFoundError:  # run from its sources
        return "unknown"


async def metrics(request: Request) -> Response:
    """``GET /metrics``: metrics in Prometheus's text format."""
    return Response(ServerState.of(request).metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _refused(request: Request, error: Exception) -> Response:
    refusal = cast(HttpRefusal, error)  # registered for HttpRefusal only
    ServerState.of(request).metrics.refuse(refusal.status)
    request.scope[REFUSAL] = refusal
    return face_of(request.scope).response(refusal)


async def _no_such_path(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    path = request.url.path[:200]
    problem = f"{path} does not exist" if status == 404 else f"{path} does not support {request.method}"
    request.scope[REFUSAL] = refusal = HttpRefusal(status, problem)
    response = face_of(request.scope).response(refusal)
    if isinstance(error, HTTPException) and error.headers:
        response.headers.update(error.headers)  # ``Allow``
    return response
