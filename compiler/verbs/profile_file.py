"""The file and the table of ``run --profile``: where the time of prompts and rounds went."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from ...plugins.errors import UsageError
from ..console.printing import columns
from ..store.atomic_files import replacing, require_writable

if TYPE_CHECKING:
    from ...engines import RequestOutput
    from ...engines.backends.profiling import EngineProfile, PassTimes

_KEY = "peagle_profile"
_VERSION = 1
_SHOWN = 8  # kinds of layers in a pass


def require_replaceable(path: Path) -> None:
    """Raise ``UsageError`` unless ``path`` is free or an earlier profile.

    Raises ``EnvironmentProblem`` if it cannot be written.
    """
    from ..store.destination import is_record, require_outside_engines  # imported here, because --help needs neither

    require_outside_engines(path, f"--profile {path}")
    if os.path.exists(path) and not is_record(path, _KEY):
        raise UsageError(
            f"{path} exists and is not a profile", fix="choose another file for --profile, or remove the file"
        )
    require_writable(path)


def write_profile(path: Path, profile: EngineProfile, engine: Path, output: RequestOutput) -> None:
    """Write the profile of a run, with what it ran."""
    ran = {"engine": str(engine), "prompt_tokens": len(output.prompt_token_ids), "tokens": len(output.token_ids)}
    content = {_KEY: _VERSION, **ran, **profile.as_json()}
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def profile_table(profile: EngineProfile) -> str:
    """Return rows by phase, pass and kind of layer, in milliseconds per phase and shares of it."""
    rows: list[tuple[object, ...]] = [("", "per phase", "share", "")]
    for name, seconds in profile.phases.items():
        count, total = len(seconds), 1000 * sum(seconds)
        rows.append((f"{name} ({count} times)", f"{total / count:.3f} ms", "", ""))
        passes = [each for each in profile.passes if each.phase == name]
        for each in passes:
            rows += _of_pass(each, count, total)
        rest = total - sum(1000 * sum(each.seconds) for each in passes)
        rows.append(("  outside of passes", *_spent(rest, count, total), ""))
    return columns(rows)


def _of_pass(each: PassTimes, count: int, total: float) -> list[tuple[object, ...]]:
    kinds, spent = each.kinds(), 1000 * sum(each.seconds)
    runs = "" if len(each.seconds) == count else f"{len(each.seconds)} passes"
    rows: list[tuple[object, ...]] = [(f"  {each.component}", *_spent(spent, count, total), runs)]
    shown, rest = kinds[:_SHOWN], kinds[_SHOWN:]
    if rest:
        shown.append(("other layers", sum(n for _, n, _ in rest), sum(ms for *_, ms in rest)))
    layers = sum(ms for *_, ms in kinds)
    if spent - layers > 0.001 * spent:
        shown.append(("between layers", 0, spent - layers))
    return rows + [(f"    {kind}", *_spent(ms, count, total), f"{n} layers" if n else "") for kind, n, ms in shown]


def _spent(milliseconds: float, count: int, total: float) -> tuple[str, str]:
    return f"{milliseconds / count:.3f} ms", f"{milliseconds / total:.0%}"
