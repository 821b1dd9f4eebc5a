"""Every kernel compiles for every target with both compilers, without spills."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from peagle.plugins.errors import BuildError, EnvironmentProblem
from peagle.plugins.kernels import __main__ as command
from peagle.plugins.kernels import compile as compiling
from peagle.plugins.kernels.compile import Cubin, Usage, compile_nvcc, compile_nvrtc, find_nvcc, read_usage
from peagle.plugins.kernels.pack import read_pack
from peagle.plugins.kernels.sources import TARGETS, digest, entries, kernel_of, kernel_ops, source
from peagle.plugins.ops import OPS

OPS_WITH_KERNEL = [op.name for op in kernel_ops()]
WITHOUT_KERNEL = OPS["CachedAttention"]

# The largest kernels take seconds. By default, each compiler compiles one of two that have the same headers.
SLOW_WITH_NVRTC = {"AcceptTree", "Mxfp4GateUp"}
SLOW_WITH_NVCC = {"AcceptPrefix", "Mxfp4Down"}

# What the kernels are known to spill, in bytes per thread. Data-centre Blackwell must never.
MAY_SPILL: dict[tuple[str, int], int] = {}

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'first_float32' for 'sm_90'
ptxas info    : Function properties for first_float32
    24 bytes stack frame, 16 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 24 bytes cumulative stack size, 4096 bytes smem, 380 bytes cmem[0]
ptxas info    : Compiling entry function 'first_float16' for 'sm_90'
ptxas info    : Function properties for first_float16
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
"""


def is_machine_code(cubin: Cubin) -> bool:
    """An ELF file that holds all entry points by name."""
    return cubin.code.startswith(b"\x7fELF") and all(name.encode() in cubin.code for name in cubin.usage)


def in_turn() -> Iterator[Any]:
    """Each op for one target in turn; data-centre Blackwell where nvcc does not compile it below. The rest is slow."""
    for place, name in enumerate(OPS_WITH_KERNEL):
        by_default = 100 if name in SLOW_WITH_NVCC else TARGETS[place % len(TARGETS)]
        for sm in TARGETS:
            is_slow = sm != by_default or name in SLOW_WITH_NVRTC
            yield pytest.param(name, sm, marks=[pytest.mark.slow] * is_slow)


@pytest.mark.parametrize(("name", "sm"), in_turn())
def test_nvrtc_compiles_the_kernel_without_spills(name: str, sm: int) -> None:
    op = OPS[name]
    cubin = compile_nvrtc(op, sm)
    assert (cubin.op, cubin.sm, cubin.digest) == (name, sm, digest(op))
    assert tuple(cubin.usage) == entries(op)
    assert is_machine_code(cubin)
    assert cubin.compiler.startswith("NVRTC ")
    assert max(usage.spill_bytes for usage in cubin.usage.values()) <= MAY_SPILL.get((name, sm), 0)
    # A block of the size that the spec promises fits into a multiprocessor's 64 K registers and 48 K of shared memory.
    assert all(usage.registers * kernel_of(op).threads <= 65536 for usage in cubin.usage.values())
    assert all(usage.shared_bytes <= 48 * 1024 for usage in cubin.usage.values())


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW_WITH_NVCC)) for name in OPS_WITH_KERNEL],
)
def test_nvcc_compiles_the_kernel_for_data_centre_blackwell_without_spills(name: str) -> None:
    cubin = compile_nvcc(OPS[name], 100)
    assert is_machine_code(cubin)
    assert cubin.compiler.startswith("nvcc ")
    assert tuple(cubin.usage) == entries(OPS[name])
    assert max(usage.spill_bytes for usage in cubin.usage.values()) == 0


def packs_and_prints(folder: Path, printed: str, names: list[str], targets: Sequence[int]) -> None:
    """Require a cubin for each op and target in the folder, and a row of their table for each entry point."""
    cubins = {(cubin.op, cubin.sm): cubin for cubin in read_pack(folder).cubins}
    assert set(cubins) == {(name, sm) for name in names for sm in targets}
    assert " | ".join(["| entry point", *(f"sm_{sm}" for sm in targets)]) in printed
    for (name, sm), cubin in cubins.items():
        assert is_machine_code(cubin)
        assert cubin.compiler.startswith("nvcc ")
        assert tuple(cubin.usage) == entries(OPS[name])
        assert max(usage.spill_bytes for usage in cubin.usage.values()) <= MAY_SPILL.get((name, sm), 0)
        for entry, usage in cubin.usage.items():
            (row,) = (line for line in printed.splitlines() if line.startswith(f"| `{entry}` |"))
            assert f"{usage.registers} registers, {usage.shared_bytes} B shared, {usage.spill_bytes} B spilled" in row


