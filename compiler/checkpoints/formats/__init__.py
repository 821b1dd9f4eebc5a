"""The supported storage formats for weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....plugins.problems import Problems
from .base import Format, Settings, StoredTensor, View, declared, describe
from .fp8 import COMPRESSED_TENSORS_FP8, FP8_BLOCKS, MODELOPT_FP8
from .mxfp4 import MXFP4
from .plain import PLAIN

FORMATS = (PLAIN, MXFP4, FP8_BLOCKS, MODELOPT_FP8, COMPRESSED_TENSORS_FP8)

__all__ = ["FORMATS", "Format", "Settings", "StoredTensor", "View", "format_of"]


def format_of(config: Mapping[str, Any], modelopt: Mapping[str, Any], problems: Problems) -> tuple[Format, Settings]:
    """Return the format that a checkpoint declares. An unsupported one is reported as a problem."""
    settings = declared(config, modelopt, problems)
    for candidate in FORMATS:
        if candidate.matches(settings):
            return candidate, settings
    problems.add(
        f"{problems.subject} uses an unsupported quantization: {describe(settings)}",
        why="the supported formats are GPT-OSS's MXFP4, FP8 in blocks, and the FP8 of ModelOpt and "
        "compressed-tensors; reading another format as one of these would give wrong weights",
        fix="use a checkpoint of the model in BF16, FP16 or FP32, or in one of these formats",
    )
    return PLAIN, settings
