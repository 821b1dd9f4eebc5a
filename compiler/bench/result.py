"""Result of a benchmark: its origin and figures, as JSON and as files."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ...engines.folder.strict_json import decode
from ...plugins.errors import UsageError
from ...plugins.regular_files import read_regular
from ..store.atomic_files import replacing
from ..store.destination import MAX_RECORD_BYTES, is_record
from .origin import Rows
from .passes import PassFigures
from .summary import ModeFigures

_KEY, _FORMAT = "bench_format", 1


@dataclass(frozen=True)
class BenchResult:
    """Figures of a benchmark, and everything that a reader needs to repeat it.

    ``origin`` are rows of names and texts, ``command`` the command line. ``notes`` list what was omitted or changed.
    By mode, ``methods`` are the titles of the draft methods, ``engines`` the indices of the engines, and ``counts`` the
    fixed K. ``rival`` is the autoregressive method that the others are compared with. ``passes`` are the cost of the
    target's passes.
    """

    command: str
    origin: Rows
    notes: tuple[str, ...]
    figures: tuple[ModeFigures, ...]
    methods: Mapping[str, str]
    counts: Mapping[str, int]
    rival: str | None = None
    passes: tuple[PassFigures, ...] = ()
    engines: Mapping[str, int] = field(default_factory=dict)

    @property
    def identical(self) -> bool | None:
        """Return True if every mode gave the text of plain decoding; None if nothing was compared."""
        compared = [each.identical for each in self.figures if each.identical is not None]
        return all(compared) if compared else None

    @property
    def levels(self) -> list[list[ModeFigures]]:
        """The figures of each concurrency and temperature."""
        found: dict[object, list[ModeFigures]] = {}
        for each in self.figures:
            found.setdefault((each.concurrency, each.temperature), []).append(each)
        return [*found.values()]

    def passes_beside(self, figures: ModeFigures) -> list[PassFigures]:
        """Return the cost of passes at the concurrency and temperature of these figures; none with requests at once."""
        return [each for each in self.passes if figures.concurrency == 1 and each.temperature == figures.temperature]

    def as_json(self) -> dict[str, Any]:
        """Return the content of ``bench.json``."""
        content = {
            _KEY: _FORMAT,
            "command": self.command,
            "origin": dict(self.origin),
            "notes": list(self.notes),
            "identical": self.identical,
            "methods": dict(self.methods),
            "engines": dict(self.engines),
            "counts": dict(self.counts),
            "rival": self.rival,
            "figures": [asdict(each) for each in self.figures],
            "passes": [asdict(each) for each in self.passes],
        }
        finite: dict[str, Any] = _finite(content)
        return finite

    @classmethod
    def read(cls, path: Path) -> BenchResult:
        """Return the result in a ``bench.json``. Raises ``UsageError`` for a file that this version did not write."""
        problems: list[str] = []
        try:
            content = json.loads(read_regular(path, MAX_RECORD_BYTES))
            figures = [decode(ModeFigures, each, problems, "figures") for each in content["figures"]]
            passes = [decode(PassFigures, each, problems, "passes") for each in content["passes"]]
            if problems:
                raise ValueError(problems[0])
            return cls(
                command=content["command"],
                origin=[*content["origin"].items()],
                notes=tuple(content["notes"]),
                figures=tuple(filter(None, figures)),
                methods=content["methods"],
                counts=content["counts"],
                rival=content["rival"],
                passes=tuple(filter(None, passes)),
                engines=content.get("engines", {}),  # earlier files have none
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UsageError(
                f"{path} is not a benchmark result of this version",
                why=str(error) or type(error).__name__,
                fix="run the benchmark again with this version",
            ) from None

    def write_json(self, path: Path) -> None:
        """Write ``bench.json`` atomically. Raises ``UsageError`` for a file that no benchmark wrote."""
        require_replaceable(path)
        with replacing(path) as temporary:
            text = json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n"
            temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # as JSON escapes surrogates too


def require_replaceable(path: Path) -> None:
    """Raise ``UsageError`` unless ``path`` is free, or the result of an earlier benchmark."""
    if os.path.exists(path) and not is_record(path, _KEY):
        raise UsageError(
            f"{path} exists and was not written by `peagle-compile bench`",
            fix="choose another file for --out, or remove the file",
        )


def _finite(value: Any) -> Any:
    """Return JSON content in which null stands for numbers that are not finite."""
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
