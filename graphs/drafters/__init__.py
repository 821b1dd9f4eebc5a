"""Drafters: what one is, read from its config and tensor shapes and checked against the target it is for."""

from __future__ import annotations

from .drafter_config import called_autoregressive, stating, unknown_architectures
from .drafter_spec import DrafterSpec
from .read_drafter import read_drafter
from .vocabulary import check_vocabulary

__all__ = [
    "DrafterSpec",
    "called_autoregressive",
    "check_vocabulary",
    "read_drafter",
    "stating",
    "unknown_architectures",
]
