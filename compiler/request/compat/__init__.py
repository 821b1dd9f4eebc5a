"""Options of TensorRT-LLM and vLLM in ``--config``, ``--set`` and ``--speculative-config``."""

from __future__ import annotations

from .read_option_map import (
    final,
    is_foreign_config,
    map_options,
    merge_values,
    read_foreign_settings,
    read_speculative_config,
)

__all__ = [
    "final",
    "is_foreign_config",
    "map_options",
    "merge_values",
    "read_foreign_settings",
    "read_speculative_config",
]
