"""``doctor``: what works, what does not and why, on machines with and without GPUs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from peagle.compiler.hardware.machine import LocalGpu, Machine
from peagle.compiler.verbs import diagnosis
from peagle.compiler.verbs.diagnosis import Ability, diagnose
from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.kernels import compile as kernel_compilers
from peagle.plugins.optional_packages import install
from peagle.plugins.tensorrt import import_tensorrt
from peagle.plugins.tensorrt.import_tensorrt import LinkState
from tests.fixtures.commands import Run

RTX = {"tensorrt-rtx": "1.7.1.116"}
BOTH = RTX | {"tensorrt": "11.4.0.106"}


def abilities(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> dict[str, Ability]:
    """Return doctor's output for a machine with these GPUs and packages, and with all requirements of kernels."""
    monkeypatch.setattr(diagnosis, "inspect_machine", lambda: machine)
    monkeypatch.setattr(import_tensorrt, "link_state", lambda: LinkState("present", Path("/wheel")))
    monkeypatch.setattr(diagnosis, "_installed", lambda _: "1.0")
    monkeypatch.setattr(kernel_compilers, "load_nvrtc", lambda: None)
    monkeypatch.setattr(kernel_compilers, "nvrtc_version", lambda _: "13.0")
    return {ability.backend: ability for ability in diagnose().abilities}


def test_this_machine_is_described(cli: Run) -> None:
    found = json.loads(cli("doctor", "--json").out)
    assert found["healthy"]
    assert found["packages"]["onnxruntime"]
    assert {ability["backend"] for ability in found["abilities"]} == {"onnxruntime", "tensorrt", "tensorrt-rtx"}
    text = cli("doctor").out
    for said in ("run onnxruntime", "build tensorrt-rtx", "NVRTC", "nvcc", "driver", "cuda-core", "GPUs"):
        assert said in text


def test_host_without_gpu_builds_rtx_plans_but_runs_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = abilities(monkeypatch, Machine((), BOTH))
    assert not found["tensorrt-rtx"].cannot_build
    rtx = {each.precision: each for each in found["tensorrt-rtx"].precisions}
    assert rtx["fp8"].gpus == ("sm_89", "sm_120", "sm_121")
    assert "MXFP8" in rtx["mxfp8"].cannot
    assert "attention" in rtx["fp32"].cannot
    assert found["tensorrt-rtx"].cannot_run == "there is no NVIDIA GPU"
    assert "no NVIDIA GPU" in found["tensorrt"].cannot_build
    assert found["tensorrt"].cannot_run == "there is no NVIDIA GPU"


