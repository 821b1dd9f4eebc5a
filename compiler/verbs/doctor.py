"""``peagle-compile doctor``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...plugins.cpu import SWITCH, is_off
from ...plugins.errors import EnvironmentProblem, UsageError
from ...plugins.optional_packages import install, require
from ..console.printing import columns, emit, interruptible, size
from ..request.request import CompileRequest
from ..request.verb_options import BUILD
from .flags.completion import backend_names, gpu_names, model_names, one_of, recipe_names
from .flags.shared_flags import Json

if TYPE_CHECKING:
    from ..resources.check import Need
    from ..resources.readiness import Readiness
    from .diagnosis import Ability, Cuda, Diagnosis
    from .precision_support import PrecisionSupport


@interruptible("nothing was changed")
def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            help="Check whether this model can be built here: disk, memory and missing packages.",
            show_default=False,
            autocompletion=one_of(model_names),
        ),
    ] = None,
    draft: Annotated[
        str | None, typer.Option(help="With --model: head or draft method, as in `build`.", show_default=False)
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="With --model: precision of the build.", show_default=False, autocompletion=one_of(recipe_names)
        ),
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            help="With --model: backend of the build.", show_default=False, autocompletion=one_of(backend_names)
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            help="With --model: GPU of the build, for example b200.",
            show_default=False,
            autocompletion=one_of(gpu_names),
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="With --model: engine folder that the build would write.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what this machine can build and run, or, with --model, check whether it can build the given model.

    The exit code is 3 if no backend can run engines here or, with --model, if something is missing for the build.

    Example: peagle-compile doctor --model qwen3-coder-30b --precision fp8 --gpu b200
    """
    options = {"draft": draft, "precision": precision, "backend": backend, "gpus": gpu, "out": out}
    if model is not None:
        _doctor_of(BUILD.request(model=model, **options), as_json=as_json)
        return
    alone = [f"--{name.removesuffix('s')}" for name, value in options.items() if value is not None]
    if alone:
        raise UsageError(f"no effect without --model: {', '.join(alone)}", fix="add --model, such as --model demo")
    from .diagnosis import diagnose

    report = diagnose()
    if as_json:
        emit(report.as_json())
    else:
        rows = [
            ("python", report.python),
            ("system", report.system),
            ("CPU threads", report.cpu_threads),
            ("memory", size(report.memory_bytes)),
            (
                "disk",
                f"{size(report.folder_free_bytes)} free here, {size(report.cache_free_bytes)} free for {report.cache}",
            ),
            *([("cache", f"unusable: {report.cache_problem}")] if report.cache_problem else []),
            ("GPUs", _gpus(report)),
            ("driver", _driver(report.cuda)),
            ("NVRTC", report.cuda.nvrtc or f"no: {report.cuda.nvrtc_problem}"),
            ("nvcc", report.cuda.nvcc or "not found; needed only to package peagle-compile"),
            ("CPU kernels", _cpu_kernels(report.cpu_compiler)),
            ("providers", ", ".join(report.providers) or "none"),
        ]
        rows += [(name, number or "not installed") for name, number in report.packages.items()]
        if report.rtx_link:
            rows.append(("libtensorrt_rtx.so", report.rtx_link))
        for ability in report.abilities:
            rows.append((f"build {ability.backend}", _built(ability)))
            rows.append((f"run {ability.backend}", _answer(ability.cannot_run)))
        typer.echo(columns(rows))
    if not report.healthy:
        raise EnvironmentProblem(
            "no backend can run engines here",
            why="; ".join(ability.cannot_run for ability in report.abilities),
            fix="run `pip install --force-reinstall onnxruntime`",
        )


def _doctor_of(request: CompileRequest, *, as_json: bool) -> None:
    """Print the resources that a build of this request needs. Raises ``EnvironmentProblem`` if something is missing."""
    from ..request.refusals import check_build

    check_build(request)
    require("export", "the dry run")
    from ..resources.readiness import readiness

    report = readiness(request)
    if as_json:
        emit(report.as_json())
    else:
        rows = [("build", f"{report.model} in {report.precision or 'its default precision'}{_for(report)}")]
        rows += [(need.name, _need(need)) for need in report.needs]
        rows += [("GPU", report.verdict)] if report.verdict else []
        rows += [("note", text) for text in report.notes]
        rows.append(("ready", "yes" if report.ready else "no"))
        typer.echo(columns(rows))
    if not report.ready:
        raise EnvironmentProblem(
            f"{report.model} cannot be built here with these options",
            why="; ".join(report.missing),
            fix="; ".join(report.fixes),
        )


def _cpu_kernels(compiler: str) -> str:
    if is_off():
        return f"disabled by {SWITCH}: builds do not compile them, and engines do not use them"
    if compiler:
        return f"available, compiled by {compiler}"
    return f"not available without a C++ compiler, which makes verification slower; run `{install('cpu')}`"


def _for(report: Readiness) -> str:
    gpus = f" on {', '.join(report.gpus)}" if report.gpus else ""
    return f", for {report.backend}{gpus}" if report.backend else gpus


def _need(need: Need) -> str:
    verdict = "not enough" if need.is_short else "may not be enough" if need.is_tight else "enough"
    before = f", after {size(need.before_bytes)} for earlier steps" if need.before_bytes else ""
    return f"about {size(need.bytes)}{before} of {size(need.free_bytes)} free ({need.where}): {verdict}"


def _gpus(report: Diagnosis) -> str:
    found = "; ".join(f"{gpu.name} (sm_{gpu.sm}, {gpu.memory})" for gpu in report.gpus)
    return found or report.gpu_problem or "none found"


def _driver(cuda: Cuda) -> str:
    newest = f"runs CUDA {cuda.driver_supports} and older" if cuda.driver_supports else ""
    return ", ".join(filter(None, (cuda.driver, newest))) or "none"


def _built(ability: Ability) -> str:
    verdict = _answer(ability.cannot_build, ability.precisions)
    if not ability.cannot_build or ability.cannot_build_exports:
        return verdict
    return f"only from an export made elsewhere, with `build --from`; not from checkpoints: {ability.cannot_build}"


def _answer(unsupported_reason: str, precisions: Sequence[PrecisionSupport] = ()) -> str:
    if unsupported_reason:
        return f"no: {unsupported_reason}"
    return f"yes{': ' if precisions else ''}{_supported(precisions)}"


def _supported(precisions: Sequence[PrecisionSupport]) -> str:
    """List the supported precisions, grouped by GPU, and then the others with the reason."""
    groups: dict[str, list[str]] = {}
    for each in precisions:
        if each.cannot:
            kind = f"not {{}} ({each.cannot})"
        elif each.emulated:
            kind = "{} emulated"
        else:
            kind = f"{{}} for {', '.join(each.gpus)}" if each.gpus else "{}"
        groups.setdefault(kind, []).append(each.precision)
    return "; ".join(kind.format(", ".join(names)) for kind, names in sorted(groups.items(), key=_refusals_last))


def _refusals_last(group: tuple[str, list[str]]) -> bool:
    return group[0].startswith("not ")
