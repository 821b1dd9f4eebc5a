"""State that all requests of a server share: the engine, the settings and the metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from ..engine import Engine
from .api_face import ApiFace
from .bounded_store import BoundedStore
from .browsers import AllowedHosts
from .metrics import ServerMetrics
from .problems import HttpRefusal
from .settings import Limits, ServerSettings

_ENCODERS = 4


@dataclass
class ServerState:
    """State of one application.

    ``drains`` is set at shutdown, when no new requests are accepted; ``ends`` is set when the time of those that still
    run is over. ``canary`` is the pending health check request.
    ``faces`` are the server's APIs. ``hosts`` are the allowed host names, None for any. ``answers`` are stored for
    later requests. ``encoders`` are the threads that render and encode prompts: few, because a long prompt needs much
    memory, and apart from the threads that submit.
    """

    engine: Engine
    settings: ServerSettings
    metrics: ServerMetrics
    faces: Mapping[str, ApiFace]
    hosts: AllowedHosts | None = None
    started: int = field(default_factory=lambda: int(time.time()))
    drains: bool = False
    ends: asyncio.Event = field(default_factory=asyncio.Event)
    canary: asyncio.Task[None] | None = None
    answers: BoundedStore = field(init=False)
    encoders: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_ENCODERS, "encoder"))

    def __post_init__(self) -> None:
        self.answers = BoundedStore(self.limits.stored_answers, self.limits.stored_bytes)

    @classmethod
    def of(cls, connection: HTTPConnection) -> ServerState:
        """Return the state of the connection's application."""
        state: ServerState = connection.app.state.server
        return state

    @property
    def limits(self) -> Limits:
        """The limits of one request."""
        return self.settings.limits

    def check_model(self, name: str | None) -> None:
        """Raise ``HttpRefusal`` if the name is not one of this server's model. No name means this model."""
        if name is not None and name not in self.settings.models:
            raise HttpRefusal(
                404, f"model {name[:100]} not found; this server has {', '.join(self.settings.models)}",
                param="model", code="model_not_found",
            )  # fmt: skip