def test_make_kernels_packs_ops_for_targets_and_prints_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two small ops for the two oldest targets; the next test is the whole of it."""
    names, targets = ["NumbersAt", "PlaceholderDraft"], TARGETS[:2]
    monkeypatch.setattr(command, "kernel_ops", lambda: tuple(OPS[name] for name in names))
    monkeypatch.setattr(command, "TARGETS", targets)
    monkeypatch.setattr(sys, "argv", ["kernels", str(tmp_path / "packed")])
    assert command.main() == 0
    packs_and_prints(tmp_path / "packed", capsys.readouterr().out, names, targets)


@pytest.mark.slow
def test_make_kernels_packs_every_op_for_every_target_and_prints_usage(tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "peagle.plugins.kernels", str(tmp_path / "packed")]
    process = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    packs_and_prints(tmp_path / "packed", process.stdout, OPS_WITH_KERNEL, TARGETS)


def test_make_kernels_without_a_compiler_fails_cleanly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "peagle.plugins.kernels", str(tmp_path / "packed")]
    environment = os.environ | {"NVCC": "/nonexistent"}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 3
    assert "NVCC is not a program" in process.stderr
    assert not (tmp_path / "packed").exists()


def test_no_spills_on_data_centre_blackwell() -> None:
    assert not {key for key in MAY_SPILL if key[1] == 100}


@pytest.mark.parametrize("compile_kernel", [compile_nvcc, compile_nvrtc])
def test_same_source_gives_the_same_machine_code(compile_kernel: Any) -> None:
    op = OPS["PlaceholderDraft"]
    assert compile_kernel(op, 90).code == compile_kernel(op, 90).code


def test_there_is_a_kernel_for_every_step_that_no_stock_layer_does() -> None:
    assert {"AcceptPrefix", "NumbersAt", "PlaceholderDraft"} <= set(OPS_WITH_KERNEL)
    assert {89, 90, 100, 120} == set(TARGETS)


def test_source_needs_no_header_and_names_its_files() -> None:
    for name in OPS_WITH_KERNEL:
        text = source(OPS[name])
        assert not re.search(r"^\s*#\s*include", text, re.MULTILINE)
        assert text.startswith('#line 1 "kernels/primitives.cuh"')


def test_the_digest_follows_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS["NumbersAt"]
    before = digest(op)
    assert before == digest(op)
    assert before != digest(OPS["PlaceholderDraft"])
    text = source(op)
    monkeypatch.setattr("peagle.plugins.kernels.sources.source", lambda op: text + "// changed")
    assert digest(op) != before


def test_an_op_without_a_kernel_is_refused() -> None:
    for call in (source, digest, entries, kernel_of):
        with pytest.raises(BuildError, match="CachedAttention has no CUDA kernel"):
            call(WITHOUT_KERNEL)


@pytest.mark.parametrize("compile_kernel", [compile_nvcc, compile_nvrtc])
def test_compile_error_is_passed_on(compile_kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = source(OPS["NumbersAt"]) + '\nstatic_assert(false, "a planted mistake");\n'
    monkeypatch.setattr(compiling, "source", lambda op: broken)
    with pytest.raises(BuildError, match="rejected the kernel of NumbersAt for sm_90") as caught:
        compile_kernel(OPS["NumbersAt"], 90)
    assert "a planted mistake" in caught.value.why


@pytest.mark.parametrize("compile_kernel", [compile_nvcc, compile_nvrtc])
def test_unsupported_gpu_is_reported(compile_kernel: Any) -> None:
    with pytest.raises((BuildError, EnvironmentProblem), match="sm_999"):
        compile_kernel(OPS["NumbersAt"], 999)


def test_other_entry_points_than_the_specs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "entries", lambda op: ("numbers_at_float32",))
    with pytest.raises(BuildError, match="entry points of the compiled kernel differ") as caught:
        compile_nvrtc(OPS["NumbersAt"], 90)
    assert "compiled: numbers_at;" in caught.value.why


def test_ptxas_output_is_parsed() -> None:
    assert read_usage(PTXAS, ("first_float32", "first_float16")) == {
        "first_float32": Usage(registers=40, spill_bytes=24, shared_bytes=4096),
        "first_float16": Usage(registers=8, spill_bytes=0, shared_bytes=0),
    }
    with pytest.raises(BuildError, match="entry points of the compiled kernel differ"):
        read_usage("", ("first_float32",))


def test_the_packaged_nvcc_is_preferred() -> None:
    files = importlib.metadata.files("nvidia-cuda-nvcc") or ()
    (packaged,) = (Path(str(file.locate())) for file in files if file.name == "nvcc")
    assert find_nvcc() == packaged


def test_a_named_nvcc_is_used_or_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'error: I only pretend'; exit 3\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("NVCC", str(nvcc))
    with pytest.raises(BuildError) as caught:
        compile_nvcc(OPS["NumbersAt"], 90)
    assert "I only pretend" in caught.value.why
    monkeypatch.setenv("NVCC", str(tmp_path / "absent"))
    with pytest.raises(EnvironmentProblem, match="NVCC is not a program"):
        find_nvcc()


def test_a_machine_without_nvcc_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NVCC", raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(compiling, "_wheel_nvcc", lambda: None)
    with pytest.raises(EnvironmentProblem, match="nvcc was not found") as caught:
        find_nvcc()
    assert "pip install nvidia-cuda-nvcc" in caught.value.fix


def test_missing_nvrtc_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    with pytest.raises(EnvironmentProblem, match="cannot be compiled") as caught:
        compile_nvrtc(OPS["NumbersAt"], 90)
    assert "nvidia-cuda-nvrtc" in caught.value.fix
