"""``/v1/drafters``: the drafters of the engine folder, and loading and unloading them while requests run."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from ...plugins.errors import UsageError
from ..folder.manifest import BUILT_IN, Manifest
from .access import log
from .answering import json_response
from .api_face import BodyRoute
from .inert_fields import InertFields
from .problems import HttpRefusal
from .reading import parse_body, read_body
from .settings import without_path
from .state import ServerState


class DrafterBody(Struct, forbid_unknown_fields=True):
    """The body of ``POST /v1/drafters``."""

    name: str


async def list_drafters(request: Request) -> Response:
    """``GET /v1/drafters``: the drafters of the engine, and which of them are loaded."""
    state = ServerState.of(request)
    return json_response({"object": "list", "data": await run_in_threadpool(_listed, state)})


async def load_drafter(request: Request) -> Response:
    """``POST /v1/drafters``: load a drafter of the engine folder, so that requests can choose it.

    Requests continue during loading. A loaded drafter stays loaded. Requires a server with an API key.
    """
    state = ServerState.of(request)
    _require_key(state)
    body = parse_body(await read_body(request, state.limits), DrafterBody)
    await run_in_threadpool(state.engine.load_drafter, body.name)
    log("loaded a drafter", drafter=body.name)
    return await list_drafters(request)


async def unload_drafter(request: Request) -> Response:
    """``DELETE /v1/drafters/NAME``: unload a drafter; requests that use it finish with it.

    Needs a server with an API key.
    """
    state, name = ServerState.of(request), request.path_params["name"]
    _require_key(state)
    try:
        await run_in_threadpool(state.engine.unload_drafter, name)
    except UsageError:
        there = state.engine.drafters
        if name in there:  # the one that the engine was loaded with
            raise
        loaded = ", ".join(there)
        raise HttpRefusal(
            404, f"no drafter named {name[:100]!r} is loaded; the loaded drafters are: {loaded}"
        ) from None
    log("unloaded a drafter", drafter=name)
    return await list_drafters(request)


def _require_key(state: ServerState) -> None:
    """Raise ``HttpRefusal`` if anybody could change what all requests share."""
    if not state.settings.api_keys:
        raise HttpRefusal(
            403, "drafters of a server without an API key cannot be changed; fix: start the server with --api-key"
        )


def _listed(state: ServerState) -> list[dict[str, Any]]:
    engine = state.engine
    manifest, loaded = Manifest.read(engine.folder), engine.drafters
    names = [BUILT_IN] if manifest.drafter else []
    # A loaded drafter may have been removed from the folder.
    names += sorted({*manifest.drafters, *loaded} - {BUILT_IN})
    listed = []
    for name in names:
        its = manifest.using(name) if name == BUILT_IN or name in manifest.drafters else None
        listed.append(
            {
                "id": name,
                "object": "drafter",
                "loaded": name in loaded,
                "default": name == engine.manifest.drafter_name,
                "method": its and its.method,
                "head": its and its.drafter and without_path(its.drafter.origin.id),
            }
        )
    return listed


DRAFTERS = (
    Route("/v1/drafters", list_drafters, methods=["GET"]),
    BodyRoute("/v1/drafters", load_drafter, DrafterBody, InertFields((), {})),
    Route("/v1/drafters/{name}", unload_drafter, methods=["DELETE"]),
)
