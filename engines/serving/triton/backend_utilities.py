"""Access to Triton's own Python module, which exists only inside a Python model, and a check of its NumPy support."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from ....plugins.errors import EnvironmentProblem, PeagleError, UsageError
from ...errors import EngineClosed

MODULE = "triton_python_backend_utils"
_PROBE = np.array([1, -2, 1 << 20], np.int32)


def backend_utilities() -> Any:
    """Return the module. Raises ``EnvironmentProblem`` outside a Triton server."""
    try:
        return importlib.import_module(MODULE)
    except ImportError as error:
        raise EnvironmentProblem(
            f"{MODULE} cannot be imported",
            why=str(error),
            fix="run the model in Triton Inference Server, which provides this module",
        ) from None


def require_whole_tensors(utilities: Any) -> None:
    """Raise ``EnvironmentProblem`` if a tensor does not survive a round trip through the backend.

    A backend compiled for NumPy 1 reads the wrong addresses of NumPy 2 arrays without raising an error.
    """
    tensor = utilities.Tensor("probe", _PROBE)
    returned = utilities.Tensor.from_dlpack("probe", tensor.to_dlpack()).as_numpy()
    if returned.shape != _PROBE.shape or not np.array_equal(returned, _PROBE):
        raise EnvironmentProblem(
            f"Triton's Python backend does not work with NumPy {np.__version__}",
            why=f"the backend returned {returned.tolist()} for {_PROBE.tolist()}, so this backend was compiled for "
            f"another NumPy version",
            fix="run `pip install 'numpy<2'` in the backend's Python, or use a newer Triton release",
        )


def error_of(utilities: Any, error: Exception) -> Any:
    """Return a ``TritonError`` for ``error``, with a code for an invalid request or a server error."""
    if not isinstance(error, PeagleError):
        return utilities.TritonError("internal error; see the server log", utilities.TritonError.INTERNAL)
    is_usage_error = isinstance(error, UsageError) and not isinstance(error, EngineClosed)
    code = utilities.TritonError.INVALID_ARG if is_usage_error else utilities.TritonError.UNAVAILABLE
    return utilities.TritonError(error.one_line, code)
