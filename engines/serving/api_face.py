"""A face of the server: the paths of one API, and the shape in which that API tells errors."""

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

_FACE = "peagle.face"  # of a scope: the face whose path it is


@dataclass(frozen=True)
class ApiFace:
    """One API over the engine.

    ``error_body`` gives the JSON content of a refusal. ``fields`` are the API's own names of fields, besides the
    engine's, that a message about the body may begin with.
    """

    routes: tuple[Route, ...]
    error_body: Callable[[HttpRefusal], Any]
    fields: frozenset[str] = frozenset()

    def owns(self, scope: Scope) -> bool:
        """Whether a request's path is one of this face, for any method."""
        return any(route.matches(scope)[0] is not Match.NONE for route in self.routes)

    def refusal_of(self, error: HttpRefusal | PeagleError) -> HttpRefusal:
        """Return what an error means to a client, with the field of the body where the error begins with one."""
        return error if isinstance(error, HttpRefusal) else refusal_of(error, ENGINE_FIELDS | self.fields)

    def response(self, refusal: HttpRefusal) -> Response:
        """Return the whole response that refuses."""
        body = msgspec.json.encode(self.error_body(refusal))
        return Response(body, refusal.status, refusal.headers, "application/json")


def note_face(scope: Scope, faces: Iterable[ApiFace]) -> ApiFace:
    """Return the face that owns a request's path, and keep it in the ``scope``; the first one where none does."""
    every = tuple(faces)
    scope[_FACE] = face = next((each for each in every if each.owns(scope)), every[0])
    return face


def face_of(scope: Scope) -> ApiFace:
    """Return the face of a request, as it was noted."""
    face: ApiFace = scope[_FACE]
    return face
