"""ONNX Runtime sessions: one per graph, loaded once, and run over arrays that are bound by address.

All exceptions of ONNX Runtime are converted to the project's errors here.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ....plugins.errors import EnvironmentProblem
from ....plugins.graph_contract import CANDIDATES, HIDDEN
from ...folder.checks import REBUILD
from ...folder.graph_tensors import FoundTensor, Tensors
from ...folder.manifest import Manifest
from .weights import Weights

THREAD_BYTES = 4 * 2**20  # stored weights per thread; a core reads them in about half a millisecond
LOGITS = "logits"  # a target output that is always computed, and returned only if bound
_TYPES = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int8)": "int8",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(bool)": "bool",
}


@dataclass(frozen=True)
class Refusals:
    """Converts ONNX Runtime's exceptions and ``MemoryError`` to an ``EnvironmentProblem`` with the message ``what``.

    The binding raises its own exception types, which have no common base, and built-in ones.
    """

    what: str
    fix: str

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception):
            return
        lines, fix = str(error).splitlines() or [type(error).__name__], self.fix
        if isinstance(error, MemoryError) or "allocat" in lines[0]:
            fix = "load with a smaller max_batch_size, rebuild with a smaller --max-seq-len, or free memory"
        raise EnvironmentProblem(self.what, why=lines[0], fix=fix) from error


_OF_A_RUN = Refusals("ONNX Runtime failed to run a graph of this engine", REBUILD)


def open_session(
    path: Path, threads: int, library: Path | None = None, profile_to: str = "", weights: Weights | None = None
) -> Any:
    """Load one graph on the CPU with ``threads`` threads; 0 means one per physical core.

    ``library`` contains kernels for the graph's custom ops; without it, their function bodies are executed.
    ``profile_to`` is the prefix of the file that ONNX Runtime writes the times of nodes to. ``weights`` keeps files
    that other graphs read too; it is used with a ``library`` only, as ONNX Runtime's own kernels copy their weights.
    """
    import onnxruntime

    _require_utf8(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.inter_op_num_threads = 1
    options.intra_op_num_threads = threads
    if profile_to:
        options.enable_profiling, options.profile_file_prefix = True, _as_utf8(profile_to)
    for name, value in waiting(library).items():
        options.add_session_config_entry(name, value)
    # Types without matmul kernels (FP8) must be computed as the graph specifies; QDQ fusions for integers fail on them.
    # Weights behind a scaling node are folded at load, so they take as much memory as unquantized ones.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    arrays = {} if library is None else (weights or Weights()).of(path)
    with Refusals(
        f"ONNX Runtime {onnxruntime.__version__} cannot load {path}",
        "rebuild the engine with the installed version (`peagle-compile build`)",
    ):
        if library is not None:
            options.register_custom_ops_library(_as_utf8(library))
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        for name, value in values.items():
            options.add_initializer(name, value)
        session: Any = onnxruntime.InferenceSession(_as_utf8(path), options, providers=["CPUExecutionProvider"])
        session.weights = arrays, values  # ONNX Runtime reads them as long as it runs, but does not own them
        return session


def _require_utf8(path: Path) -> None:
    """Raise ``EnvironmentProblem`` for a path that ONNX Runtime, which expects UTF-8, cannot open."""
    try:
        _as_utf8(path)
    except UnicodeDecodeError as error:
        raise EnvironmentProblem(
            f"ONNX Runtime cannot open {path}", why=f"the path is not UTF-8: {error.reason}", fix="rename the folder"
        ) from None


def _as_utf8(path: Path | str) -> str:
    """Return a path as ONNX Runtime takes it: decoded as UTF-8, whatever the locale."""
    return os.fsencode(path).decode()


def waiting(library: Path | None) -> dict[str, str]:
    """Return session settings for how threads wait for work.

    With the project's kernels, a pass has few nodes, in which threads wait for each other; threads sleep before each
    node. Without them there are hundreds of nodes, and threads spin until the run ends. After a run they always sleep,
    because the next session needs the cores.
    """
    if library is not None:
        return {"session.intra_op.allow_spinning": "0"}
    return {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"}


def tensors_of(session: Any) -> tuple[Tensors, Tensors]:
    """Return the inputs and outputs of a session."""
    return _found(session.get_inputs()), _found(session.get_outputs())


def hidden_size(drafter: Any) -> int:
    """Return the size of an autoregressive drafter's hidden state input; 0 if it has none."""
    tensors = tensors_of(drafter)[0] if drafter else {}
    return (tensors[HIDDEN].dims[-1] or 0) if HIDDEN in tensors else 0


def candidates_of(drafter: Any) -> int:
    """Return the number of candidate ids that a drafter outputs per position; 0 if it outputs only one."""
    tensors = tensors_of(drafter)[1] if drafter else {}
    return (tensors[CANDIDATES[0]].dims[-1] or 0) if CANDIDATES[0] in tensors else 0


def _found(values: Any) -> Tensors:
    return {
        value.name: FoundTensor(
            _TYPES.get(value.type, value.type), tuple(dim if isinstance(dim, int) else None for dim in value.shape)
        )
        for value in values
    }


def default_threads(manifest: Manifest) -> int:
    """Return one thread per 4 MiB of the target's weights, or 0 (all physical cores) if that is less."""
    graph = manifest.target.file
    weights = sum(entry.size for name, entry in manifest.files.items() if name.startswith(graph))
    threads = max(1, weights // THREAD_BYTES)
    return threads if threads == 1 or 2 * threads < (os.cpu_count() or 1) else 0  # two CPUs may share one core


def bind(session: Any, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> Any:
    """Bind arrays by address: later runs read and write these arrays."""
    from onnxruntime import OrtValue

    with Refusals("ONNX Runtime rejected the buffers of a graph", REBUILD):
        binding = session.io_binding()
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(array))
        for name, array in outputs.items():
            binding.bind_ortvalue_output(name, OrtValue.ortvalue_from_numpy(array))
    return binding


def run(session: Any, binding: Any) -> None:
    """Run a graph once over its bound arrays."""
    with _OF_A_RUN:
        session.run_with_iobinding(binding)


def run_for_logits(session: Any, binding: Any) -> np.ndarray:
    """Run the target once over its bound arrays and return the logits, f32 [B,E,V], the last output of ``binding``.

    Their memory is freed with the array: the bindings of all shapes together would hold gigabytes.
    """
    run(session, binding)
    logits = np.asarray(binding.get_outputs()[-1].numpy())
    binding.bind_output(LOGITS)
    return logits
