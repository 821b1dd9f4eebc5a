"""Engines of the lowering `cpu`: the same text with any drafts, with the CPU kernels and without them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from peagle.compiler.pipeline import cpu_kernels as stage
from peagle.compiler.pipeline.assemble_engine import BuildResult
from peagle.compiler.pipeline.build import build
from peagle.compiler.pipeline.reports.engine_contents import inspect_engine
from peagle.compiler.pipeline.shared_steps import PipelineRun
from peagle.compiler.request.build_platform import BuildPlatform, platform_of
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.stages import StageStore
from peagle.engines import Engine, SamplingParams
from peagle.engines.backends.onnxruntime import kernels
from peagle.engines.backends.onnxruntime.backend import OnnxRuntimeBackend
from peagle.engines.folder.manifest import Manifest
from peagle.graphs.lowering import LOWERINGS
from peagle.plugins.cpu import LIBRARY, pack, self_test
from peagle.plugins.cpu import compile as compiling
from peagle.plugins.errors import EnvironmentProblem

PROMPTS = ["def fibonacci(n):", "import os\n", "x = ["]
PLACE = f"plugins/{LIBRARY}"


def demo(
    out: Path, precision: str = "int8", lowering: str | None = "cpu", max_seq_len: int | None = 128
) -> BuildResult:
    return build(
        BUILD.request(
            model="demo", out=out, precision=precision, lowering=lowering, num_speculative_tokens=3,
            max_seq_len=max_seq_len,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def built(cpu_library: Path, demo_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    """The demo pair in int8; its traces are those of the other engine."""
    return demo(tmp_path_factory.mktemp("cpu-kernels") / "engine")


@pytest.fixture(scope="module")
def wide(cpu_library: Path, demo_engine: Path) -> Path:
    """The same pair in fp32, which is the default."""
    return demo_engine


@pytest.fixture
def folder(built: BuildResult, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built.path, tmp_path / "engine"))


def texts(engine: Engine, params: SamplingParams, k: int) -> list[Any]:
    return [output.token_ids for output in engine.generate(PROMPTS, params, num_speculative_tokens=k)]


def test_matrices_of_whole_blocks_are_packed_and_the_rest_is_as_before(built: BuildResult) -> None:
    products = built.report["precision"]["target"]["matmuls"]
    assert {product["op"] for product in products} == {"QuantizedLinear", "MatMulNBits"}, "not all widths are blocks"
    assert built.report["precision"]["target"]["share"] == built.report["precision"]["drafter"]["share"] == 1
    assert built.manifest.backend.lowering == "cpu"
    for part in built.manifest.parts.values():
        assert {cache.dtype for cache in part.caches} == {"float16"}
    assert PLACE in built.manifest.files
    (row,) = inspect_engine(built.path)["kernels"]
    assert row["machine"] == compiling.machine_name()
    assert row["instructions"]


@pytest.fixture(scope="module")
def of_onnxruntime(demo_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with ONNX Runtime's own kernels."""
    return demo(tmp_path_factory.mktemp("cpu-kernels") / "ort", "fp32", "ort", max_seq_len=None).path


def test_float32_matrices_are_packed_and_stored_once(wide: Path, of_onnxruntime: Path) -> None:
    kinds = {*inspect_engine(wide)["operators"]["target"]}
    assert {"peagle::WideLinear", "peagle::WideEmbedding", "peagle::FusedRegion"} <= kinds
    assert not {"com.microsoft::FusedMatMul", "MatMul"} & kinds
    ours, theirs = ((each / "target/model.onnx.data").stat().st_size for each in (wide, of_onnxruntime))
    assert ours <= theirs + 4096, "an embedding that is the head is there twice"


def test_float32_engines_match_onnxruntime(wide: Path, of_onnxruntime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(5, 45))
    expected = Engine.load(of_onnxruntime).target_logits(ids)
    np.testing.assert_allclose(Engine.load(wide).target_logits(ids), expected, rtol=1e-4, atol=1e-4)
    drafts = Engine.load(of_onnxruntime).draft_logits(ids, 3)
    np.testing.assert_allclose(Engine.load(wide).draft_logits(ids, 3), drafts, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(compiling, "machine_name", lambda: "linux-riscv64")  # the bodies run
    np.testing.assert_allclose(Engine.load(wide).target_logits(ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "seed": 3}])
def test_no_number_of_drafts_and_no_neighbour_changes_a_text(built: BuildResult, params: dict[str, Any]) -> None:
    engine = Engine.load(built.path, max_batch_size=3)
    asked = SamplingParams(max_tokens=40, ignore_eos=True, **params)
    plain = texts(engine, asked, 0)
    assert [texts(engine, asked, k) for k in (1, 2, 3)] == [plain] * 3
    alone = engine.generate(PROMPTS[:1], asked, num_speculative_tokens=2)[0].token_ids
    assert alone == plain[0]


