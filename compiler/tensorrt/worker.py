"""The building process: ``python -m peagle.compiler.tensorrt.worker PLAN SEVERITY``, with a ``PlanRequest`` on stdin.

TensorRT can abort, run out of memory or corrupt its memory; in a separate process, that ends only one plan. The process
ends with its parent: when standard input closes, it removes its output and exits.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from ...engines.folder.records import PlanRecord
from ...plugins.errors import BuildError, EnvironmentProblem, PeagleError
from ...plugins.tensorrt import import_tensorrt, register
from ...plugins.tensorrt.products import PRODUCTS
from ..hardware.gpus import require_targets
from ..hardware.machine import inspect_machine
from ..store.atomic_files import writing
from .builder_config import configure, load_timings, save_timings
from .callbacks import Log, logger, monitor, writer
from .inspector import Inspected, inspected
from .layer_information import layers_beside, layers_of_programs
from .parse_network import Parsed, cast_mismatched_types, parse, plugin_problem, require_layers
from .plan_products import of_network, with_built_types
from .plan_programs import read_programs
from .preflight import Survey, survey
from .worker_protocol import SILENT, STEPS, Channel, PlanFacts, PlanRequest


def main(out: Path, severity: int = SILENT) -> int:
    """Build one plan into ``out`` and report the result; the exit status is 0 on success.

    Lines of TensorRT's log up to ``severity`` are forwarded.
    """
    channel = Channel.take_stdout(severity)
    request = PlanRequest.from_json(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, args=(sys.stdin, out), daemon=True).start()
    try:
        return _report(request, out, channel)
    except BrokenPipeError:  # the parent is gone
        _remove(out)
        return 1


def _report(request: PlanRequest, out: Path, channel: Channel) -> int:
    try:
        channel.facts(build(request, out, channel))
    except Exception as error:
        known = error if isinstance(error, PeagleError) else _unexpected_error(request, error)
        channel.error(known)
        return known.exit_code
    return 0


def build(request: PlanRequest, out: Path, channel: Channel) -> PlanFacts:
    """Check, parse, build and write. Raises ``UsageError``, ``EnvironmentProblem`` or ``BuildError``."""
    started = time.perf_counter()
    product = PRODUCTS[request.product]
    require_targets(product, request.gpus, () if product.builds_ahead else inspect_machine().with_known_gpus().sms)
    surveyed = survey(request.graph, request.gpus, request.profiles, request.record)
    trt = import_tensorrt.load(request.product)
    _require_version(trt, request)
    register.register(trt)
    log = Log()
    log_to = logger(trt, log, channel.log)
    builder = _builder(trt, log_to, log)
    parsed = parse(trt, builder, log_to, log, surveyed)
    notes = cast_mismatched_types(request.product, parsed, request.graph)
    require_layers(parsed.layers, request.layers)
    products = of_network(trt, parsed.network)
    config = configure(trt, builder, surveyed, request, log)
    notes += load_timings(request, config)
    progress = monitor(trt, channel.done, STEPS)
    config.progress_monitor = progress
    size = _write(trt, builder, parsed, config, out, surveyed, log)
    notes += save_timings(request, config)
    found = Inspected([]) if product.builds_ahead else inspected(trt, log_to, out)
    if found.programs:
        products, layers = with_built_types(products, found.programs, "inspector"), found.text
    else:
        programs, count = read_programs(out), len(request.profiles)
        products = with_built_types(products, programs, "plan", count)
        layers = layers_of_programs(programs, count, [tensor.name for tensor in parsed.tensors])
    if layers:
        layers_beside(out).write_text(layers)
    return PlanFacts(
        plan=PlanRecord(request.profiles, parsed.layers, surveyed.plugins, parsed.tensors, request.tuned_on),
        size=size,
        seconds=time.perf_counter() - started,
        peak_rss_bytes=_peak_rss_bytes(),
        versions={request.product: str(trt.__version__)} | ({} if request.record else {"onnx": version("onnx")}),
        warnings=(*notes, *found.notes, *log.warnings),
        products=products,
    )


def _unexpected_error(request: PlanRequest, error: Exception) -> BuildError:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return BuildError(
        f"{request.product} failed while building the {request.name} plan",
        why=f"{type(error).__name__} in {frame.name}: {' '.join(str(error).split())}",
        fix="report this message together with the versions from `peagle-compile doctor`",
    )


def _builder(trt: Any, log_to: Any, log: Log) -> Any:
    try:
        return trt.Builder(log_to)
    except Exception as error:  # without a driver, the full TensorRT has no builder, and raises its own exceptions
        raise EnvironmentProblem(
            "TensorRT cannot build on this machine",
            why=log.last() or str(error),
            fix="run `peagle-compile doctor` to check the driver and GPUs; --backend tensorrt-rtx needs neither",
        ) from None


def _write(trt: Any, builder: Any, parsed: Parsed, config: Any, out: Path, surveyed: Survey, log: Log) -> int:
    with writing(out.parent, surveyed.graph.weight_bytes), out.open("wb") as file:
        stream = writer(trt, file)
        built = builder.build_serialized_network_to_stream(parsed.network, config, stream)
        if stream.failure:
            raise stream.failure
        file.flush()
        size = file.tell()
    if not built or not size:
        raise BuildError(
            f"TensorRT could not build {surveyed.graph.path}",
            why="; ".join(filter(None, [plugin_problem(), log.last()])) or "TensorRT gave no reason",
            fix=suggested_fixes(surveyed),
        )
    return size


def suggested_fixes(surveyed: Survey) -> str:
    """Return what may help if TensorRT does not build a graph."""
    usual = "check the versions with `peagle-compile doctor`, or use --backend onnxruntime"
    if not surveyed.layers["MOE"]:
        return usual
    return (
        "if the reason is TensorRT's layer for routed experts, build or export again with --experts layer-one-scale, "
        f"which gives all experts of a layer one FP8 scale, or with --experts dense; otherwise, {usual}"
    )


def _require_version(trt: Any, request: PlanRequest) -> None:
    installed = tuple(int(part) for part in str(trt.__version__).split(".")[:2])
    product = PRODUCTS[request.product]
    if installed < product.oldest:
        raise EnvironmentProblem(
            f"{request.product} {trt.__version__} is too old",
            why=f"the graphs use operators that need version {product.since}",
            fix=f"run `pip install --upgrade {request.product}`",
        )


def _peak_rss_bytes() -> int:
    """Return the peak memory of this process alone.

    ``ru_maxrss`` would include the parent's, from before the exec.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _end_with_parent(stdin: TextIO, out: Path) -> None:
    stdin.read()
    _remove(out)
    os._exit(1)


def _remove(out: Path) -> None:
    for path in (out, layers_beside(out)):
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    status = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush()
    os._exit(status)  # skip the destructors of a library without a GPU
