"""Options of ``serve`` from a SageMaker container's environment, used when the command line names no engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import typer

from ....plugins.errors import UsageError
from ...console.printing import note


def find_in_container(context: typer.Context, engine: Path | None) -> Path | None:
    """Return the named ``engine``, or else the engine of the SageMaker container, with its options as defaults.

    The command line overrides these defaults. Raises ``UsageError`` for a variable with an invalid value, and
    ``EnvironmentProblem`` for additional model data that the engine cannot be served with.
    """
    if engine is not None or context.resilient_parsing:
        return engine
    from ....engines.folder.manifest import Manifest
    from ...deploy import sagemaker_container as sagemaker

    base = sagemaker.base_folder(os.environ)
    found = sagemaker.find_engine(base)
    sagemaker.check_additional_data(base, Manifest.read(found))
    if others := sagemaker.unread(os.environ):
        note(f"warning: ignored vLLM settings: {', '.join(others)}")
    flags = {flag: param for param in context.command.params for flag in param.opts if flag.startswith("--")}
    defaults: dict[str, object] = dict(sagemaker.CONTRACT)
    if port := os.environ.get(sagemaker.PORT_VARIABLE):
        defaults["port"] = _checked(context, flags["--port"], sagemaker.PORT_VARIABLE, port)
    for flag, (variable, value) in sagemaker.options_of(os.environ, flags).items():
        defaults[flags[flag].name] = _checked(context, flags[flag], variable, value)
    context.default_map = defaults
    return found


def _checked(context: typer.Context, param: Any, variable: str, value: object) -> object:
    values = [value] if param.multiple and not isinstance(value, list) else value
    try:
        param.process_value(context, values)
    except Exception as error:
        why = getattr(error, "message", None)  # set by the argument parser's errors
        if why is None:
            raise
        raise UsageError(
            f"{variable}={value} is invalid",
            why=why,
            fix=f"use a valid value for {param.opts[0]}; see `peagle-compile serve --help`",
        ) from None
    return values
