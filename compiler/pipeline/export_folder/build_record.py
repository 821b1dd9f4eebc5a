"""``build.json`` of an export for TensorRT: the input of a build of its plans, in addition to the other files.

The host that builds the plans needs neither the checkpoints nor the packages for tracing. Without the ``onnx`` package,
it reads ``GRAPH`` of a half instead of its ONNX file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ....engines.folder.manifest import Manifest
from ....engines.folder.records import FileEntry
from ....engines.folder.strict_json import decode
from ....graphs.lowering import LOWERINGS, TENSORRT
from ....plugins.errors import EnvironmentProblem, UsageError
from ....plugins.optional_packages import upgrade
from ....plugins.problems import lack_of
from ...checkpoints.target_and_drafter import Inputs
from ...console.progress import Progress
from ...console.progress_lines import Bytes
from ...request.build_plan import BuildPlan
from ...store.destination import EXPORT
from ...store.publish import Assembly
from ...tensorrt.graph_record import read_record, to_record
from ...tensorrt.preflight import graph_of
from ..engine_manifest import engine_manifest
from ..graph_account import GraphAccount
from ..graph_stages import MODEL
from ..plan_stages import profiles
from ..reports.recorded_contents import check_export, inspect_export
from ..shared_steps import Graphs
from .polygraphy_files import SCRIPTS, SHAPES, shapes_of

FORMAT_VERSION = 2
RECORD = "build.json"
GRAPH = "graph.json"
_AGAIN = "copy the whole folder again, or export again"


@dataclass(frozen=True)
class BuildRecord:
    """Content of ``build.json``; ``manifest`` describes an engine of these graphs, without plans and files.

    ``gpus`` are the GPUs that the export was requested for, ``wide`` is the type of everything that is not quantized.
    ``warnings`` are those of the export; ``proofs`` and ``calibration`` are as in ``GraphAccount``.
    """

    format_version: int
    manifest: Manifest
    gpus: tuple[str, ...]
    wide: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class ExportFolder:
    """An export that plans can be built from: its record, and the files that it lists."""

    path: Path
    record: BuildRecord
    account: GraphAccount
    files: Mapping[str, FileEntry]
    key: Mapping[str, str]

    @property
    def weight_bytes(self) -> dict[str, int]:
        """Return the bytes of graph and weights, by component."""
        return {
            name: sum(entry.size for file, entry in self.files.items() if file.startswith(f"{name}/{MODEL}"))
            for name in self.record.manifest.parts
        }

    def has_expert_layer(self) -> bool:
        """Return True if a graph has TensorRT's layer for routed experts. Raises ``EnvironmentProblem``."""
        if not LOWERINGS[self.record.manifest.backend.lowering].has_expert_layer:
            return False
        folders = [self.path / name for name in self.record.manifest.parts]
        graphs = [read_record(folder / GRAPH, folder / MODEL) for folder in folders]
        return any(node.op_type == "TRT_MoE" for graph in graphs for node in graph.nodes)

    def check(self, progress: Progress) -> None:
        """Compare every file with its hash. Raises ``EnvironmentProblem``."""
        with progress.step("hash the export", Bytes(sum(entry.size for entry in self.files.values()))) as advance:
            check_export(self.files, self.path, advance=advance)


