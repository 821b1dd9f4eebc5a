"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath

from ..folder.manifest import Manifest
from .speculative_config import DefaultDrafts
from .structured_outputs_config import FormDefaults


@dataclass(frozen=True)
class Limits:
    """What one request may cost. Whoever asks for more is refused before anything is computed.

    ``body_bytes`` of a request's body; ``choices`` of a request, prompts times ``n``; ``seconds`` from arrival to the
    last token; ``body_seconds`` until a body has arrived; ``drain_seconds`` for those that run when the server is told
    to stop. How many may wait is the engine's own limit.
    """

    body_bytes: int = 4 << 20
    choices: int = 16
    seconds: float = 600.0
    body_seconds: float = 30.0
    drain_seconds: float = 60.0


@dataclass(frozen=True)
class ServerSettings:
    """Everything but the engine. ``api_keys``: one of them must be sent as a bearer token, unless there are none.

    ``model`` is the name that requests may give; a request that names another model is refused. ``drafts`` are
    made where a request says nothing of them, and ``structured_outputs`` holds where it says no more of a JSON form.
    ``log_prompts`` puts prompts and answers into the log, which holds none otherwise. Pages of ``cors_origins`` may use
    the server. Requests may call it by the names in ``allowed_hosts``, besides those that it has in any case.
    """

    model: str
    api_keys: tuple[str, ...] = ()
    limits: Limits = Limits()
    drafts: DefaultDrafts = field(default_factory=DefaultDrafts)
    structured_outputs: FormDefaults = field(default_factory=FormDefaults)
    log_prompts: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


def model_name(manifest: Manifest, folder: Path) -> str:
    """Return the name of an engine's model: that of its checkpoint, without the path of a folder on this machine."""
    name = manifest.target.origin.id
    is_path = name.startswith((".", "~")) or PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()
    if is_path:
        name = PureWindowsPath(name).name.strip(".")
    return name or folder.resolve().name or "engine"
