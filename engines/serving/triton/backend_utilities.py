"""Triton's own module, which only the process of a Python model has; and whether tensors pass through it whole."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ....plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ...errors import EngineClosed

MODULE = "triton_python_backend_utils"
_PROBE = np.array([1, -2, 1 << 20], np.int32)


def backend_utilities() -> Any:
    """Return the module. Raises ``EnvironmentProblem`` outside of a server."""
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        raise EnvironmentProblem(
            f"there is no {MODULE} here", why=str(error), fix="let Triton Inference Server load the model"
        ) from None


def require_whole_tensors(utilities: Any) -> None:
    """Raise ``EnvironmentProblem`` where the backend does not give back the numbers that it was given.

    A backend that was compiled for NumPy 1 reads arrays of NumPy 2 at wrong places, and nothing fails.
    """
    tensor = utilities.Tensor("probe", _PROBE)
    returned = utilities.Tensor.from_dlpack("probe", tensor.to_dlpack()).as_numpy()
    if returned.shape != _PROBE.shape or not np.array_equal(returned, _PROBE):
        raise EnvironmentProblem(
            f"Triton's Python backend does not work with NumPy {np.__version__}",
            why=f"it gave {returned.tolist()} back for {_PROBE.tolist()}: it was compiled for another NumPy",
            fix="`pip install 'numpy<2'` for the Python that it runs, or use a newer server",
        )


def error_of(utilities: Any, error: Exception) -> Any:
    """Return the ``TritonError`` that says ``error`` to a client: its request is wrong, or the server cannot."""
    if not isinstance(error, PeagleError):
        return utilities.TritonError("a fault of the server; its log has more", utilities.TritonError.INTERNAL)
    is_theirs = isinstance(error, UsageError) and not isinstance(error, EngineClosed)
    code = utilities.TritonError.INVALID_ARG if is_theirs else utilities.TritonError.UNAVAILABLE
    return utilities.TritonError(error.in_a_line, code)
