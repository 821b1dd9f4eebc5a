"""Target families: one short file each. Adding a model is adding a file and one entry in ``FAMILIES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...plugins.errors import BuildError
from .base import CacheSpec, Family, TargetSpec
from .llama import LLAMA
from .qwen3 import QWEN3

__all__ = ["FAMILIES", "CacheSpec", "Family", "TargetSpec", "family_for"]

FAMILIES: tuple[Family, ...] = (LLAMA, QWEN3)


def family_for(config: Mapping[str, Any]) -> Family:
    """The family that serves ``config["architectures"]``. Raises ``BuildError`` naming those that exist."""
    wanted = config.get("architectures") or []
    for family in FAMILIES:
        if any(name in family.architectures for name in wanted):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise BuildError(
        f"unsupported target architecture {', '.join(map(str, wanted)) or '(none named in config.json)'}",
        why=f"the families here serve {known}",
        fix="use one of those, or add a family file (docs/architecture.md, 'Add a model')",
    )
