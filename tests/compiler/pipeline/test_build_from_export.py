"""Builds from an export, on a host without checkpoints and tracing libraries; and their refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.hardware.machine import Machine, inspect_machine
from peagle.compiler.pipeline.export_folder.build_record import GRAPH, RECORD, read_export
from peagle.compiler.resources import check
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import Manifest
from tests.fixtures.commands import Run
from tests.fixtures.exports import Export
from tests.models import CONFIGS

pytestmark = [
    pytest.mark.skipif(not inspect_machine().has("tensorrt-rtx"), reason="TensorRT-RTX is not installed"),
    pytest.mark.begins_first,
]

FAST = "qwen3"
PROGRAM = """
import sys
from peagle.compiler.cli import run_cli
arguments = [*sys.argv[1:], "then"]
while arguments:
    end = arguments.index("then")
    if code := run_cli(arguments[:end]):
        sys.exit(code)
    arguments = arguments[end + 1 :]
"""
BLOCKER = """
import sys
HIDDEN = {hidden!r}
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """These builds are ahead of time on any machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.fixture
def exported(export_of: Export, tmp_path: Path) -> Path:
    """A copy of an export, to be changed as a test likes."""
    return Path(shutil.copytree(export_of(FAST), tmp_path / "export"))


@pytest.fixture(scope="module")
def without_tracing(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which no process can import what belongs to the extra ``export``."""
    from peagle.plugins.optional_packages import EXTRAS

    folder = tmp_path_factory.mktemp("blocked")
    hidden = {name.partition(".")[0] for name in EXTRAS["export"]}
    (folder / "sitecustomize.py").write_text(BLOCKER.format(hidden=hidden))
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    return dict(os.environ) | {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[] if name == FAST else pytest.mark.slow) for name in CONFIGS]
)
def test_build_from_export_needs_no_tracing_packages(
    family: str, export_of: Export, without_tracing: dict[str, str], tmp_path: Path, cli: Run
) -> None:
    source, out = export_of(family), tmp_path / "engine"
    command = [sys.executable, "-c", PROGRAM]
    asked = ["build", "--from", str(source), "--out", str(out), "--max-batch-size", "2", "-q", "--json"]
    asked += ["then", "inspect", str(out)]
    done = subprocess.run([*command, *asked], env=without_tracing, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    manifest = Manifest.read(out)
    check_files(manifest.files, out)
    library = json.loads((source / "plugins" / "plugin_library.json").read_text())
    assert (library["gpus"], "plugins/libpeagle_plugins.so" in manifest.files) == (["sm_120"], True)
    assert (manifest.backend.name, manifest.backend.gpus) == ("tensorrt-rtx", ("sm_120",))
    assert [item.level for item in manifest.evidence] == ["aot"]
    for part in manifest.parts.values():
        assert part.plan is not None
        assert part.plan.layers["PLUGIN_V3"] == 1
        assert part.plan.profiles[0].rows == (1, 2, 2)
    beside = {"tokenizer.json", "target/config.json", "drafter/config.json", "plugins/kernels.json"}
    assert beside <= {*manifest.files} | {"plugins/kernels.json"}
    assert not [name for name in manifest.files if name.endswith((".onnx", ".data", f"/{GRAPH}", RECORD))]
    report, end = json.JSONDecoder().raw_decode(done.stdout)
    assert set(report["matmuls"]) == {"target", "drafter"}
    assert "for sm_120" in done.stdout[end:]
    again = cli("build", "--config", out / "resolved_config.yaml", "--from", source, "--out", "new", "--dry-run", "-q")
    assert (again.code, "for sm_120" in again.out) == (0, True), again.err


def _cut(folder: Path) -> None:
    path = folder / "target" / "model.onnx.data"
    path.write_bytes(path.read_bytes()[:-1])


def _bend(folder: Path) -> None:
    path = folder / "target" / "model.onnx.data"
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(bytes(content))


def _of(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        path = folder / name
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
        record = json.loads((folder / "export.json").read_text())
        if name in record["files"]:  # as if written that way
            from peagle.engines.folder.records import FileEntry

            entry = FileEntry.of(path)
            record["files"][name] = {"size": entry.size, "sha256": entry.sha256}
            (folder / "export.json").write_text(json.dumps(record))

    return apply


def _lose(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


@pytest.mark.parametrize(
    ("damage", "code", "says"),
    [
        (_cut, 3, "bytes, but the manifest records"),
        (_bend, 3, "was changed after the build"),
        (_lose("drafter/model.onnx"), 3, "is missing"),
        (_lose("export.json"), 2, "is not an export"),
        (_lose(RECORD), 3, "export again"),
        (_of("export.json", lambda content: content["files"].pop(RECORD)), 2, "earlier version of peagle-compile"),
        (_of(RECORD, lambda content: content.update(format_version=99)), 3, "has format 99"),
        (_of(RECORD, lambda content: content["manifest"].pop("shapes")), 3, "manifest.shapes is missing"),
        (_of(f"target/{GRAPH}", lambda content: content.pop("nodes")), 3, "is not a valid graph record"),
        (_of(RECORD, lambda c: c["manifest"]["backend"].update(lowering="tensorrt-sm100")), 2, "for other GPUs"),
        (_of(RECORD, lambda c: c["manifest"]["backend"].update(lowering="nonsense")), 3, "nonsense"),
    ],
)
def test_incomplete_export_is_rejected_before_writing(
    cli: Run, exported: Path, damage: Callable[[Path], None], code: int, says: str, tmp_path: Path
) -> None:
    damage(exported)
    done = cli("build", "--from", exported, "--out", tmp_path / "engine", "-q")
    assert (done.code, says in done.err) == (code, True), done.err
    assert "internal error of peagle-compile" not in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"export"}


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (("--model", "demo"), 2, "--model and --from"),
        (("--precision", "fp8", "--max-seq-len", 64), 2, "--precision, --max-seq-len and --from"),
        (("--backend", "onnxruntime"), 2, "cannot be combined"),
        (("--gpu", "b200"), 3, "copy "),
        (("--gpu", "h200", "--backend", "tensorrt-rtx"), 2, "does not support sm_90"),
        (("--num-speculative-tokens", 60), 2, "is not between 1 and"),
        (
            ("--num-speculative-tokens", 0),
            2,
            "--num-speculative-tokens 0 cannot be used with this export\n"
            "  why: 0 means plain decoding, but the export is for drafts\n"
            "  fix: omit the option, or export again with --draft none, for plain decoding",
        ),
        (("--max-batch-size", 0), 2, "--max-batch-size"),
    ],
)
def test_incompatible_target_of_an_export_is_rejected(
    cli: Run, export_of: Export, options: tuple[object, ...], code: int, says: str, tmp_path: Path
) -> None:
    done = cli("build", "--from", export_of(FAST), "--out", tmp_path / "engine", *options)
    assert (done.code, says in done.err) == (code, True), done.err
    assert list(tmp_path.iterdir()) == []


