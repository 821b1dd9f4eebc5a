"""What every request of a server finds: the engine, the settings, the counters."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import HTTPConnection

from ..engine import Engine
from .api_face import ApiFace
from .browsers import AllowedHosts
from .metrics import ServerMetrics
from .problems import HttpRefusal
from .settings import Limits, ServerSettings


@dataclass
class ServerState:
    """One for an application; ``drains`` says that it takes no more requests, ``canary`` asks whether it can.

    ``faces`` are the APIs that it has, ``hosts`` the names by which it may be called, None for any.
    """

    engine: Engine
    settings: ServerSettings
    metrics: ServerMetrics
    faces: Sequence[ApiFace]
    hosts: AllowedHosts | None = None
    started: int = field(default_factory=lambda: int(time.time()))
    drains: bool = False
    canary: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, connection: HTTPConnection) -> ServerState:
        """That of the application that answers."""
        state: ServerState = connection.app.state.server
        return state

    @property
    def limits(self) -> Limits:
        """What a request may cost, by the settings."""
        return self.settings.limits

    def check_model(self, name: str | None) -> None:
        """Raise ``HttpRefusal`` for the name of another model; no name is this one."""
        if name is not None and name != self.settings.model:
            raise HttpRefusal(
                404, f"there is no model {name[:100]} here, only {self.settings.model}",
                param="model", code="model_not_found",
            )  # fmt: skip
