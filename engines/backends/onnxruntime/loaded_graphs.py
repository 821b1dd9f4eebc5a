"""ONNX Runtime sessions: one graph each, loaded once, run over arrays that are bound by address."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....plugins.errors import EnvironmentProblem
from ...folder.manifest import Manifest

SMALL_TARGET = 64 * 2**20  # bytes of weights as stored: a pass takes as long as they do, within a factor of two


def open_session(path: Path, threads: int) -> Any:
    """Load one graph on the CPU, with ``threads`` threads; 0 is one for each physical core."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    # Two sessions take turns: the threads of the one that waits would spin on the cores that the other needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Types that no kernel multiplies in (FP8) are computed as the graph spells them: fusions meant for integers fail on
    # them. Weights that a node scales are folded at load, so they take as much memory as wide ones.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the binding raises its own family of exceptions
        raise EnvironmentProblem(
            f"ONNX Runtime {onnxruntime.__version__} cannot load {path}",
            why=str(error).splitlines()[0],
            fix="rebuild the engine with the installed version (`peagle-compile build`)",
        ) from error


def default_threads(manifest: Manifest) -> int:
    """Return 1 while a pass is shorter than handing out its pieces, else 0: every physical core."""
    folder = Path(manifest.target.file).parent
    weights = sum(entry.size for name, entry in manifest.files.items() if Path(name).parent == folder)
    return 1 if weights < SMALL_TARGET else 0


def bind(session: Any, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Any:
    """Bind arrays by address: a later run reads and writes these very arrays."""
    from onnxruntime import OrtValue

    binding = session.io_binding()
    for name, array in inputs.items():
        binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
    for name, array in outputs.items():
        binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))
    return binding
