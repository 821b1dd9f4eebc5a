"""Settings of a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Literal

from ..folder.manifest import Manifest
from .speculative_config import DefaultDrafts
from .structured_outputs_config import FormDefaults

_GGUF = ".gguf"
SpecDecodeMetrics = Literal["none", "summary", "detailed"]
SchedulingPolicy = Literal["fcfs", "priority"]


@dataclass(frozen=True)
class Limits:
    """Limits of one request. A request that exceeds one is refused before anything is computed.

    ``body_bytes``: size of the body. ``choices``: prompts times ``n``. ``seconds``: from arrival to the last token.
    ``body_seconds``: until the body has arrived. ``drain_seconds``: for running requests at shutdown.
    ``stored_answers`` and ``stored_bytes``: of answers that are kept for later requests. The engine itself limits how
    many requests can wait.
    """

    body_bytes: int = 4 << 20
    choices: int = 16
    seconds: float = 600.0
    body_seconds: float = 30.0
    drain_seconds: float = 60.0
    stored_answers: int = 1024
    stored_bytes: int = 64 << 20


@dataclass(frozen=True)
class ServerSettings:
    """All settings except the engine.

    If ``api_keys`` is not empty, requests must send one of them. ``model`` is the name that requests
    can give; other names are refused. ``drafts`` and ``structured_outputs`` are defaults for requests that do not set
    them. ``log_prompts`` logs prompts and answers, which are not logged otherwise. ``trusts_request_templates`` accepts
    chat templates in requests. ``cors_origins`` are the sites whose pages may use the server. ``allowed_hosts`` are
    accepted ``Host`` names in addition to the built-in ones. ``root_path`` is the path under which a proxy shows the
    server; paths are accepted with and without it. ``per_request_spec_decode_metrics`` adds statistics of drafts to
    responses, as in vLLM. The ``scheduling_policy`` is the order in which waiting requests start. ``aliases`` are
    further names of the model, each with the drafter or draft method of requests that give it.
    """

    model: str
    api_keys: tuple[str, ...] = ()
    limits: Limits = Limits()
    drafts: DefaultDrafts = field(default_factory=DefaultDrafts)
    structured_outputs: FormDefaults = field(default_factory=FormDefaults)
    log_prompts: bool = False
    trusts_request_templates: bool = False
    cors_origins: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    root_path: str = ""
    per_request_spec_decode_metrics: SpecDecodeMetrics = "none"
    scheduling_policy: SchedulingPolicy = "fcfs"
    aliases: Mapping[str, str] = field(default_factory=dict)

    @property
    def models(self) -> tuple[str, ...]:
        """All names of the model."""
        return (self.model, *self.aliases)


def model_name(manifest: Manifest, folder: Path) -> str:
    """Return the name of an engine's model: its checkpoint's name, without the path and suffix of a local one."""
    return without_path(manifest.target.origin.id) or folder.resolve().name or "engine"


def without_path(name: str) -> str:
    """Return the name of a checkpoint as clients see it: of a local one, without its path and suffix."""
    is_file = name.lower().endswith(_GGUF)
    is_path = name.startswith((".", "~")) or PurePosixPath(name).is_absolute() or PureWindowsPath(name).is_absolute()
    if is_path or is_file:
        name = PureWindowsPath(name).name
        name = (name[: -len(_GGUF)] if is_file else name).strip(".")
    return name
