"""Settings of a Triton model, from the parameters (strings) in its ``config.pbtxt``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....plugins.errors import EnvironmentProblem

FORMAT = "2"  # of the repository, in the parameter `repository_format`
_REWRITE = "create the repository again with `peagle-compile triton`"


@dataclass(frozen=True)
class ModelSettings:
    """The parameters of a model and of this instance.

    ``gpu`` is the instance's device, None on a CPU. ``instances`` counts those on all devices. ``request_seconds`` is
    the request timeout, including time in the queue. ``draft`` is the drafter or draft method of requests that name
    none, None for the engine's; ``drafters`` are loaded as well.
    """

    name: str
    version: str
    engine: Path
    max_batch_size: int
    max_queue_size: int
    threads: int | None
    request_seconds: float
    gpu: int | None
    instances: int
    draft: str | None = None
    drafters: tuple[str, ...] = ()


def parameters_of(arguments: Mapping[str, str]) -> dict[str, str]:
    """Return the parameters in the ``args`` of ``initialize``.

    Raises ``EnvironmentProblem`` for another format version.
    """
    stored = json.loads(arguments["model_config"]).get("parameters", {})
    values = {name: str(value.get("string_value", "")) for name, value in stored.items()}
    found = values.get("repository_format")
    if found != FORMAT:
        raise EnvironmentProblem(
            f"model {arguments['model_name']}: repository_format is {found!r}, but this version supports {FORMAT!r}",
            why="the repository was created by another version of peagle-compile",
            fix=_REWRITE,
        )
    return values


def inputs_of(arguments: Mapping[str, str]) -> frozenset[str]:
    """Return the names of the model's input tensors."""
    return frozenset(each["name"] for each in json.loads(arguments["model_config"])["input"])


def settings_of(arguments: Mapping[str, str]) -> ModelSettings:
    """Return the settings of a model that holds an engine. Raises ``EnvironmentProblem`` that names the parameter."""
    values = parameters_of(arguments)
    folder = Path(arguments["model_repository"], arguments["model_version"])
    is_gpu = arguments["model_instance_kind"] == "GPU"
    threads = _integer(values, "threads", 0)
    return ModelSettings(
        name=arguments["model_name"],
        version=arguments["model_version"],
        engine=folder / _text(values, "engine_dir"),  # stays unchanged if absolute
        max_batch_size=_integer(values, "max_running", 1),
        max_queue_size=_integer(values, "max_queue_size", 0),
        threads=threads or None,
        request_seconds=_seconds(values, "request_timeout"),
        gpu=int(arguments["model_instance_device_id"]) if is_gpu else None,
        instances=_instances(json.loads(arguments["model_config"])),
        draft=values.get("draft") or None,
        drafters=tuple(filter(None, values.get("drafters", "").split(","))),
    )


def places_of(values: Mapping[str, str]) -> int:
    """Return the number of instances of the engine's model, from the config of a front model."""
    return _integer(values, "engine_instances", 1)


def _instances(config: Mapping[str, Any]) -> int:
    groups = config.get("instance_group", [])
    return max(1, sum(int(group.get("count", 1)) * max(1, len(group.get("gpus", []))) for group in groups))


def _text(values: Mapping[str, str], name: str) -> str:
    if not values.get(name):
        raise EnvironmentProblem(f"config.pbtxt: parameter {name} is missing", fix=_REWRITE)
    return values[name]


def _integer(values: Mapping[str, str], name: str, minimum: int) -> int:
    text = _text(values, name)
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= minimum):
        raise EnvironmentProblem(
            f"config.pbtxt: invalid {name}: {text!r}",
            why=f"the value must be an integer of at least {minimum}",
            fix="correct the value",
        )
    return int(text)


def _seconds(values: Mapping[str, str], name: str) -> float:
    text = _text(values, name)
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise EnvironmentProblem(
            f"config.pbtxt: invalid {name}: {text!r}", why="the value must be a number above 0", fix="correct the value"
        )
    return seconds
