"""A session whose passes ONNX Runtime profiles, node by node."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ....plugins.errors import EnvironmentProblem
from ....plugins.temporary_folder import temporary_folder
from ..profiling import Profiler

_RUN, _SUFFIX = "model_run", "_kernel_time"  # names of events
_PREFIX = "trace"


class ProfiledSession:
    """Wraps a session, and records the phase and the seconds of each run."""

    def __init__(self, open_with: Callable[[str], Any], component: str, profiler: Profiler) -> None:
        """Open a session; ``open_with`` takes the prefix of the file that ONNX Runtime writes its events to."""
        self._folder = tempfile.TemporaryDirectory(prefix="peagle-profile-", dir=temporary_folder())
        self._session = open_with(str(Path(self._folder.name) / _PREFIX))
        self._half, self._profiler = component, profiler
        self._runs: list[tuple[str | None, float]] = []

    def get_inputs(self) -> Any:
        """Return the session's inputs."""
        return self._session.get_inputs()

    def get_outputs(self) -> Any:
        """Return the session's outputs."""
        return self._session.get_outputs()

    def io_binding(self) -> Any:
        """Return a binding of the session."""
        return self._session.io_binding()

    def run_with_iobinding(self, binding: Any) -> None:
        """Run the session and record it."""
        started = time.perf_counter()
        self._session.run_with_iobinding(binding)
        self._runs.append((self._profiler.current, time.perf_counter() - started))

    def end(self) -> None:
        """Pass all recorded passes to the profiler.

        Events beyond ONNX Runtime's limit are missing, and so are their passes. Raises ``EnvironmentProblem`` if it
        could not write them all.
        """
        trace = Path(self._session.end_profiling())
        try:
            events = json.loads(trace.read_bytes())
        except (OSError, ValueError) as error:  # ONNX Runtime ignores that a disk is full
            raise EnvironmentProblem(
                f"the times that ONNX Runtime measured for the {self._half} are incomplete",
                why=f"{trace} cannot be read: {error}",
                fix="free some space on the disk of this file, or set TMPDIR to a folder on another disk",
            ) from error
        finally:
            self._folder.cleanup()
        for (phase, seconds), layers in zip(self._runs, _passes(events), strict=False):
            self._profiler.add(phase, self._half, seconds, layers)


def _passes(events: list[dict[str, Any]]) -> Iterator[list[tuple[str, str, float]]]:
    """Yield the name, operator and milliseconds of the nodes of each run; the event of a run follows its nodes."""
    layers: list[tuple[str, str, float]] = []
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            layers.append((event["name"].removesuffix(_SUFFIX), event["args"]["op_name"], event["dur"] / 1000))
        elif event.get("name") == _RUN:
            yield layers
            layers = []
