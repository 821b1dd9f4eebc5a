"""A verb's options from what a container's host has put around it, where the command line names no engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from ....plugins.errors import UsageError
from ...console.printing import note


def find_in_container(context: typer.Context, engine: Path | None) -> Path | None:
    """The ``engine`` that was named, or else that of SageMaker's contract, whose options become the defaults then.

    What the command line says comes before them. Raises ``UsageError`` for a variable with a value that its option
    does not take, and ``EnvironmentProblem`` for data beside the engine that it cannot be served with.
    """
    if engine is not None or context.resilient_parsing:
        return engine
    from ....engines.folder.manifest import Manifest
    from ...deploy import sagemaker_container as sagemaker

    base = sagemaker.base_folder(os.environ)
    found = sagemaker.find_engine(base)
    sagemaker.check_additional_data(base, Manifest.read(found))
    if others := sagemaker.unread(os.environ):
        note(f"warning: not read here, for they are vLLM's: {', '.join(others)}")
    flags = {flag: param for param in context.command.params for flag in param.opts if flag.startswith("--")}
    defaults: dict[str, object] = dict(sagemaker.CONTRACT)
    if port := os.environ.get(sagemaker.PORT_VARIABLE):
        defaults["port"] = _checked(context, flags["--port"], sagemaker.PORT_VARIABLE, port)
    for flag, (variable, value) in sagemaker.options_of(os.environ, flags).items():
        defaults[flags[flag].name] = _checked(context, flags[flag], variable, value)
    context.default_map = defaults
    return found


def _checked(context: typer.Context, param: Any, variable: str, value: object) -> object:
    given = [value] if param.multiple and not isinstance(value, list) else value
    try:
        param.process_value(context, given)
    except Exception as error:
        why = getattr(error, "message", None)  # of the argument parser's own
        if why is None:
            raise
        raise UsageError(f"{variable} is {value!r}", why=why, fix=f"it is read as {param.opts[0]} is") from None
    return given
