"""Drafter heads: what one is, read from its config and tensor shapes and checked against the target it is for."""

from __future__ import annotations

from .read import read_head
from .spec import HeadSpec
from .vocabulary import check_vocabulary

__all__ = ["HeadSpec", "check_vocabulary", "read_head"]
