"""The command line of a verb, generated from the options of its form."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from ....plugins.errors import UsageError
from ...console.printing import note
from ...request.config_file import read_config, read_settings
from ...request.verb_options import VerbOption, VerbOptions
from .completion import completion
from .help_text import DRAFT, MODEL, ONNX_RUNTIME, PRECISION, RUN, SIZES, TENSORRT

_ARGUMENT, _CONFIG, _SETTINGS, _CONTEXT = "model_argument", "config", "settings", "context"
_SPECULATION = "speculative_config"
_OWN = {
    _CONFIG: Annotated[
        Path | None,
        typer.Option(
            "--config",
            help="Read options from a YAML or JSON file; `build` also takes the resolved_config.yaml of an engine. "
            "Option names of TensorRT-LLM and vLLM also work. The command line overrides --set, which overrides the "
            "file.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ],
    _SETTINGS: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Set one option by its name in the file, for example calib_samples=64. Can be repeated.",
            show_default=False,
            rich_help_panel=RUN,
        ),
    ],
}
_OF_DRAFTS = {
    _SPECULATION: Annotated[
        str | None,
        typer.Option(
            "--speculative-config",
            metavar="JSON",
            help="Head and number of drafts in vLLM's format; `serve` takes the same JSON.",
            show_default=False,
            rich_help_panel=DRAFT,
        ),
    ],
}
# The help section of each option that is not common, by group, or by group and field.
_SECTIONS = {
    "pair": MODEL,
    ("pair", "draft_revision"): DRAFT,
    "head": DRAFT,
    "precision": PRECISION,
    "calibration": PRECISION,
    ("backend", "experts"): TENSORRT,
    ("backend", "lowering"): ONNX_RUNTIME,
    "plans": TENSORRT,
    ("plans", "max_batch_size"): SIZES,
    "speed": RUN,
}
_COMMON = {
    ("pair", "model"), ("pair", "draft"), ("", "source"), ("", "out"), ("backend", "name"), ("backend", "gpus"),
    ("precision", "name"), ("sizes", "num_speculative_tokens"), ("sizes", "max_seq_len"),
}  # fmt: skip


def takes_options(options: VerbOptions) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a verb that takes a ``request`` the options of ``options``, ``--config`` and ``--set``, before its own."""

    def wrap(verb: Callable[..., None]) -> Callable[..., None]:
        own = (_OF_DRAFTS if any(entry.option.name == "draft" for entry in options) else {}) | _OWN
        parameters = [*_form_parameters(options), *(_keyword(name, kind, None) for name, kind in own.items())]
        option_names = {parameter.name for parameter in parameters}
        hints = get_type_hints(verb, include_extras=True)
        for name, parameter in inspect.signature(verb).parameters.items():
            if name != "request":
                parameters.append(_keyword(name, hints[name], parameter.default))
        parameters.append(_keyword(_CONTEXT, typer.Context, inspect.Parameter.empty))

        @functools.wraps(verb)
        def command(**values: Any) -> None:
            context = values.pop(_CONTEXT)
            answers = {
                name: value
                for name in option_names
                if (value := values.pop(name)) is not None and context.get_parameter_source(name).name != "DEFAULT"
            }
            verb(request=options.request(**_merged(options, answers)), **values)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return wrap


def _form_parameters(options: VerbOptions) -> list[inspect.Parameter]:
    parameters = []
    for entry in options:
        if entry.option.argument:
            same = typer.Argument(
                metavar=entry.option.argument,
                help=f"Same as {entry.option.flag}.",
                show_default=False,
                autocompletion=completion(entry),
            )
            parameters.append(_keyword(_ARGUMENT, Annotated[str | None, same], None))
        parameters.append(_option(entry))
    return parameters


def _option(entry: VerbOption) -> inspect.Parameter:
    option, kind, default = entry.option, entry.type, entry.default
    shown = isinstance(default, int)
    info = typer.Option(
        option.flag,
        help=option.help,
        min=option.minimum,
        show_default=shown,
        autocompletion=completion(entry),
        rich_help_panel=_section(entry),
    )
    if not shown:
        default, kind = None, _nullable(kind, split=option.split)
    return _keyword(option.name, Annotated[kind, info], default)


def _section(entry: VerbOption) -> str | None:
    """Return the help section of an option; None for a common one."""
    at = (entry.group, entry.field)
    if at in _COMMON or entry.option.flag == "--for":
        return None
    return _SECTIONS.get(at) or _SECTIONS[entry.group]


def _keyword(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _nullable(kind: Any, *, split: bool) -> Any:
    """Return the type of an option that may be omitted."""
    if kind == tuple[str, ...]:
        return str | None if split else list[str] | None
    return kind | None


def _merged(options: VerbOptions, given: dict[str, Any]) -> dict[str, Any]:
    """Merge the answers: the command line overrides ``--set``, which overrides the file."""
    from ...request.compat import (  # imported late: it shares a table with `serve`, and --help needs no runtime
        final,
        is_foreign_config,
        map_options,
        merge_values,
        read_foreign_settings,
        read_speculative_config,
    )

    path, settings = given.pop(_CONFIG, None), given.pop(_SETTINGS, None) or ()
    speculation = given.pop(_SPECULATION, None)
    argument = given.pop(_ARGUMENT, None)
    if argument is not None:
        if "model" in given:
            raise UsageError(
                f"the model was given twice: {argument} and --model {given['model']}",
                why="MODEL and --model are the same option",
                fix="omit one of them",
            )
        given["model"] = argument
    mapped = [map_options(options, read_config(path), f"--config {path}")] if path else []
    once: dict[str, Any] = {}
    foreign = []
    for name, text in read_settings(settings):
        if is_foreign_config(name):
            foreign.append((name, text))
            continue
        entry = options.find(name, f"--set {name}")
        several = entry.type == tuple[str, ...]
        once[entry.option.name] = [*once.get(entry.option.name, []), text] if several else text
    mapped.append(read_foreign_settings(options, foreign, once))
    if speculation is not None:
        mapped.append(read_speculative_config(options, speculation, given))
    merged: dict[str, Any] = {}
    for each in mapped:
        merged = merge_values(each.values, merged)
        for text in each.left_out:
            note(f"note: {text}")
    return final(merge_values(given, merged))
