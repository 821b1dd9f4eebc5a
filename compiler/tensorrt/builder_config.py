"""TensorRT's build settings: GPUs, profiles, limits, and the timing cache."""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from typing import Any

from ...engines.folder.records import Profile
from ...plugins.errors import REPORT, BuildError, EnvironmentProblem
from ...plugins.tensorrt.products import PRODUCTS
from ..hardware.gpus import sm_number
from .callbacks import Log
from .lowered_graph import Value
from .node_rules import dim_at, profile_sizes
from .preflight import Survey
from .worker_protocol import PlanRequest


def configure(trt: Any, builder: Any, survey: Survey, request: PlanRequest, log: Log) -> Any:
    """Configure a builder for ``request``.

    Raises ``EnvironmentProblem`` if this TensorRT lacks a feature, ``BuildError`` if it refuses a profile.
    """
    config, product = builder.create_builder_config(), PRODUCTS[request.product]
    if product.builds_ahead:
        _set_targets(trt, config, request)
    if product.needs_user_allocation:
        config.set_flag(_offered(trt.BuilderFlag, "REQUIRE_USER_ALLOCATION", "plans that a CUDA graph can run"))
    for profile in request.profiles:
        if config.add_optimization_profile(_profile(builder, survey, profile)) < 0:
            raise BuildError(
                f"TensorRT refuses the profile {profile.name!r} of {survey.graph.path}",
                why=log.last() or "TensorRT gave no reason",
                fix=REPORT,
            )
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    if request.workspace_bytes is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, request.workspace_bytes)
    if request.optimization_level is not None:
        config.builder_optimization_level = request.optimization_level
    if survey.aliases:
        feature = _offered(trt.PreviewFeature, "ALIASED_PLUGIN_IO_10_03", "plugins that write in place")
        config.set_preview_feature(feature, True)
    return config


def load_timings(request: PlanRequest, config: Any) -> list[str]:
    """Load the timings of earlier builds. Returns warnings; an incompatible cache is not an error.

    A product that builds ahead of time does not use a cache, because it times nothing before an engine is loaded.
    """
    path = request.timing_cache
    if path is None or PRODUCTS[request.product].builds_ahead:
        return []
    content = path.read_bytes() if path.is_file() else b""
    if _set_timings(config, content):
        return []
    _set_timings(config, b"")
    return [f"the timing cache {path} belongs to another TensorRT version or GPU; starting a new one"]


def save_timings(request: PlanRequest, config: Any) -> list[str]:
    """Save this build's timings atomically. Returns warnings."""
    path = request.timing_cache
    if path is None or PRODUCTS[request.product].builds_ahead:
        return []
    cache = config.get_timing_cache()
    if cache is None:  # TensorRT accepted neither the old cache nor a new one
        return [f"the timing cache {path} was not written: TensorRT used none"]
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary.write_bytes(bytes(cache.serialize()))
        temporary.replace(path)
    except OSError as error:  # the plan is done; only the next build takes longer
        with suppress(OSError):
            temporary.unlink()
        return [f"the timing cache {path} could not be written: {error.strerror}"]
    return []


def _set_timings(config: Any, content: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        cache = config.create_timing_cache(content)
        return cache is not None and bool(config.set_timing_cache(cache, ignore_mismatch=False))


def _set_targets(trt: Any, config: Any, request: PlanRequest) -> None:
    names = [f"SM{sm_number(gpu)}" for gpu in request.gpus]
    config.num_compute_capabilities = len(names)
    for index, name in enumerate(names):
        config.set_compute_capability(_offered(trt.ComputeCapability, name, f"code for {name}"), index)


def _offered(kind: Any, name: str, noun: str) -> Any:
    value = getattr(kind, name, None)
    if value is None:
        raise EnvironmentProblem(
            f"the installed TensorRT does not support {noun}",
            why=f"the installed version has no {kind.__name__}.{name}",
            fix="check its version with `peagle-compile doctor`; install a newer one, or build without this feature",
        )
    return value


def _profile(builder: Any, survey: Survey, profile: Profile) -> Any:
    shapes = builder.create_optimization_profile()
    for value in survey.graph.inputs:
        if any(isinstance(dim, str) for dim in value.shape or ()):
            shapes.set_shape(value.name, *(_shape(value, profile, index) for index in range(3)))
    return shapes


def _shape(value: Value, profile: Profile, index: int) -> tuple[int, ...]:
    sizes = profile_sizes(profile, index)
    shape = tuple(dim_at(dim, sizes) for dim in value.shape or ())
    if None in shape:
        raise BuildError(f"input {value.name} has sizes that no profile defines: {value.shape}", fix=REPORT)
    return tuple(dim for dim in shape if dim is not None)
