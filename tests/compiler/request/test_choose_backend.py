"""The choice of a backend, for machines of every kind."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib.util import find_spec
from itertools import product
from pathlib import Path

import pytest

from peagle.compiler.hardware.gpus import supports
from peagle.compiler.hardware.machine import LocalGpu, Machine, inspect_machine
from peagle.compiler.precision.recipes import RECIPES
from peagle.compiler.request.choose_backend import BackendChoice, choose_backend, product_for
from peagle.compiler.request.request import BACKENDS
from peagle.plugins.errors import EnvironmentProblem, PeagleError, UsageError
from peagle.plugins.optional_packages import install
from tests.fixtures.commands import Run

BOTH = {"tensorrt": "11.4.0", "tensorrt-rtx": "1.7.1"}
LAPTOP = Machine()
CPU = Machine(products={"tensorrt-rtx": "1.7.1"})
B200 = Machine((LocalGpu("NVIDIA B200", 100),), BOTH)
B200_BARE = Machine((LocalGpu("NVIDIA B200", 100),))
RTX = Machine((LocalGpu("NVIDIA GeForce RTX 5090", 120),), BOTH)
RTX_BARE = Machine((LocalGpu("NVIDIA GeForce RTX 5090", 120),), {"tensorrt": "11.4.0"})
OLD = Machine((LocalGpu("Tesla T4", 75),))
H200 = Machine((LocalGpu("NVIDIA H200", 90),) * 2, BOTH)
_OFFER = re.compile(r"--backend (onnxruntime|tensorrt-rtx)((?: --\w+ \w+(?:,\w+)*)*)")
MACHINES = {"laptop": LAPTOP, "cpu": CPU, "b200": B200, "b200 bare": B200_BARE, "rtx": RTX, "h200": H200}
MACHINES |= {"rtx bare": RTX_BARE, "old": OLD}


@pytest.mark.parametrize(
    ("machine", "gpus", "name"),
    [
        (LAPTOP, ("sm_120",), "tensorrt-rtx"),
        (LAPTOP, ("sm_89", "sm_120"), "tensorrt-rtx"),
        (LAPTOP, ("sm_100",), "tensorrt"),
        (LAPTOP, ("sm_100", "sm_120"), "tensorrt"),
        (LAPTOP, (), "tensorrt"),
        (RTX, ("sm_120",), "tensorrt"),
        (RTX, ("sm_89",), "tensorrt-rtx"),
        (B200, ("sm_120",), "tensorrt-rtx"),
        (B200, (), "tensorrt"),
    ],
)
def test_the_product_is_tensorrt_rtx_where_tensorrt_cannot_build(
    machine: Machine, gpus: tuple[str, ...], name: str
) -> None:
    assert product_for(gpus, machine).name == name


@pytest.mark.parametrize(
    ("machine", "requested", "precision", "gpus", "backend", "built_for"),
    [
        (LAPTOP, None, None, (), "onnxruntime", ()),
        (CPU, None, None, (), "onnxruntime", ()),
        (B200, None, None, (), "tensorrt", ("sm_100",)),
        (H200, None, None, (), "tensorrt", ("sm_90",)),
        (B200, None, "fp8", (), "tensorrt", ("sm_100",)),
        (B200, None, "bf16", ("b200",), "tensorrt", ("sm_100",)),
        (B200, None, "fp32", (), "onnxruntime", ()),
        (LAPTOP, None, "int8", (), "onnxruntime", ()),
        (LAPTOP, None, "fp8", (), "onnxruntime", ()),
        (CPU, None, "mxfp8", (), "onnxruntime", ()),
        (OLD, None, "int4", (), "onnxruntime", ()),
        (B200, None, "int4", (), "tensorrt", ("sm_100",)),
        (CPU, None, "int4", ("sm_120",), "tensorrt-rtx", ("sm_120",)),
        (B200_BARE, None, "fp32", (), "onnxruntime", ()),
        (B200_BARE, "onnxruntime", None, (), "onnxruntime", ()),
        (OLD, None, None, (), "onnxruntime", ()),
        (B200, "onnxruntime", None, (), "onnxruntime", ()),
        (B200, "tensorrt-rtx", "fp16", ("sm_120",), "tensorrt-rtx", ("sm_120",)),
        (CPU, "tensorrt-rtx", None, ("rtx-4090", "sm_120"), "tensorrt-rtx", ("sm_89", "sm_120")),
        (CPU, None, None, ("sm_120",), "tensorrt-rtx", ("sm_120",)),
        (CPU, None, "fp16", ("sm_120",), "tensorrt-rtx", ("sm_120",)),
        (RTX, "tensorrt-rtx", None, (), "tensorrt-rtx", ("sm_120",)),
        (RTX, "tensorrt", "fp16", (), "tensorrt", ("sm_120",)),
    ],
)
def test_backend_matches_request_and_machine(
    machine: Machine,
    requested: str | None,
    precision: str | None,
    gpus: tuple[str, ...],
    backend: str,
    built_for: tuple[str, ...],
) -> None:
    choice = choose_backend(requested, precision, gpus, machine)
    assert (choice.backend, choice.gpus) == (backend, built_for)
    assert choice.why


ALTERNATIVES = (
    "run the same command on a host that meets these requirements",
    "`peagle-compile build --from DIR` on that host",
    "--backend tensorrt-rtx --gpu sm_120",
    "--backend onnxruntime",
)


@pytest.mark.parametrize(
    ("machine", "requested", "precision", "gpus", "words"),
    [
        (LAPTOP, None, "fp16", (), ("no NVIDIA GPU", "TensorRT is not installed", *ALTERNATIVES)),
        (CPU, "tensorrt", "fp8", (), ("no NVIDIA GPU", *ALTERNATIVES, "onnxruntime, which emulates fp8, to measure")),
        (CPU, "tensorrt", "mxfp8", (), ("--gpu sm_120 --precision fp8", "onnxruntime, which emulates mxfp8, to")),
        (CPU, None, "fp16", (), ("use --backend onnxruntime --precision fp32 to build in fp32",)),
        (H200, None, "int8", ("b200",), ("use --backend onnxruntime without --gpu to build in int8",)),
        (CPU, "tensorrt", "fp16", (), ("no NVIDIA GPU", *ALTERNATIVES)),
        (B200_BARE, "tensorrt", None, (), (f"TensorRT is not installed ({install('tensorrt')})", *ALTERNATIVES)),
        (RTX, None, "fp8", (), ("RTX 5090 (sm_120) is not a data center GPU", *ALTERNATIVES)),
        (H200, None, "fp8", ("b200",), ("NVIDIA H200 (sm_90), not sm_100", *ALTERNATIVES)),
        (
            H200,
            "tensorrt",
            "fp16",
            ("b200",),
            ("sm_100", "this machine has sm_90", "run the same command on a host with"),
        ),
        (
            CPU,
            "tensorrt",
            "fp16",
            ("b200",),
            ("export --model MODEL --precision fp16 --for tensorrt --gpu sm_100 --out DIR`",),
        ),
        (CPU, "tensorrt", None, (), ("export --model MODEL --for tensorrt --gpu b200 --out DIR`",)),
        (B200_BARE, "tensorrt", None, (), ("export --model MODEL --for tensorrt --gpu sm_100 --out DIR`",)),
        (LAPTOP, "tensorrt-rtx", None, ("sm_120",), ("not installed", install("rtx"))),
    ],
)
def test_missing_backend_names_an_alternative(
    machine: Machine, requested: str | None, precision: str | None, gpus: tuple[str, ...], words: tuple[str, ...]
) -> None:
    with pytest.raises(EnvironmentProblem) as caught:
        choose_backend(requested, precision, gpus, machine)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("requested", "precision", "gpus", "word"),
    [
        ("tensorrt", "fp32", (), "fp16"),
        ("tensorrt-rtx", "fp32", ("sm_120",), "fp16"),
        ("tensorrt-rtx", "fp16", (), "--gpu sm_120"),
        ("tensorrt-rtx", "fp16", ("b200",), "--backend tensorrt"),
        ("onnxruntime", "fp16", (), "fp32"),
        ("onnxruntime", "int4", ("sm_120",), "ONNX Runtime in int4"),
        ("onnxruntime", "int4", ("sm_120",), "--backend tensorrt-rtx --precision int4"),
        ("onnxruntime", "mxfp8", ("sm_120",), "--backend tensorrt-rtx --precision fp8"),
        ("onnxruntime", "mxfp8", ("b200",), "--backend tensorrt --precision mxfp8 on a host with this GPU"),
        ("onnxruntime", None, ("sm_120",), "--gpu"),
        (None, None, ("b2000",), "b200"),
        ("tensort", None, (), "tensorrt"),
    ],
)
def test_request_impossible_on_any_machine_is_a_usage_error(
    requested: str | None, precision: str | None, gpus: tuple[str, ...], word: str
) -> None:
    with pytest.raises(UsageError) as caught:
        choose_backend(requested, precision, gpus, CPU)
    assert word in str(caught.value)


@pytest.mark.parametrize("precision", [None, "int8", "int4"])
@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (B200_BARE, ("NVIDIA B200, sm_100", "tensorrt is not installed", install("tensorrt"))),
        (RTX_BARE, ("RTX 5090, sm_120", "tensorrt-rtx is not installed", install("rtx"), "--backend tensorrt-rtx")),
        (RTX, ("RTX 5090, sm_120", "for the GPU, use --backend tensorrt-rtx")),
    ],
)
def test_unused_gpu_is_always_reported(machine: Machine, words: tuple[str, ...], precision: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        choose_backend(None, precision, (), machine)
    assert all(word in str(caught.value) for word in (*words, "for the CPU, use --backend onnxruntime"))


@pytest.mark.parametrize("verb", [("build",), ("build", "--dry-run"), ("doctor",)])
def test_commands_require_an_ambiguous_backend_to_be_named(
    cli: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, verb: tuple[str, ...]
) -> None:
    monkeypatch.setattr("peagle.compiler.request.build_platform.inspect_machine", lambda: B200_BARE)
    done = cli(*verb, "--model", "demo", "--out", tmp_path / "engine")
    assert done.code == 2
    assert "this machine has a GPU (NVIDIA B200, sm_100), and no --backend was given" in done.err
    assert not (tmp_path / "engine").exists()


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_every_combination_is_chosen_or_refused_with_a_cure(machine: Machine) -> None:
    refusals = []
    for requested in (None, *BACKENDS):
        for precision in (None, "fp32", "fp16", "bf16", "fp8"):
            for gpus in ((), ("b200",), ("sm_120",), ("sm_89", "sm_120")):
                try:
                    choice = choose_backend(requested, precision, gpus, machine)
                except PeagleError as error:
                    refusals.append(error)
                    continue
                assert requested in (None, choice.backend)
                assert bool(choice.gpus) == (choice.backend != "onnxruntime")
                assert choice.backend == "onnxruntime" or machine.has(choice.backend)
    assert refusals
    assert all(error.why and error.fix for error in refusals)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_every_suggested_backend_is_accepted(machine: Machine) -> None:
    """Pretend that the suggested package is installed."""
    offers = 0
    for requested, precision, gpus in product(
        (None, *BACKENDS), (None, *RECIPES), ((), ("b200",), ("sm_80",), ("sm_120",), ("sm_89", "sm_120"))
    ):
        for backend, rest in _OFFER.findall(_fix(requested, precision, gpus, machine)):
            flags = dict(re.findall(r"--(\w+) (\w+(?:,\w+)*)", rest))
            named = tuple(flags["gpu"].split(",")) if "gpu" in flags else gpus
            on = () if backend == "onnxruntime" else named
            kind = flags.get("precision", precision)
            choice = choose_backend(backend, kind, on, replace(machine, products=BOTH))
            assert choice.backend == backend
            assert on == gpus or all(supports(gpu, kind or "") for gpu in on), (precision, gpus, rest)
            offers += 1
    assert offers


def _fix(requested: str | None, precision: str | None, gpus: tuple[str, ...], machine: Machine) -> str:
    try:
        choose_backend(requested, precision, gpus, machine)
    except PeagleError as error:
        return error.fix
    return ""


def test_detection_finds_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inspect_machine().has("tensorrt-rtx") == (find_spec("tensorrt_rtx") is not None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert inspect_machine().gpus == ()
    assert choose_backend(None, None, (), inspect_machine()) == BackendChoice(
        "onnxruntime", (), "this machine has no GPU that TensorRT builds for"
    )


def test_data_centre_gpu_is_preferred() -> None:
    machine = Machine((LocalGpu("Ada", 89), LocalGpu("H100", 90)), {"tensorrt": "10.15.1"})
    assert choose_backend(None, None, (), machine) == BackendChoice(
        "tensorrt", ("sm_90",), "this machine has H100 and TensorRT"
    )


@pytest.mark.parametrize(
    ("said", "found"),
    [
        (
            "NVIDIA B200, 10.0, GPU-1, 183359 MiB, 580.65\nNVIDIA B200, 10.0, GPU-2, 183359 MiB, 580.65\n",
            tuple(LocalGpu("NVIDIA B200", 100, f"GPU-{i}", "183359 MiB", "580.65") for i in (1, 2)),
        ),
        (
            "NVIDIA GeForce RTX 4090, 8.9, GPU-3, 24564 MiB, 580.65\n",
            (LocalGpu("NVIDIA GeForce RTX 4090", 89, "GPU-3", "24564 MiB", "580.65"),),
        ),
        ("Some GPU, [N/A], GPU-4, [N/A], 580.65\n\n", ()),
    ],
)
def test_the_driver_s_list_is_understood(
    said: str, found: tuple[LocalGpu, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{said}END\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert inspect_machine().gpus == found


def test_gpus_of_a_driver_that_does_not_answer_are_unknown_not_absent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The CPU is not chosen for a machine whose GPU may only be slow to start."""
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("peagle.compiler.hardware.machine._PATIENCE", 0.1)
    machine = inspect_machine()
    problem = "the GPUs are unknown, because nvidia-smi did not answer within 0.1 seconds"
    assert (machine.gpus, machine.why_no_gpu) == ((), problem)
    for requested in (None, "tensorrt"):
        with pytest.raises(EnvironmentProblem) as caught:
            choose_backend(requested, None, (), machine)
        assert problem in caught.value.why
    with pytest.raises(EnvironmentProblem, match="cannot build on this machine") as caught:
        machine.with_known_gpus()
    assert (problem, "`nvidia-smi`" in caught.value.fix) == (caught.value.why, True)
    with pytest.raises(UsageError, match="no GPU was specified") as unnamed:
        choose_backend("tensorrt-rtx", None, (), Machine((), {"tensorrt-rtx": "1.7.1"}, problem))
    assert problem in unnamed.value.why
    assert choose_backend("onnxruntime", None, (), machine).backend == "onnxruntime"
    assert Machine().with_known_gpus() == Machine()
    assert Machine().why_no_gpu == "there is no NVIDIA GPU"
