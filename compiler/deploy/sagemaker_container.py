"""The contract of a SageMaker serving container: the engine, additional model data, and options in variables.

https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-inference-code.html. SageMaker runs ``IMAGE serve``,
with the model data in ``/opt/ml/model`` and additional model data sources in folders named after their channels.
Options are environment variables, by the rules of AWS's vLLM containers: ``SM_PEAGLE_MAX_BATCH_SIZE=8`` is
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

BASE_VARIABLE = "SAGEMAKER_BASE_DIR"  # replaces /opt/ml, as in AWS's own toolkits
PORT_VARIABLE = "SAGEMAKER_BIND_TO_PORT"
PREFIX = "SM_PEAGLE_"
CHANNEL = "eagle"
_OF_VLLM = "SM_VLLM_"
_READ_OF_VLLM = ("SM_VLLM_SPECULATIVE_CONFIG",)
_NEVER_EMPTY = ("--api-key",)  # without a key, everybody could use the server
_MODEL, _ADDITIONAL = "model", "additional-model-data-sources"
# SageMaker connects to this port on any address, and kills a container 30 seconds after SIGTERM.
CONTRACT = {"host": "0.0.0.0", "port": "8080", "drain_timeout": "25"}


def base_folder(environment: Mapping[str, str]) -> Path:
    """Return ``/opt/ml`` or its replacement."""
    return Path(environment.get(BASE_VARIABLE) or "/opt/ml")


def find_engine(base: Path) -> Path:
    """Find the engine in the model data: that folder itself, or the only engine folder in it.

    Raises ``UsageError`` if there is no such folder, because this is not a SageMaker container then, and
    ``EnvironmentProblem`` if it holds no engine or several.
    """
    model = base / _MODEL
    if not model.is_dir():
        raise UsageError(
            "no ENGINE was given",
            why=f"without ENGINE, the engine is expected where Amazon SageMaker puts it, but {model} does not exist",
            fix="pass the engine folder that `peagle-compile build` wrote",
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
        f"{model} contains {'several engines' if found else 'no engine'}",
        why=f"the top level of the folder has no {FILE_NAME}, and contains {holds}",
        fix="create the model data with `peagle-compile sagemaker ENGINE --out model.tar.gz`, or upload one engine "
        "folder",
    )


def options_of(environment: Mapping[str, str], flags: Collection[str]) -> dict[str, tuple[str, Any]]:
    """Return the options set by variables: for each flag the variable and its value, a string or a list of them.

    ``flags`` are the known flags, such as ``--max-batch-size``. An empty variable counts as unset, except an API key,
    which ``serve`` then refuses. Raises ``UsageError`` for a variable without a flag.
    """
    options: dict[str, tuple[str, Any]] = {}
    for variable in sorted(name for name in environment if name.startswith(PREFIX)):
        flag = "--" + variable.removeprefix(PREFIX).lower().replace("_", "-")
        if flag not in flags:
            raise UsageError(
                f"{variable} sets {flag}, which is not an option of `peagle-compile serve`",
                why=f"the options are {', '.join(sorted(flags))}",
                fix="correct the variable's name, or unset it",
            )
        if environment[variable] or flag in _NEVER_EMPTY:
            options[flag] = variable, _value(environment[variable])
    return options


def _value(text: str) -> str | list[str]:
    """Parse a value; a JSON array holds several, an object (as for ``--speculative-config``) is one."""
    if not text.startswith("["):
        return text
    try:
        several = json.loads(text)
    except ValueError:
        return text
    return [each if isinstance(each, str) else json.dumps(each) for each in several]


def unread(environment: Mapping[str, str]) -> list[str]:
    """Return the variables for vLLM's container that are ignored here."""
    return sorted(name for name in environment if name.startswith(_OF_VLLM) and name not in _READ_OF_VLLM)


def check_additional_data(base: Path, manifest: Manifest) -> None:
    """Raise ``EnvironmentProblem`` for additional model data that this engine cannot be served with.

    AWS's containers receive a drafter on the channel ``eagle``. An engine has its drafter compiled in, so the channel
    must hold exactly the checkpoint that it was built with.
    """
    folder = base / _ADDITIONAL
    for source in sorted(folder.iterdir()) if folder.is_dir() else ():
        if source.name != CHANNEL:
            raise EnvironmentProblem(
                f"the channel {source.name!r} has additional model data",
                why=f"only the channel {CHANNEL!r}, for the drafter, is supported",
                fix="remove the channel from AdditionalModelDataSources",
            )
        _check_drafter(source, manifest)


def _check_drafter(source: Path, manifest: Manifest) -> None:
    channel = f"the drafter on the channel {CHANNEL!r} ({source})"
    leave_out = "remove the channel from AdditionalModelDataSources, because the engine does not need it"
    if manifest.drafter is None:
        raise EnvironmentProblem(
            f"{channel} cannot be used", why="the engine was built without a drafter",
            fix=f"rebuild the engine with this drafter, `peagle-compile build --draft ...`, or {leave_out}",
        )  # fmt: skip
    built = manifest.drafter.origin
    found = _opened(source, channel).fingerprint
    if found != built.revision:
        raise EnvironmentProblem(
            f"{channel} is not the drafter that the engine was built with",
            why=f"the engine's drafter is compiled in: {built.id}, with content hash {built.revision[:16]}; "
            f"the channel's hash is {found[:16]}",
            fix=f"rebuild the engine with the channel's drafter, `peagle-compile build --draft ...`, or {leave_out}",
        )


def _opened(source: Path, channel: str) -> Checkpoint:
    from ..checkpoints.checkpoint import Checkpoint

    try:
        return Checkpoint.open(source)
    except PeagleError as error:
        why = f"{error.what}: {error.why}" if error.why else error.what
        fix = "upload the complete checkpoint folder, uncompressed"
        raise EnvironmentProblem(f"{channel} cannot be read", why=why, fix=fix) from None
