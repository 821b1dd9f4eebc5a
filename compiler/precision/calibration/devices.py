"""The device that computes layers during calibration: the CPU, or a GPU that torch can use."""

from __future__ import annotations

from ....plugins.errors import EnvironmentProblem

_ON_CPU = "calibrate on the CPU (omit --calib-device)"


def require_device(name: str) -> None:
    """Raise ``EnvironmentProblem`` for a device that torch cannot use. ``name`` is cpu, cuda or cuda:N."""
    kind, _, number = name.partition(":")
    if kind == "cpu":
        return
    import torch

    if not torch.cuda.is_available():
        built = (
            f"was built for CUDA {torch.version.cuda}, but finds no GPU"
            if torch.version.cuda
            else "was built without CUDA"
        )
        raise EnvironmentProblem(
            f"--calib-device {name} cannot be used: torch has no CUDA device",
            why=f"torch {torch.__version__} {built}",
            fix=f"install torch for CUDA on a machine with a GPU, or {_ON_CPU}",
        )
    count = torch.cuda.device_count()
    if number and int(number) >= count:
        there = "cuda:0" if count == 1 else f"cuda:0 to cuda:{count - 1}"
        raise EnvironmentProblem(
            f"--calib-device {name} does not exist",
            why=f"torch finds {count} CUDA device{'s' * (count != 1)}, counted from 0",
            fix=f"use {there}, or {_ON_CPU}",
        )
