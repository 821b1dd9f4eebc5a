"""An API face: the routes of one API and its error format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from ...plugins.errors import PeagleError
from .inert_fields import InertFields
from .problems import ENGINE_FIELDS, HttpRefusal, refusal_of

VERSION_OF_ANTHROPIC = "anthropic-version"  # header of requests to Anthropic's API, which shares paths with OpenAI's
_FACE = "peagle.face"  # scope key: the face that owns the request's path


class BodyRoute(Route):
    """A route for ``POST`` whose body has the type ``body``, with the fields without effect beside it."""

    def __init__(self, path: str, endpoint: Callable[..., Any], body: type[Struct], inert: InertFields) -> None:
        super().__init__(path, endpoint, methods=["POST"])
        self.body, self.inert = body, inert


class HeaderRoute(Route):
    """A route for ``GET`` requests that ``have`` a header, or have not: two APIs share a path that way."""

    def __init__(self, path: str, endpoint: Callable[..., Any], header: str, *, have: bool) -> None:
        super().__init__(path, endpoint, methods=["GET"], include_in_schema=not have)
        self._header, self._have = header, have

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return True if the path and the headers match."""
        if scope["type"] != "http" or (self._header in Headers(scope=scope)) != self._have:
            return Match.NONE, {}
        return super().matches(scope)


@dataclass(frozen=True)
class ApiFace:
    """One API over the engine.

    ``error_body`` returns the JSON content of an error. ``fields`` are the API's own field names, in addition to the
    engine's, that an error message about the body can start with. ``renamed`` has the API's names of engine fields.
    Paths that begin with ``root`` are the API's, whether or not they exist.
    """

    routes: tuple[Route, ...]
    error_body: Callable[[HttpRefusal], Any]
    fields: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = field(default_factory=dict)
    root: str | None = None

    def owns(self, scope: Scope) -> bool:
        """Return True if the request's path belongs to this face, for any method."""
        is_below = self.root is not None and scope["path"].startswith(self.root)
        return is_below or any(route.matches(scope)[0] is not Match.NONE for route in self.routes)

    def refusal_of(self, error: HttpRefusal | PeagleError) -> HttpRefusal:
        """Convert an error to an ``HttpRefusal``; ``param`` is set if the message starts with a field of the body."""
        if isinstance(error, HttpRefusal):
            return error
        refusal = refusal_of(error, ENGINE_FIELDS | self.fields)
        refusal.param = self.renamed.get(refusal.param or "", refusal.param)
        return refusal

    def response(self, refusal: HttpRefusal) -> Response:
        """Return the HTTP error response."""
        body = msgspec.json.encode(self.error_body(refusal))
        return Response(body, refusal.status, refusal.headers, "application/json")


def resolve_face(scope: Scope, faces: Mapping[str, ApiFace]) -> str | None:
    """Return the name of the face that owns the request's path, and store the face in ``scope``.

    The first face formats the errors of paths that no face owns.
    """
    owner = next((name for name, each in faces.items() if each.owns(scope)), None)
    scope[_FACE] = faces[owner] if owner is not None else next(iter(faces.values()))
    return owner


def face_of(scope: Scope) -> ApiFace:
    """Return the face that ``resolve_face`` stored for this request."""
    face: ApiFace = scope[_FACE]
    return face