def test_unknown_gpus_are_not_reported_as_absent(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for problem, words in (("the GPUs are unknown", "the GPUs are unknown"), ("", "none found")):
        machine = Machine((), BOTH, problem)
        monkeypatch.setattr(diagnosis, "inspect_machine", lambda machine=machine: machine)
        (line,) = [line for line in cli("doctor").out.splitlines() if line.startswith("GPUs ")]
        assert line.endswith(f" {words}")
        assert json.loads(cli("doctor", "--json").out)["gpu_problem"] == problem


def test_on_a_data_centre_gpu_the_full_tensorrt_does_both(monkeypatch: pytest.MonkeyPatch) -> None:
    found = abilities(monkeypatch, Machine((LocalGpu("NVIDIA B200", 100),), BOTH))
    assert not found["tensorrt"].cannot_build
    assert not found["tensorrt"].cannot_run
    assert found["tensorrt-rtx"].cannot_run == "tensorrt-rtx does not support sm_100"


def test_on_an_rtx_gpu_both_products_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = abilities(monkeypatch, Machine((LocalGpu("NVIDIA GeForce RTX 5090", 120),), BOTH))
    assert not any(ability.cannot_build or ability.cannot_run for ability in found.values())


def test_missing_package_is_listed_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    found = abilities(monkeypatch, Machine())
    assert install("rtx") in found["tensorrt-rtx"].cannot_build
    assert install("tensorrt") in found["tensorrt"].cannot_run


@pytest.mark.parametrize(
    ("state", "said", "usable"),
    [
        (LinkState("missing", Path("/wheel")), "missing in /wheel; the first build creates it", True),
        (LinkState("present", Path("/wheel")), "present in /wheel", True),
        (LinkState("cannot", Path("/wheel"), "the folder is not writable"), "is not writable", False),
        (LinkState("absent"), "", True),
    ],
)
def test_missing_wheel_link_is_explained(
    monkeypatch: pytest.MonkeyPatch, state: LinkState, said: str, usable: bool
) -> None:
    monkeypatch.setattr(import_tensorrt, "link_state", lambda: state)
    words, problem = diagnosis._rtx_link()
    assert said in words
    assert bool(problem) is not usable


def test_kernels_that_cannot_be_compiled_stop_builds_of_plans_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise EnvironmentProblem("x", why="NVRTC is missing", fix="pip install nvidia-cuda-nvrtc")

    monkeypatch.setattr(diagnosis, "inspect_machine", lambda: Machine((), RTX))
    monkeypatch.setattr(kernel_compilers, "load_nvrtc", absent)
    found = {ability.backend: ability for ability in diagnose().abilities}
    assert "NVRTC is missing" in found["tensorrt-rtx"].cannot_build
    assert not found["onnxruntime"].cannot_build


def test_exit_code_is_nonzero_when_nothing_runs(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = cli("doctor")
    assert done.code == 3
    assert "cannot be imported" in done.err


def test_it_names_the_extra_that_building_needs(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert f"no: missing packages: torch; run `{install('export')}`" in cli("doctor").out


def test_without_torch_plans_are_built_of_exports(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "inspect_machine", lambda: Machine((), RTX))
    monkeypatch.setitem(sys.modules, "torch", None)
    (line,) = [line for line in cli("doctor").out.splitlines() if line.startswith("build tensorrt-rtx")]
    assert "only from an export made elsewhere, with `build --from`; not from checkpoints: missing packages: " in line
    assert not {each.backend: each for each in diagnose().abilities}["tensorrt-rtx"].cannot_build_exports
    monkeypatch.setattr(diagnosis, "inspect_machine", lambda: Machine())
    assert "not installed" in {each.backend: each for each in diagnose().abilities}["tensorrt-rtx"].cannot_build_exports


def test_every_cpu_precision_is_described(cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a file are multiplied only with kernels that a build here compiles."""

    def of_doctor() -> str:
        (line,) = [line for line in cli("doctor").out.splitlines() if line.startswith("build onnxruntime")]
        return line

    def nothing() -> list[object]:
        raise EnvironmentProblem("no C++ compiler was found")

    rest = "fp8, mxfp8 emulated; not fp16, bf16 (ONNX Runtime computes in fp32 on a CPU)"
    monkeypatch.setattr("peagle.plugins.cpu.compile.find_compilers", lambda: [SimpleNamespace(command=["c++"])])
    assert f"yes: fp32, int8, int4, stored; {rest}" in of_doctor()
    with monkeypatch.context() as patch:
        patch.setenv("PEAGLE_CPU_KERNELS", "off")
        assert f"yes: fp32, int8, int4; {rest}; not stored (only this project's CPU kernels compute" in of_doctor()
    monkeypatch.setattr("peagle.plugins.cpu.compile.find_compilers", nothing)
    assert f"yes: fp32, int8, int4; {rest}; not stored (only this project's CPU kernels compute" in of_doctor()


def test_data_centre_gpu_lists_its_own_precisions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = abilities(monkeypatch, Machine((LocalGpu("NVIDIA A100", 80),), BOTH))
    table = {each.precision: each for each in found["tensorrt"].precisions}
    assert table["int8"].gpus == ("sm_80",)
    assert "no FP8 arithmetic" in table["fp8"].cannot
