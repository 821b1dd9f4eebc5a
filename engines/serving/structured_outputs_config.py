"""Server defaults for JSON output, in vLLM's format of ``--structured-outputs-config``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ...plugins.errors import UsageError
from ...plugins.unique_keys import unique_keys

FLAG = "--structured-outputs-config"
# Accepted values of vLLM's other keys: those that describe the behaviour here.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "backend": ("auto", "guidance"),
    "disable_fallback": (False, True),  # there is one backend
    "enable_in_reasoning": (False,),
    "reasoning_parser": ("",),
    "reasoning_parser_plugin": ("",),
}


@dataclass(frozen=True)
class FormDefaults:
    """Defaults for JSON output; names and meanings as in ``StructuredOutputsParams``."""

    disable_additional_properties: bool = True
    disable_any_whitespace: bool = False

    def filled(self, form: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``form`` with the defaults filled in, if it is a JSON form."""
        if form.get("json") is None and not form.get("json_object"):
            return dict(form)
        defaults = asdict(self)
        if form.get("whitespace_pattern") is not None:
            del defaults["disable_any_whitespace"]
        return {**form, **{name: value for name, value in defaults.items() if form.get(name) is None}}


def form_defaults_of(text: str | None) -> FormDefaults:
    """Parse the defaults from JSON. Raises ``UsageError`` that names the key."""
    if text is None:
        return FormDefaults()
    known = [field.name for field in fields(FormDefaults)]
    fix = f'use an object such as {{"{known[0]}": false}}'
    try:
        content = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{FLAG} is not valid JSON", why=str(error), fix=fix) from None
    if not isinstance(content, dict):
        raise UsageError(f"{FLAG} is not a JSON object", fix=fix)
    found = {}
    for name, value in content.items():
        if name in known:
            if not isinstance(value, bool):
                raise UsageError(f"{FLAG}: {name} must be true or false", fix=fix)
            found[name] = value
        elif name not in _NEUTRAL:
            raise UsageError(f"{FLAG}: unknown key {name!r}", fix=f"use only {' and '.join(known)}")
        elif value is not None and value not in _NEUTRAL[name]:
            accepted = " or ".join(json.dumps(each) for each in _NEUTRAL[name])
            raise UsageError(f"{FLAG}: {name} is not supported", fix=f"remove the key, or set it to {accepted}")
    return FormDefaults(**found)
