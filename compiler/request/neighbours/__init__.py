"""Options of TensorRT-LLM and vLLM in ``--config``, ``--set`` and ``--speculative-config``."""

from __future__ import annotations

from .read_words import before, final, is_theirs, read_answers, read_settings_of_theirs, read_speculative_config

__all__ = ["before", "final", "is_theirs", "read_answers", "read_settings_of_theirs", "read_speculative_config"]
