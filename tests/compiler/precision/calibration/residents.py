"""Count the bytes of parameters in memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def uncounted() -> Iterator[None]:
    """Count nothing of what is there already."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def resident_bytes() -> int:
    """The bytes of all parameters with values, each storage once."""
    gc.collect()
    found = (each for each in gc.get_objects() if type(each) is torch.nn.Parameter and not each.is_meta)
    return sum({each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in found}.values())
