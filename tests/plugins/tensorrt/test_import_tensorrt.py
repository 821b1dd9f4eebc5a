"""The missing link in the TensorRT wheel, in a copy of its library folder; each case in a separate process."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from peagle.plugins.errors import EnvironmentProblem
from peagle.plugins.optional_packages import install
from peagle.plugins.tensorrt import import_tensorrt
from tests.plugins.tensorrt.rtx_builds import needs_rtx, profile, results, run_aot

LINK = "libtensorrt_rtx.so"
SIZES = {"B": 1, "S": 2, "E": 2}
DTYPES = ("int64", "int64", "int32", "int32", "int32", "int32")


@pytest.fixture
def wheel() -> Iterator[Path]:
    """A folder for PYTHONPATH with a library folder as the wheel has it, without the link. Any user may read it."""
    spec = importlib.util.find_spec("tensorrt_rtx_libs")
    if spec is None or spec.origin is None:
        pytest.skip("TensorRT-RTX is not installed (extra: rtx)")
    source = Path(spec.origin).parent
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        folder = root / "tensorrt_rtx_libs"
        folder.mkdir()
        shutil.copy(source / "__init__.py", folder)
        shutil.copy(source / "libtensorrt_onnxparser_rtx.so.1", folder)  # looks beside itself for the link
        (folder / f"{LINK}.1").symlink_to(source / f"{LINK}.1")
        yield root


def environment(wheel: Path, **more: str) -> dict[str, str]:
    return {"PYTHONPATH": str(wheel), "LD_LIBRARY_PATH": "", **more}


def child(wheel: Path, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    prelude = "from peagle.plugins.tensorrt import import_tensorrt\n"
    return subprocess.run(
        [sys.executable, "-c", prelude + code],
        env=dict(os.environ) | environment(wheel, **more),
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def case(write_model: Callable[..., str]) -> dict[str, Any]:
    model = write_model("PlaceholderDraft", DTYPES, {"mask_token_id": 3})
    profiles = [profile("PlaceholderDraft", SIZES, SIZES, SIZES)]
    return {"model": model, "ops": ["PlaceholderDraft"], "gpus": ["SM120"], "profiles": profiles}


@needs_rtx
def test_load_creates_the_link_and_parser_accepts_plugins(wheel: Path, case: dict[str, Any]) -> None:
    assert not (wheel / "tensorrt_rtx_libs" / LINK).exists()
    (result,) = results(run_aot([case], environment(wheel)))
    assert result["layers"] == ["PLUGIN_V3"]
    link = wheel / "tensorrt_rtx_libs" / LINK
    assert link.is_symlink()
    assert os.readlink(link) == f"{LINK}.1"


@needs_rtx
def test_parser_without_the_link_ends_the_process(wheel: Path, case: dict[str, Any]) -> None:
    """The reason for all this; when a wheel passes here, the cure can go."""
    (wheel / "sitecustomize.py").write_text(
        "from peagle.plugins.tensorrt import import_tensorrt\n"
        "import_tensorrt.repair_link = lambda: import_tensorrt.LinkState('absent')\n"
    )
    assert run_aot([case], environment(wheel)).returncode != 0


@needs_rtx
def test_link_state_is_reported_without_changes(wheel: Path) -> None:
    process = child(wheel, "import sys; print(import_tensorrt.link_state().state, 'tensorrt_rtx' in sys.modules)")
    assert process.stdout.split() == ["missing", "False"]
    assert not (wheel / "tensorrt_rtx_libs" / LINK).exists()
    assert child(
        wheel, "print(import_tensorrt.repair_link().state, import_tensorrt.link_state().state)"
    ).stdout.split() == [
        "cured",
        "present",
    ]


@needs_rtx
def test_a_link_that_leads_nowhere_is_replaced(wheel: Path) -> None:
    (wheel / "tensorrt_rtx_libs" / LINK).symlink_to(f"{LINK}.0")
    assert child(wheel, "print(import_tensorrt.repair_link().state)").stdout.strip() == "cured"
    assert (wheel / "tensorrt_rtx_libs" / LINK).exists()


@needs_rtx
def test_processes_that_cure_at_once_do_not_hinder_each_other(wheel: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        processes = list(pool.map(lambda _: child(wheel, "print(import_tensorrt.repair_link().is_usable)"), range(4)))
    assert [each.stdout.strip() for each in processes] == ["True"] * 4, [each.stderr for each in processes]
    folder = wheel / "tensorrt_rtx_libs"
    assert (folder / LINK).exists()
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


# Root may write anywhere. What Python itself needs must be imported before: nobody may be unable to read it.
AS_NOBODY = "import os; os.geteuid() or os.seteuid(65534)\n"


@needs_rtx
def test_a_folder_that_cannot_be_written_to_is_explained(wheel: Path) -> None:
    (wheel / "tensorrt_rtx_libs").chmod(0o555)
    process = child(
        wheel,
        AS_NOBODY + "print(import_tensorrt.repair_link().state)\n"
        "try: import_tensorrt.load('tensorrt-rtx')\nexcept Exception as e: print(e)",
    )
    (wheel / "tensorrt_rtx_libs").chmod(0o755)
    assert process.stdout.startswith("cannot\n"), process.stderr
    for words in (str(wheel / "tensorrt_rtx_libs"), "LD_LIBRARY_PATH", f"ln -sf {wheel}"):
        assert words in process.stdout


@needs_rtx
def test_runtime_alone_needs_no_link(wheel: Path) -> None:
    (wheel / "tensorrt_rtx_libs").chmod(0o555)
    process = child(
        wheel,
        "import tensorrt_rtx\n" + AS_NOBODY + "print(import_tensorrt.load('tensorrt-rtx', parser=False).__name__)",
    )
    (wheel / "tensorrt_rtx_libs").chmod(0o755)
    assert process.stdout.strip() == "tensorrt_rtx", process.stderr


@needs_rtx
def test_a_new_process_can_parse_though_the_folder_cannot_be_written_to(
    wheel: Path, case: dict[str, Any], tmp_path: Path
) -> None:
    folder = wheel / "tensorrt_rtx_libs"
    folder.chmod(0o555)
    private = wheel / "private"
    private.mkdir()
    private.chmod(0o777)
    process = child(
        wheel,
        AS_NOBODY
        + f"print(import_tensorrt.child_environment(import_tensorrt.Path({str(private)!r}))['LD_LIBRARY_PATH'])",
    )
    assert process.stdout.strip() == str(private), process.stderr
    # An own parser folder, as it is where the wheel's belongs to somebody else: its link stays missing.
    variables = environment(wheel) | {"LD_LIBRARY_PATH": process.stdout.strip()}
    (result,) = results(run_aot([case], variables))
    folder.chmod(0o755)
    assert result["layers"] == ["PLUGIN_V3"]
    assert not (folder / LINK).exists()


@needs_rtx
def test_existing_link_needs_no_environment(tmp_path: Path) -> None:
    assert import_tensorrt.child_environment(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_missing_product_names_its_extra() -> None:
    if (spec := importlib.util.find_spec("tensorrt")) is not None and spec.origin is not None:
        pytest.skip("TensorRT is installed")
    with pytest.raises(EnvironmentProblem) as caught:
        import_tensorrt.load("tensorrt")
    assert "TensorRT is not installed" in str(caught.value)
    assert install("tensorrt") in caught.value.fix


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("raise OSError('libnvinfer.so.11: cannot open shared object file')", "libnvinfer.so.11"),
        ("raise KeyError('TRT')", "KeyError"),
        ("__version__ = '8.6.1'", "8.6.1 is too old"),
    ],
)
def test_a_broken_installation_is_explained(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "tensorrt.py").write_text(text)
    process = child(
        tmp_path, "try: import_tensorrt.load('tensorrt')\nexcept import_tensorrt.EnvironmentProblem as e: print(e)"
    )
    assert complaint in process.stdout, process.stderr
    assert "pip install" in process.stdout
