"""Sampling parameters given as JSON, for those without a flag."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection
from typing import Any

from ...plugins.errors import UsageError, nearest
from ...plugins.unique_keys import unique_keys
from .input_text import argument_text


def more_parameters(flag: str, text: str | None, flags: Collection[str]) -> dict[str, Any]:
    """Return the parameters in ``text`` for ``SamplingParams``, which validates their values.

    Token ids that are JSON keys are converted to integers. Raises ``UsageError`` unless ``text`` is an object, for an
    unknown parameter, and for one of ``flags``, which have flags of their own.
    """
    from ...engines import SamplingParams

    if text is None:
        return {}
    try:
        parameters = json.loads(argument_text(flag, text), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{flag} is not valid JSON: {error}", fix='use an object such as {"min_tokens": 8}') from None
    if not isinstance(parameters, dict):
        raise UsageError(f"{flag} is not a JSON object", fix='use an object such as {"min_tokens": 8}')
    known = {field.name for field in dataclasses.fields(SamplingParams)}
    for name in parameters:
        if name in flags:
            raise UsageError(f"{flag}: {name} has its own flag", fix=f"use --{name.replace('_', '-')}")
        if name not in known:
            others = known - set(flags)
            near = nearest(name, others)
            raise UsageError(
                f"{flag}: unknown sampling parameter {name[:100]!r}",
                fix=f"did you mean {', '.join(near)}?" if near else f"use one of {', '.join(sorted(others))}",
            )
    biases = parameters.get("logit_bias")
    if isinstance(biases, dict):
        parameters["logit_bias"] = {_token_id(token): amount for token, amount in biases.items()}
    return parameters


def _token_id(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
