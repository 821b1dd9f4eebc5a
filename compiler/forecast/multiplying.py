"""How fast this machine multiplies matrices in FP32 just now, which is what a calibration on it mostly does."""

from __future__ import annotations

import time

_ROWS, _WIDTH, _TIMES = 512, 2048, 4  # a sample's tokens, and a layer of usual width


def operations_per_second() -> float:
    """Additions and multiplications a second, the best of a few products; takes a fraction of a second."""
    import torch

    rows, matrix = torch.ones(_ROWS, _WIDTH), torch.ones(_WIDTH, _WIDTH)
    seconds = []
    with torch.no_grad():
        for _ in range(_TIMES):
            began = time.perf_counter()
            torch.mm(rows, matrix)
            seconds.append(time.perf_counter() - began)
    return 2 * _ROWS * _WIDTH * _WIDTH / min(seconds)
