"""An API face: the routes of one API and its error format."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from ...plugins.errors import PeagleError
from .problems import ENGINE_FIELDS, HttpRefusal, refusal_of

_FACE = "peagle.face"  # scope key: the face that owns the request's path


@dataclass(frozen=True)
class ApiFace:
    """One API over the engine.

    ``error_body`` returns the JSON content of an error. ``fields`` are the API's own field names, in addition to the
    engine's, that an error message about the body can start with.
    """

    routes: tuple[Route, ...]
    error_body: Callable[[HttpRefusal], Any]
    fields: frozenset[str] = frozenset()

    def owns(self, scope: Scope) -> bool:
        """Return whether the request's path belongs to this face, for any method."""
        return any(route.matches(scope)[0] is not Match.NONE for route in self.routes)

    def refusal_of(self, error: HttpRefusal | PeagleError) -> HttpRefusal:
        """Convert an error to an ``HttpRefusal``; ``param`` is set if the message starts with a field of the body."""
        return error if isinstance(error, HttpRefusal) else refusal_of(error, ENGINE_FIELDS | self.fields)

    def response(self, refusal: HttpRefusal) -> Response:
        """Return the HTTP error response."""
        body = msgspec.json.encode(self.error_body(refusal))
        return Response(body, refusal.status, refusal.headers, "application/json")


def note_face(scope: Scope, faces: Iterable[ApiFace]) -> ApiFace:
    """Return the face that owns the request's path, and store it in ``scope``. The first face handles unknown paths."""
    every = tuple(faces)
    scope[_FACE] = face = next((each for each in every if each.owns(scope)), every[0])
    return face


def face_of(scope: Scope) -> ApiFace:
    """Return the face that ``note_face`` stored for this request."""
    face: ApiFace = scope[_FACE]
    return face