def _without_drafts(record: dict[str, Any]) -> None:
    """Record the target alone, as ``export --draft none`` does."""
    manifest = record["manifest"]
    manifest.update(drafter=None, method="none")
    manifest["speculation"].update(num_speculative_tokens=0, max_num_speculative_tokens=0, trained_depth=None)
    manifest["shapes"].update(draft_vocab_size=0, taps=[])


def test_an_export_for_plain_decoding_takes_no_drafts(cli: Run, exported: Path, tmp_path: Path) -> None:
    _of(RECORD, _without_drafts)(exported)
    done = cli("build", "--from", exported, "--out", tmp_path / "engine", "--num-speculative-tokens", 4)
    assert done.code == 2
    assert (
        "--num-speculative-tokens 4 cannot be used with this export\n"
        "  why: the export is for plain decoding\n"
        "  fix: omit the option, or export again with --num-speculative-tokens 4\n"
    ) in done.err
    assert not (tmp_path / "engine").exists()


def test_the_expert_layer_of_an_export_is_found_in_its_graphs(exported: Path) -> None:
    """The lowering of an export for a B200 has the layer, even if the model needs none."""
    export = read_export(exported)
    manifest = export.record.manifest
    manifest = replace(manifest, backend=replace(manifest.backend, lowering="tensorrt-sm100"))
    for_b200 = replace(export, record=replace(export.record, manifest=manifest))
    assert not for_b200.has_expert_layer()
    graph = exported / "target" / GRAPH
    content = json.loads(graph.read_text())
    content["nodes"][-1]["op_type"] = "TRT_MoE"
    graph.write_text(json.dumps(content))
    assert for_b200.has_expert_layer()


