"""The time of one target pass over some columns with a given context in the cache: the session alone, batch 1."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from peagle.engines.backends.onnxruntime.kernels import library_of
from peagle.engines.backends.onnxruntime.loaded_graphs import open_session, tensors_of
from peagle.engines.folder.manifest import Manifest


class Passes:
    """One graph of an engine, run on zeros; all outputs but the logits are bound.

    Its session has the runtime's options; ``profile`` is the file name prefix of ONNX Runtime's profile.
    """

    def __init__(self, engine: Path, half: str = "target", threads: int = 0, profile: Path | None = None) -> None:
        manifest = Manifest.read(engine)
        part = manifest.parts[half]
        library, prefix = library_of(engine, manifest), str(profile) if profile else ""
        self._session = open_session(engine / part.file, threads, library, prefix)
        self._given, _ = tensors_of(self._session)
        self._bound: dict[tuple[int, int, int], Any] = {}
        self._stored = sum(entry.size for name, entry in manifest.files.items() if name == f"{part.file}.data")
        self._most = manifest.shapes.max_seq_len
        self._vocabulary = manifest.shapes.vocab_size

    def bytes_read(self, context: int) -> int:
        """Return the least bytes read by a one-column pass: all stored weights, and the context's keys and values."""
        sizes = [
            int(np.prod([1 if dim is None else dim for dim in value.dims])) * np.dtype(value.dtype).itemsize
            for name, value in self._given.items()
            if "_cache." in name
        ]
        return int(self._stored + sum(sizes) * context // self._most)

    def end_profiling(self) -> Path:
        """Write the profile and return its path."""
        return Path(self._session.end_profiling())

    def pass_over(self, columns: int, context: int, emitted: int | None = None) -> Callable[[], None]:
        """Return a function that runs the graph once over this many columns after ``context`` tokens."""
        binding = self._binding(columns, context, columns if emitted is None else emitted)
        return lambda: self._session.run_with_iobinding(binding)

    def over_random_tokens(self, columns: int, context: int) -> Callable[[], None]:
        """Return a function that runs the target over new random tokens each time, so that experts differ."""
        binding = self._binding(columns, context, columns)
        random, shape = np.random.default_rng(columns), (1, columns)

        def run() -> None:
            ids = random.integers(0, self._vocabulary, shape, np.int64)
            binding.bind_ortvalue_input("input_ids", onnxruntime.OrtValue.ortvalue_from_numpy(ids))
            self._session.run_with_iobinding(binding)

        return run

    def _binding(self, columns: int, context: int, emitted: int) -> Any:
        key = columns, context, emitted
        if key in self._bound:
            return self._bound[key]
        dims = {"B": 1, "S": columns, "E": emitted}
        arrays: dict[str, Any] = {  # zeros that are written: all pages of a new np.zeros are one, always cached
            i.name: np.full([d if isinstance(d, int) else dims[d] for d in i.shape], 0, self._given[i.name].dtype)
            for i in self._session.get_inputs()
        }
        arrays["start"][:], arrays["window_len"][:], arrays["draft_len"][:] = context, columns, columns - 1
        if "num_tokens" in arrays:
            arrays["num_tokens"][:] = columns
        binding = self._session.io_binding()
        for name, array in arrays.items():
            binding.bind_ortvalue_input(name, onnxruntime.OrtValue.ortvalue_from_numpy(array))
        for output in self._session.get_outputs():
            if "_cache." in output.name:
                cache = onnxruntime.OrtValue.ortvalue_from_numpy(arrays[output.name.removesuffix(".out")])
                binding.bind_ortvalue_output(output.name, cache)
            elif not output.name.endswith("logits"):
                binding.bind_output(output.name)
        self._bound[key] = binding
        return binding


def milliseconds(run: Callable[[], None], repeats: int) -> float:
    """Return the median time of some runs, after one uncounted run."""
    run()
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)) * 1e3
