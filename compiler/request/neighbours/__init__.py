"""The options of TensorRT-LLM and vLLM in a file, in ``--set`` and in ``--speculative-config``, read as ours."""

from __future__ import annotations

from .read_words import before, final, is_theirs, read_answers, read_settings_of_theirs, read_speculative_config

__all__ = ["before", "final", "is_theirs", "read_answers", "read_settings_of_theirs", "read_speculative_config"]
