"""``build_plan``: build a TensorRT plan from a lowered graph, in a separate process."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ...plugins.errors import BuildError
from ...plugins.temporary_folder import temporary_folder
from ...plugins.tensorrt.import_tensorrt import child_environment
from ...plugins.tensorrt.products import PRODUCTS
from ..console import interrupts
from ..console.exit_cleanup import kill_on_exit, remove_on_exit
from ..console.logbook import PACKAGE
from ..console.progress import Advance, Progress
from ..hardware.machine import inspect_machine
from ..store.atomic_files import writing
from .layer_information import layers_beside
from .worker_protocol import STEPS, PlanFacts, PlanRequest, raised

_LOG_LINES = 5  # last lines of a dead process to show
_PATIENCE = 5.0
_LEVELS = (logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)  # by TensorRT's severity
_log = logging.getLogger(__name__)


def build_plan(request: PlanRequest, out: Path, progress: Progress) -> PlanFacts:
    """Build ``request`` into the file ``out``, which appears only when it is complete, with its layers beside it.

    Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``, the last also if TensorRT crashes its process.
    Ctrl-C and SIGTERM end that process and leave nothing behind.
    """
    request.check()
    temporary = out.with_name(f".{out.name}.{os.getpid()}")
    with (
        writing(out.parent, _weight_bytes(request.graph)),
        tempfile.TemporaryFile(prefix="peagle-plan-", dir=temporary_folder()) as log,
    ):
        out.parent.mkdir(parents=True, exist_ok=True)
        with remove_on_exit(temporary), remove_on_exit(layers_beside(temporary)):
            with progress.step(f"build {request.name} plan", STEPS) as advance:
                facts = _run(request, temporary, log, advance)
            interrupts.check()
            if layers_beside(temporary).exists():
                layers_beside(temporary).replace(layers_beside(out))
            temporary.replace(out)
    return facts


def _run(request: PlanRequest, out: Path, log: IO[bytes], advance: Advance) -> PlanFacts:
    reached, facts = 0, None
    with _child(request, out, log) as child:
        _send_request(child, request)
        for message in _messages(child):
            if "done" in message:
                advance(message["done"] - reached)
                reached = message["done"]
            elif "log" in message:
                severity, text = message["log"]
                _log.log(_LEVELS[severity], "%s: %s", request.product, text)
            elif "error" in message:
                raise raised(message["error"])
            else:
                facts = PlanFacts.from_record(message["facts"])
        status = child.wait()
    if facts is None:
        raise _died(request, status, log)
    return facts


@contextmanager
def _child(request: PlanRequest, out: Path, log: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    """Start the building process in its own session, so that Ctrl-C reaches only this process."""
    from . import worker

    command = [sys.executable, "-P", "-m", worker.__name__, str(out), str(_severity())]
    pipe, product = subprocess.PIPE, PRODUCTS[request.product]
    scratch = tempfile.TemporaryDirectory(prefix="peagle-library-", dir=temporary_folder())
    with scratch as private, remove_on_exit(Path(private)):
        environment = child_environment(Path(private)) if product.needs_link else {}
        environment |= {} if product.builds_ahead else _visible_gpu(request)
        child = subprocess.Popen(
            command,
            stdin=pipe,
            stdout=pipe,
            stderr=log,
            text=True,
            start_new_session=True,
            env=os.environ | environment,
        )
        with kill_on_exit(child), _ended(child):
            yield child


def _severity() -> int:
    """Return the least severe TensorRT level that is logged."""
    is_kept = logging.getLogger(PACKAGE).level != logging.NOTSET
    return max((severity for severity, level in enumerate(_LEVELS) if is_kept and _log.isEnabledFor(level)), default=-1)


def _visible_gpu(request: PlanRequest) -> dict[str, str]:
    """Make the target GPU the only one visible to TensorRT, which builds for the first one it sees."""
    gpu = inspect_machine().with_known_gpus().builds_on(request.gpus)
    return {"CUDA_VISIBLE_DEVICES": gpu.uuid} if gpu and gpu.uuid else {}


@contextmanager
def _ended(child: subprocess.Popen[str]) -> Iterator[None]:
    """End the process on exit from the block; it also exits when its input closes."""
    try:
        yield
    finally:
        for stream in (child.stdin, child.stdout):
            if stream:
                with suppress(OSError):  # unread input
                    stream.close()
        try:
            child.wait(_PATIENCE if interrupts.requested_signal() is None else _PATIENCE / 5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _send_request(child: subprocess.Popen[str], request: PlanRequest) -> None:
    try:
        if child.stdin:
            child.stdin.write(request.to_json() + "\n")
            child.stdin.flush()
    except BrokenPipeError:  # it ended at once; its output says why
        pass


def _messages(child: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    for line in child.stdout or ():
        try:
            yield json.loads(line)
        except ValueError:  # a line truncated by a crash
            return


def _died(request: PlanRequest, status: int, log: IO[bytes]) -> BuildError:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    last = "; its last output: " + " / ".join(lines[-_LOG_LINES:]) if lines else ""
    how = f"was killed by {_signal_name(-status)}" if status < 0 else f"exited with status {status}"
    weights = _weight_bytes(request.graph)
    fix = "run the same command again; finished steps are cached"
    if status == -signal.SIGKILL:
        fix = (
            "the machine probably ran out of memory: builds have used 2 to 3 times the size of the weights "
            f"({weights / 1e9:.1f} GB here), and 2.5 GB for 48 small layers; build on a machine with more memory"
        )
    return BuildError(
        f"the process that built the {request.name} plan ended early", why=f"{request.product} {how}{last}", fix=fix
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _weight_bytes(graph: Path) -> int:
    return sum(file.stat().st_size for file in graph.parent.glob(f"{graph.name}*"))