WINDOWS = ((1,) * 8, (2, 6), (5, 1, 2), (7, 1), (3, 3, 2), (4, 4))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("precision", ["int8", "fp32"])
def test_token_has_the_same_logits_in_every_window(
    built: BuildResult, wide: Path, precision: str, threads: int
) -> None:
    """Bit for bit, through the whole graph: three windows of eight are in the caches already."""
    backend = Engine.load(built.path if precision == "int8" else wide, threads=threads)._backend
    assert isinstance(backend, OnnxRuntimeBackend)
    ids = np.random.default_rng(7).integers(0, backend.manifest.shapes.vocab_size, 32).tolist()
    expected = backend.target_logits(ids)
    for windows in WINDOWS:
        if min(windows) >= backend.min_columns:
            found = backend.target_logits(ids, (24, *windows))
            np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32), err_msg=str(windows))


def test_single_column_runs_alone_with_the_same_bits(
    built: BuildResult, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def least(folder: Path) -> int:
        backend = Engine.load(folder)._backend
        assert isinstance(backend, OnnxRuntimeBackend)
        return backend.min_columns

    assert least(wide) == 1
    logits = OnnxRuntimeBackend.target_logits

    def otherwise_alone(backend: Any, ids: Any, widths: Any = ()) -> Any:
        return logits(backend, ids, widths) * np.float32(1 + 1e-6 * len(widths))

    monkeypatch.setattr(OnnxRuntimeBackend, "target_logits", otherwise_alone)
    assert least(built.path) == 2
    assert least(wide) == 1, "nothing is rounded there"
    monkeypatch.setattr(OnnxRuntimeBackend, "target_logits", lambda backend, ids, widths=(): logits(backend, ids))
    assert least(built.path) == 1
    monkeypatch.setattr(compiling, "machine_name", lambda: "linux-riscv64")  # the bodies run
    assert least(built.path) == 2


def test_threads_and_instructions_change_no_bit(built: BuildResult, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(5, 45))
    expected = Engine.load(built.path, threads=1).target_logits(ids)
    np.testing.assert_array_equal(Engine.load(built.path, threads=2).target_logits(ids), expected)
    monkeypatch.setenv("PEAGLE_CPU_INSTRUCTIONS", "portable")
    np.testing.assert_array_equal(Engine.load(built.path, threads=1).target_logits(ids), expected)


OBSTACLES = {
    "another machine": (compiling, "machine_name", lambda: "linux-riscv64", "this machine is linux-riscv64"),
    "another ONNX Runtime": (kernels, "was_tested", lambda _: False, "the test process ended"),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_engine_without_kernels_runs_bodies_with_a_note(
    folder: Path, obstacle: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ids = list(range(5, 45))
    expected = Engine.load(folder).target_logits(ids)
    assert not caplog.messages
    module, name, answer, words = OBSTACLES[obstacle]
    monkeypatch.setattr(module, name, answer)
    monkeypatch.setattr("sys.executable", "/bin/false")  # what tries them
    logits = Engine.load(folder).target_logits(ids)
    (message,) = caplog.messages
    assert words in message
    assert "using standard operators instead" in message
    np.testing.assert_allclose(logits, expected, atol=0.2 * np.abs(expected).max())
    assert np.mean(logits.argmax(-1) == expected.argmax(-1)) > 0.9


def test_a_library_that_cannot_be_loaded_here_is_done_without(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As one for a newer libc, or on a file system where nothing may be executed."""
    made = pack.read_pack(folder / "plugins")
    pack.write_pack(folder / "plugins", replace(made, code=b"?" * len(made.code)))
    engine = Engine.load(folder, check="sizes")
    (message,) = caplog.messages
    assert "cpu_kernels.so" in message
    assert "using standard operators instead" in message
    assert np.isfinite(engine.target_logits([5, 6, 7])).all()


def test_kernels_work_with_another_onnxruntime(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kernels, "was_tested", lambda _: False)
    assert kernels.library_of(folder, Engine.load(folder).manifest) == folder / PLACE
    assert not caplog.messages


def test_replaced_library_is_rejected(folder: Path) -> None:
    (folder / PLACE).write_bytes((folder / PLACE).read_bytes()[:-1] + b"?")
    for check, complaint in (("hashes", "was changed after the build"), ("sizes", "is missing or damaged")):
        with pytest.raises(EnvironmentProblem, match=complaint):
            Engine.load(folder, check=check)


def test_kernels_that_are_switched_off_are_not_loaded(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PEAGLE_CPU_KERNELS", "off")
    monkeypatch.setattr(self_test, "open_library", lambda path: pytest.fail("it was loaded"))
    monkeypatch.setattr(self_test, "try_library", lambda path: pytest.fail("it was tried"))
    assert np.isfinite(Engine.load(folder).target_logits([5, 6, 7])).all()
    (message,) = caplog.messages
    assert message.startswith(f"PEAGLE_CPU_KERNELS is off: the CPU kernels of {folder} are not loaded")
    (row,) = inspect_engine(folder)["kernels"]
    assert (row["instructions"], row["why"]) == ("", "disabled: PEAGLE_CPU_KERNELS is off")
    monkeypatch.setenv("PEAGLE_CPU_KERNELS", "false")
    with pytest.raises(EnvironmentProblem, match="PEAGLE_CPU_KERNELS is 'false'"):
        Engine.load(folder)


def test_inspect_runs_no_machine_code_that_was_not_compiled_here(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("open_library", "try_library"):
        monkeypatch.setattr(self_test, name, lambda path: pytest.fail("it was run"))
    monkeypatch.setenv("PEAGLE_CACHE", str(tmp_path / "of another machine"))
    (row,) = inspect_engine(folder)["kernels"]
    assert (row["instructions"], row["why"]) == ("", "not tested: not compiled on this machine")


def test_inspect_repeats_no_test_of_the_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "try_library", lambda path: "tested")
    (row,) = inspect_engine(folder)["kernels"]
    assert (row["instructions"] in ("", "tested"), row["why"]) == (False, "")
    monkeypatch.setattr(kernels, "was_tested", lambda _: False)
    assert inspect_engine(folder)["kernels"][0]["instructions"] == "tested"


def test_instructions_that_are_not_there_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PEAGLE_CPU_INSTRUCTIONS", "altivec")
    with pytest.raises(EnvironmentProblem, match="PEAGLE_CPU_INSTRUCTIONS is altivec"):
        Engine.load(folder)


LACKS = "falling back to ONNX Runtime's own kernels, which verify drafts more slowly; "


def test_default_build_has_cpu_kernels_if_possible(
    demo_engine: Path, cpu_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every recipe that they multiply in, and none that is emulated or that a switch forbids."""

    def lowering(precision: str | None, asked: str | None = None) -> str:
        return platform_of(
            BUILD.request(model="demo", out=Path("x"), precision=precision, lowering=asked)
        ).lowering.name

    assert Manifest.read(demo_engine).backend.lowering == "cpu"
    assert PLACE in Manifest.read(demo_engine).files
    assert [lowering(each) for each in (None, "fp32", "int8", "int4", "fp8")] == ["cpu"] * 4 + ["ort"]
    assert lowering("int8", "ort") == "ort"
    monkeypatch.setenv("PEAGLE_CPU_KERNELS", "off")
    assert [lowering("int8"), lowering("int8", "cpu")] == ["ort", "cpu"]


@pytest.mark.parametrize("broken", [False, True])
def test_build_without_compilation_uses_onnxruntime_kernels(
    cpu_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    """Where there is no compiler, and where the only one fails."""
    compiler = tmp_path / "c++"
    if broken:
        compiler.write_text("#!/bin/sh\necho out of luck; exit 1\n")
        compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(compiling, "is_installed", lambda name: False)
    result = demo(tmp_path / "engine", lowering=None)
    assert result.manifest.backend.lowering == "ort"
    assert PLACE not in result.manifest.files
    (warning,) = [text for text in result.report["warnings"] if "kernels" in text]
    why = "the CPU kernels cannot be compiled: " if broken else "$CXX is not a program: "
    assert warning.startswith(f"{why}{compiler}: {'out of luck: ' if broken else ''}{LACKS}set CXX to ")


@pytest.mark.parametrize("is_asked", [False, True])
def test_without_a_folder_for_temporary_files_onnxruntime_kernels_are_used_with_a_warning(
    is_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_temporary_folder: None
) -> None:
    monkeypatch.setenv("CXX", "true")
    platform = BuildPlatform("onnxruntime", "1", (), LOWERINGS["cpu"], runs_here=True)
    made = stage.cpu_kernels(PipelineRun.begin(StageStore(tmp_path / "store"), None), platform, is_asked=is_asked)
    assert (made.stage, made.lowering.name) == (None, "cpu" if is_asked else "ort")
    (warning,) = made.warnings
    assert "there is no folder for temporary files: " in warning
    assert "; set TMPDIR to " in warning


def test_the_library_is_compiled_once_for_all_builds(cpu_library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "compile_library", lambda: pytest.fail("it was compiled again"))
    assert stage.compiled_library(StageStore.default()).path / LIBRARY == cpu_library


def test_build_without_a_compiler_states_the_consequence(
    built: BuildResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none() -> Any:
        raise EnvironmentProblem("no C++ compiler was found", why="they are compiled", fix="install g++")

    monkeypatch.setattr(stage, "_tested", lambda run: none())
    result = demo(tmp_path / "engine")
    assert PLACE not in result.manifest.files
    (warning,) = [text for text in result.report["warnings"] if "CPU kernels" in text]
    assert (
        warning == "the engine has no CPU kernels, so it will be slow: "
        "no C++ compiler was found: they are compiled; install g++"
    )
    assert inspect_engine(result.path)["kernels"] == []
