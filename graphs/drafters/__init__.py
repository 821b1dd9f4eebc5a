"""Drafters: what one is, read from its config and tensor shapes and checked against the target it is for."""

from __future__ import annotations

from .read import read_drafter
from .spec import DrafterSpec, check_vocabulary

__all__ = ["DrafterSpec", "check_vocabulary", "read_drafter"]
