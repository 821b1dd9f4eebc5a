"""Target families: one short file each. To add a model, add a file and an entry in ``FAMILIES``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...plugins.errors import BuildError
from ...plugins.problems import listed
from .family import CacheSpec, Family, Piece, TargetSpec
from .gemma4 import Gemma4
from .gpt_oss import GptOss
from .llama import Llama
from .qwen3 import Qwen3
from .qwen3_moe import Qwen3Moe

__all__ = ["FAMILIES", "CacheSpec", "Family", "Piece", "TargetSpec", "family_for"]

FAMILIES: tuple[Family, ...] = (Llama(), Qwen3(), Qwen3Moe(), GptOss(), Gemma4())


def family_for(config: Mapping[str, Any]) -> Family:
    """Return the family for ``config["architectures"]``. Raises ``BuildError`` listing the supported ones."""
    declared = config.get("architectures")
    names = [name for name in declared if isinstance(name, str)] if isinstance(declared, list) else []
    for family in FAMILIES:
        if any(name in family.architectures for name in names):
            return family
    served = ", ".join(name for family in FAMILIES for name in family.architectures)
    raise BuildError(
        f"unsupported target architecture {listed(names) or '(none named in config.json)'}",
        why=f"the supported architectures are {served}",
        fix="use a model with one of these architectures, or add a family file (docs/add-a-model.md)",
    )
