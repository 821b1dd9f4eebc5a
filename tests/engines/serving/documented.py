"""The tables of fields in docs/serving.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "serving.md"


def rows_of(section: str) -> list[tuple[list[str], str]]:
    """The fields of each row of a section's table, and how the server treats them."""
    table = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0].split("\n### ")[0]
    cells = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| `")]
    return [(re.findall(r"`(\w+)`", names), text.strip()) for names, text in cells]
