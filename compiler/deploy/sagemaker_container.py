"""What SageMaker puts into a container that serves: the engine, data beside it, and options in variables.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html. It runs ``IMAGE serve``, with the
model's data in ``/opt/ml/model``, and additional model data sources in folders named for their channels. Options come
as variables, by the rules that AWS's containers of vLLM have for theirs: ``SM_PEAGLE_MAX_BATCH_SIZE=8`` is
``--max-batch-size 8``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.folder.manifest import FILE_NAME, Manifest
from ...plugins.errors import EnvironmentProblem, PeagleError, UsageError

if TYPE_CHECKING:
    from ..checkpoints.checkpoint import Checkpoint

BASE_VARIABLE = "SAGEMAKER_BASE_DIR"  # as in AWS's own toolkits: what stands for /opt/ml where that cannot be made
PORT_VARIABLE = "SAGEMAKER_BIND_TO_PORT"
PREFIX = "SM_PEAGLE_"
CHANNEL = "eagle"
_OF_VLLM = "SM_VLLM_"
_READ_OF_VLLM = ("SM_VLLM_SPECULATIVE_CONFIG",)
_MODEL, _ADDITIONAL = "model", "additional-model-data-sources"
# SageMaker kills a container 30 seconds after it told it to stop; it asks on all addresses, at this port.
CONTRACT = {"host": "0.0.0.0", "port": "8080", "drain_timeout": "25"}


def base_folder(environment: Mapping[str, str]) -> Path:
    """``/opt/ml``, or what stands for it."""
    return Path(environment.get(BASE_VARIABLE) or "/opt/ml")


def find_engine(base: Path) -> Path:
    """The engine among the model's data: that folder, or the only one in it that is an engine.

    Raises ``UsageError`` where there is no such folder, for then this is no container of SageMaker's, and
    ``EnvironmentProblem`` for one that holds none, or several.
    """
    model = base / _MODEL
    if not model.is_dir():
        raise UsageError(
            "no ENGINE was named",
            why=f"without one, the engine is looked for where Amazon SageMaker puts it, and there is no {model}",
            fix="name the folder that `peagle-compile build --out` made",
        )
    if os.path.lexists(model / FILE_NAME):
        return model
    try:
        inside = sorted(path for path in model.iterdir())
    except OSError as error:
        raise EnvironmentProblem(f"cannot read {model}", why=str(error), fix="check its permissions") from None
    found = [path for path in inside if (path / FILE_NAME).is_file()]
    if len(found) == 1:
        return found[0]
    holds = ", ".join(path.name for path in (found or inside)[:8]) or "nothing"
    raise EnvironmentProblem(
        f"{model} holds {'several engines' if found else 'no engine'}",
        why=f"there is no {FILE_NAME} at its top, but {holds}",
        fix="make the model's data with `peagle-compile sagemaker ENGINE --out model.tar.gz`, or upload one engine's "
        "folder as it is",
    )


def options_of(environment: Mapping[str, str], flags: Collection[str]) -> dict[str, tuple[str, Any]]:
    """The options that variables set, by name: the variable, and its value, a string or a list of them.

    ``flags`` are the options there are, ``--max-batch-size``. Raises ``UsageError`` for a variable that names none.
    """
    options: dict[str, tuple[str, Any]] = {}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        flag = "--" + variable.removeprefix(PREFIX).lower().replace("_", "-")
        if flag not in flags:
            raise UsageError(
                f"{variable} stands for {flag}, which `peagle-compile serve` does not have",
                why=f"it has {', '.join(sorted(flags))}",
                fix="correct the variable's name, or leave it out",
            )
        if environment[variable]:
            options[flag] = variable, _value(environment[variable])
    return options


def _value(text: str) -> str | list[str]:
    """A JSON array is several values; an object, as of ``--speculative-config``, is one."""
    if not text.startswith("["):
        return text
    try:
        several = json.loads(text)
    except ValueError:
        return text
    return [each if isinstance(each, str) else json.dumps(each) for each in several]


def unread(environment: Mapping[str, str]) -> list[str]:
    """Variables that are meant for vLLM's container, and that nothing here reads."""
    return sorted(name for name in environment if name.startswith(_OF_VLLM) and name not in _READ_OF_VLLM)


def check_additional_data(base: Path, manifest: Manifest) -> None:
    """Refuse additional model data that this engine would not be served with.

    On the channel ``eagle`` AWS's containers are given a drafter. An engine has its own compiled in, so the channel's
    must be the checkpoint that it was built with, byte for byte. Raises ``EnvironmentProblem``.
    """
    folder = base / _ADDITIONAL
    for source in sorted(folder.iterdir()) if folder.is_dir() else ():
        if source.name != CHANNEL:
            raise EnvironmentProblem(
                f"there is additional model data on the channel {source.name!r}",
                why=f"only {CHANNEL!r} is known here, which holds the drafter",
                fix="leave it out of AdditionalModelDataSources",
            )
        _check_drafter(source, manifest)


def _check_drafter(source: Path, manifest: Manifest) -> None:
    channel = f"the drafter on the channel {CHANNEL!r} ({source})"
    leave_out = "leave the channel out of AdditionalModelDataSources: the engine needs none"
    if manifest.drafter is None:
        raise EnvironmentProblem(
            f"{channel} cannot be used", why="the engine was built without a drafter",
            fix=f"build it with this one, `peagle-compile build --draft ...`, or {leave_out}",
        )  # fmt: skip
    built = manifest.drafter.origin
    found = _opened(source, channel).fingerprint
    if found != built.revision:
        raise EnvironmentProblem(
            f"{channel} is not the one that the engine was built with",
            why=f"its drafter is compiled in: {built.id}, whose content is {built.revision[:16]}; "
            f"the channel's is {found[:16]}",
            fix=f"build the engine with the channel's, `peagle-compile build --draft ...`, or {leave_out}",
        )


def _opened(source: Path, channel: str) -> Checkpoint:
    from ..checkpoints.checkpoint import Checkpoint

    try:
        return Checkpoint.open(source)
    except PeagleError as error:
        why = f"{error.what}: {error.why}" if error.why else error.what
        fix = "upload the whole folder of the checkpoint, uncompressed"
        raise EnvironmentProblem(f"{channel} cannot be read", why=why, fix=fix) from None