def place_record(assembly: Assembly, plan: BuildPlan, inputs: Inputs, graphs: Graphs, warnings: Sequence[str]) -> None:
    """Write ``build.json`` and, for each component, ``graph.json`` and the files for Polygraphy."""
    gpus = plan.platform.gpus
    anywhere = replace(plan, platform=replace(plan.platform, gpus=()))  # a build selects from the recorded GPUs
    manifest = engine_manifest(anywhere, inputs, graphs, None, {})
    record = BuildRecord(FORMAT_VERSION, manifest, gpus, plan.recipe.wide, tuple(warnings))
    account = graphs.account()
    content = asdict(record) | {"proofs": dict(account.proofs), "calibration": account.calibration}
    assembly.place_text(RECORD, json.dumps(content, indent=2) + "\n")
    for name in graphs.compiled:
        graph = graph_of(assembly.folder / name / "model.onnx")
        assembly.place_text(f"{name}/{GRAPH}", json.dumps(to_record(graph)) + "\n")
        autoregressive = manifest.parts[name].is_autoregressive
        sizes = profiles(
            name, plan.max_batch_size, plan.speculation, plan.max_seq_len, is_autoregressive=autoregressive
        )
        shapes = shapes_of(graph, sizes, gpus, manifest.shapes.vocab_size)
        assembly.place_text(f"{name}/{SHAPES}", json.dumps(shapes, indent=2) + "\n")
        for script, text in SCRIPTS.items():
            assembly.place_text(f"{name}/{script}", text)


def read_export(folder: Path) -> ExportFolder:
    """Read an export to build from; ``ExportFolder.check`` compares the hashes.

    Raises ``UsageError`` for a folder that is not an export or is for another backend, ``EnvironmentProblem`` for a
    damaged one.
    """
    if not (folder / EXPORT).is_file():
        raise UsageError(
            f"--from {folder} is not an export",
            why=lack_of(folder, EXPORT),
            fix="pass a folder that `peagle-compile export --for tensorrt --gpu NAME` wrote",
        )
    record, content = inspect_export(folder, hashes=False)
    if RECORD not in record.files:
        raise _unusable(folder, content)
    build_record, account = _read_record(folder / RECORD)
    names = build_record.manifest.parts
    needed = [f"{name}/{file}" for name in names for file in ("model.onnx", GRAPH)]
    if absent := [name for name in needed if name not in record.files]:
        raise EnvironmentProblem(
            f"{folder / EXPORT} does not list {', '.join(absent)}", why=f"{RECORD} requires these files", fix=_AGAIN
        )
    hashes = {
        name: "-".join(record.files[file].sha256 for file in sorted(record.files) if file.startswith(f"{name}/model."))
        for name in names
    }
    return ExportFolder(folder, build_record, account, record.files, hashes)


def _unusable(folder: Path, content: Mapping[str, Any]) -> UsageError:
    purpose = str(content.get("for"))
    if not purpose.startswith(TENSORRT.name):
        why, fix = f"the export is for {purpose}, not for TensorRT", "export again with --for tensorrt --gpu NAME"
    else:
        why = "the export was made without a draft method, or by an earlier version of peagle-compile"
        fix = "export again with --draft and a head, or a method that needs no head"
    return UsageError(f"no engine can be built from {folder}", why=why, fix=fix)


def _read_record(path: Path) -> tuple[BuildRecord, GraphAccount]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise EnvironmentProblem(f"{path} cannot be read", why=str(error), fix=_AGAIN) from None
    version = content.get("format_version") if isinstance(content, dict) else None
    if type(version) is int and version > FORMAT_VERSION:
        raise EnvironmentProblem(
            f"{path} has format {version}, but this version of peagle-compile reads formats up to {FORMAT_VERSION}",
            why="the export was made with a later version",
            fix=f"upgrade peagle-compile here ({upgrade()}), or export again with this version",
        )
    problems: list[str] = []
    proofs, calibration = {}, None
    if isinstance(content, dict):
        proofs, calibration = content.pop("proofs", {}), content.pop("calibration", None)
    record = decode(BuildRecord, content, problems)
    problems += [] if isinstance(proofs, dict) else ["proofs must be an object"]
    if record and (lowering := record.manifest.backend.lowering) not in LOWERINGS:
        problems.append(f"unknown lowering {lowering!r}")
    if record is None or problems:
        raise EnvironmentProblem(f"{path} is not a valid build record", why="; ".join(problems), fix=_AGAIN)
    return record, GraphAccount(dict.fromkeys(record.manifest.parts, ""), proofs, calibration=calibration)