def test_build_does_not_replace_its_own_export(cli: Run, exported: Path) -> None:
    done = cli("build", "--from", exported, "--out", exported)
    assert (done.code, "is an input folder" in done.err) == (2, True)


def test_build_from_export_without_disk_space_fails_like_its_dry_run(
    cli: Run, export_of: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "free_memory", lambda: 1000)
    ask = ("build", "--from", export_of(FAST), "--out", tmp_path / "engine")
    assert "fails on this machine with exit code 3: this machine has too little memory; " in cli(*ask, "--dry-run").out
    done = cli(*ask)
    assert done.code == 3
    assert "memory to build plans: " in done.err
    assert list(tmp_path.iterdir()) == []


def test_dry_run_from_export_lists_every_possible_shortage(
    cli: Run, export_of: Export, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = ["memory may not be enough", "disk may not be enough"]
    monkeypatch.setattr(check, "possible_shortages", lambda _: notes)
    ask = ("build", "--from", export_of(FAST), "--out", tmp_path / "engine", "--dry-run")
    assert json.loads(cli(*ask, "--json").out)["notes"] == notes
    assert all(f"note                {text}" in cli(*ask).out for text in notes)


def test_dry_run_from_export_needs_no_tracing_packages(
    export_of: Export, without_tracing: dict[str, str], tmp_path: Path
) -> None:
    asked = ["build", "--from", str(export_of(FAST)), "--out", str(tmp_path / "engine"), "--dry-run"]
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run([*command, *asked], env=without_tracing, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "no known blocker on this machine" in done.stdout


@pytest.mark.parametrize("products", [{}, {"tensorrt-rtx": "1.7.1"}])
@pytest.mark.parametrize(
    ("options", "title"),
    [
        (("--gpu", "b200"), "TensorRT for sm_100"),
        ((), "TensorRT-RTX"),
        (("--backend", "tensorrt"), "TensorRT for sm_120"),
    ],
)
def test_a_dry_run_prints_its_figures_on_a_machine_without_the_gpu(
    cli: Run,
    export_of: Export,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    title: str,
    products: dict[str, str],
) -> None:
    monkeypatch.setattr("peagle.compiler.request.export_platform.inspect_machine", lambda: Machine((), products))
    ask = ("build", "--from", export_of(FAST), "--out", tmp_path / "engine", *options)
    done = cli(*ask, "--dry-run")
    assert done.code == 0, done.err
    assert all(
        text in done.out for text in (title, "lowering tensorrt", "3.07 times", "for " + str(tmp_path / "engine"))
    )
    if options or not products:
        assert "fails on this machine with exit code 3: " in done.out
        assert cli(*ask).code == 3
    else:
        assert "no known blocker on this machine" in done.out
    assert list(tmp_path.iterdir()) == []


def test_dry_run_rejects_requests_no_machine_can_build(cli: Run, export_of: Export, tmp_path: Path) -> None:
    ask = ("build", "--from", export_of(FAST), "--out", tmp_path / "engine", "--dry-run")
    assert cli(*ask, "--gpu", "h200", "--backend", "tensorrt-rtx").code == 2
    assert cli(*ask, "--backend", "onnxruntime").code == 2


def test_dry_run_from_export_prints_its_plans(cli: Run, export_of: Export, tmp_path: Path) -> None:
    done = cli("build", "--from", export_of(FAST), "--out", tmp_path / "engine", "--dry-run")
    assert done.code == 0, done.err
    assert all(
        text in done.out for text in ("for sm_120", "lowering tensorrt", "fp16", "3.07 times", "nothing is written")
    )
    assert list(tmp_path.iterdir()) == []
