"""The manifest of the engine folder is read back as written, and damage is refused by name."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peagle.engines.folder.checks import LARGE, Check, check_files, check_gpu, check_runtime, files_to_hash
from peagle.engines.folder.manifest import BUILT_FORMAT, BUILT_IN, FILE_NAME, FORMAT_VERSION, Manifest, in_oldest_format
from peagle.engines.folder.records import (
    AddedDrafter,
    BackendRecord,
    BatchCosts,
    Cache,
    Evidence,
    FileEntry,
    MeasuredRounds,
    Origin,
    Part,
    PlanRecord,
    PlanTensor,
    Profile,
    Shapes,
    Speculation,
)
from peagle.plugins.errors import EnvironmentProblem

FILES = {"target/model.onnx": b"target graph", "drafter/model.onnx": b"drafter graph", "tokenizer.json": b"{}"}

# The manifest fields of an engine without a drafter.
MEASURED = Speculation(5, 8, 8, adapts=True)
ALONE = {
    "speculation": Speculation(0, 0, None), "shapes": Shapes(64, 66, 16, 100, 0, ()),
    "drafter": None, "method": "none",
}  # fmt: skip
# Those of an engine with n-gram drafts.
LOOKED_UP = {
    "speculation": Speculation(3, 4, None), "shapes": Shapes(64, 72, 16, 100, 0, ()),
    "drafter": None, "method": "ngram",
}  # fmt: skip


def manifest_of(files: dict[str, FileEntry], **changes: Any) -> Manifest:
    part = {"inputs": ("input_ids", "start"), "outputs": ("tokens",), "caches": (Cache(2, 32), Cache(2, 32))}
    manifest = Manifest(
        product_version="0.1.0",
        target=Part(
            origin=Origin("demo", "ab" * 32, "/models/target", "Qwen3ForCausalLM"), file="target/model.onnx", **part
        ),
        drafter=Part(origin=Origin("demo", "cd" * 32, "/models/head", "Llama"), file="drafter/model.onnx", **part),
        backend=BackendRecord("onnxruntime", "ort", {"onnxruntime": "1.31.1"}),
        precision={"recipe": "fp32"},
        speculation=Speculation(5, 8, None),
        shapes=Shapes(64, 80, 16, 100, 100, (2, 4, 5)),
        eos_token_ids=(0,),
        files=files,
        format_version=BUILT_FORMAT,
        method="peagle",
        evidence=(Evidence("parity", "against torch"),),
    )
    return dataclasses.replace(manifest, **changes)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    manifest_of({name: FileEntry.of(tmp_path / name) for name in FILES}).write(tmp_path)
    return tmp_path


def edit(engine: Path, **changes: Any) -> None:
    """Change fields of ``engine.json`` without caring for its digest."""
    content = json.loads((engine / FILE_NAME).read_text())
    (engine / FILE_NAME).write_text(json.dumps(content | changes))


def refusal(engine: Path, *, hashes: bool = True) -> EnvironmentProblem:
    with pytest.raises(EnvironmentProblem) as caught:
        check_files(Manifest.read(engine).files, engine, hashes=hashes)
    assert caught.value.exit_code == 3
    assert caught.value.fix
    return caught.value


def test_a_whole_folder_passes(engine: Path) -> None:
    manifest = Manifest.read(engine)
    check_files(manifest.files, engine)
    assert manifest.files["tokenizer.json"].size == 2


names = st.text(string.ascii_letters + string.digits + "é", min_size=1, max_size=8)
counts = st.integers(1, 1 << 40)
entries = st.builds(FileEntry, st.integers(0, 1 << 50), st.text("0123456789abcdef", min_size=64, max_size=64))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    product_version=names,
    backend=st.builds(BackendRecord, names, names, st.dictionaries(names, names)),
    precision=st.dictionaries(names, names),
    k=st.integers(1, 20),
    spare=st.integers(0, 20),
    depth=st.none() | st.integers(1, 20),
    sizes=st.tuples(counts, counts, counts, counts),
    taps=st.lists(st.integers(0, 100)).map(tuple),
    eos=st.lists(st.integers(0, 1 << 31)).map(tuple),
    caches=st.lists(st.builds(Cache, counts, counts)).map(tuple),
    more=st.dictionaries(names, entries),
    evidence=st.lists(st.builds(Evidence, names, st.text())).map(tuple),
)
def test_manifest_round_trips(
    tmp_path: Path, k: int, spare: int, depth: int | None, sizes: tuple[int, int, int, int], taps: tuple[int, ...],
    eos: tuple[int, ...], caches: tuple[Cache, ...], more: dict[str, FileEntry], **fields: Any,
) -> None:  # fmt: skip
    length, *rest = sizes
    files = {name: FileEntry(1, "0" * 64) for name in FILES} | more
    manifest = manifest_of(
        files,
        speculation=Speculation(k, k + spare, depth),
        shapes=Shapes(length, length + 2 * (k + spare), rest[0], rest[1], rest[2], taps),
        eos_token_ids=eos,
        **fields,
    )
    manifest = dataclasses.replace(manifest, target=dataclasses.replace(manifest.target, caches=caches))
    manifest.write(tmp_path)
    assert Manifest.read(tmp_path) == manifest


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(data=st.data())
def test_no_tampered_byte_is_accepted(engine: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([FILE_NAME, *FILES]))
    original = (engine / name).read_bytes()
    honest = Manifest.read(engine)
    at = data.draw(st.integers(0, len(original) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda b: b != original[at]))
    (engine / name).write_bytes(original[:at] + bytes([byte]) + original[at + 1 :])
    try:
        accepted = accepts(engine)
    finally:
        (engine / name).write_bytes(original)
    # white space in the manifest may change without changing its meaning
    assert accepted is None or (name == FILE_NAME and accepted == honest)


def accepts(engine: Path) -> Manifest | None:
    """Return the values that a load would use, or None if it refuses."""
    try:
        manifest = Manifest.read(engine)
        check_files(manifest.files, engine)
    except EnvironmentProblem:
        return None
    return manifest


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_truncated_file_is_accepted(engine: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([FILE_NAME, *FILES]))
    original = (engine / name).read_bytes()
    length = data.draw(st.integers(0, len(original) - 2))  # the last newline has no meaning
    (engine / name).write_bytes(original[:length])
    try:
        assert name in str(refusal(engine, hashes=False))
    finally:
        (engine / name).write_bytes(original)


def test_a_folder_without_a_manifest_is_not_an_engine(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for name, why in (("", FILE_NAME), ("absent", "the folder does not exist"), ("file", "it is not a folder")):
        problem = refusal(tmp_path / name)
        assert why in problem.why
        assert "build --out" in problem.fix


def test_engine_without_drafter_is_valid(engine: Path) -> None:
    dataclasses.replace(Manifest.read(engine), **ALONE).write(engine)
    assert list(Manifest.read(engine).parts) == ["target"]


def test_a_missing_file_is_named(engine: Path) -> None:
    (engine / "tokenizer.json").unlink()
    assert str(engine / "tokenizer.json") in refusal(engine).what


def test_a_folder_in_the_place_of_a_file_is_refused(engine: Path) -> None:
    (engine / "tokenizer.json").unlink()
    (engine / "tokenizer.json").mkdir()
    assert "tokenizer.json" in refusal(engine).what


@pytest.mark.parametrize("name", ["a" * 300, "a/" * 3000 + "a"])
def test_a_path_that_no_disk_takes_is_refused(engine: Path, name: str) -> None:
    files = Manifest.read(engine).files
    dataclasses.replace(Manifest.read(engine), files={**files, name: FileEntry(0, "0" * 64)}).write(engine)
    assert "cannot read" in refusal(engine).what


def test_a_version_of_very_many_digits_is_compared(engine: Path) -> None:
    manifest = Manifest.read(engine)
    with pytest.raises(EnvironmentProblem, match="built with onnxruntime"):
        check_runtime(
            dataclasses.replace(manifest.backend, versions={"onnxruntime": "9" * 5000}), {"onnxruntime": "1.31.0"}
        )


@pytest.mark.parametrize(
    ("check", "large", "hashed"),
    [
        ("auto", False, ["cpu_kernels.so", "model.onnx", "model.onnx.data"]),
        ("auto", True, ["cpu_kernels.so", "model.onnx"]),
        ("hashes", True, ["cpu_kernels.so", "model.onnx", "model.onnx.data"]),
        ("sizes", False, []),
    ],
)
def test_only_the_weights_of_large_engines_are_not_hashed_on_load(check: Check, large: bool, hashed: list[str]) -> None:
    sizes = {"cpu_kernels.so": 10, "model.onnx": 20, "model.onnx.data": LARGE if large else LARGE - 31}
    files = {name: FileEntry(size, "0" * 64) for name, size in sizes.items()}
    assert [*files_to_hash(files, check)] == hashed


def test_sizes_alone_can_be_checked(engine: Path) -> None:
    (engine / "tokenizer.json").write_bytes(b"[]")
    check_files(Manifest.read(engine).files, engine, hashes=False)
    assert "hash" in refusal(engine).why


def test_future_format_error_explains_the_fix(engine: Path) -> None:
    edit(engine, format_version=FORMAT_VERSION + 1, product_version="9.0", something_new=[1])
    problem = refusal(engine)
    assert f"format {FORMAT_VERSION + 1}" in problem.what
    assert f"formats up to {FORMAT_VERSION}" in problem.what
    assert "9.0" in problem.why
    assert "install that version" in problem.fix


def test_older_format_error_suggests_a_rebuild(engine: Path) -> None:
    edit(engine, format_version=BUILT_FORMAT - 1, something_old=[1])
    problem = refusal(engine)
    assert f"format {BUILT_FORMAT - 1}, but this version reads formats from {BUILT_FORMAT}" in problem.what
    assert "rebuild the engine" in problem.fix


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"[]", b"null", b'"engine"', b"9" * 5000])
def test_non_object_json_is_rejected(engine: Path, content: bytes) -> None:
    (engine / FILE_NAME).write_bytes(content)
    assert FILE_NAME in refusal(engine).what


def test_every_wrong_type_is_named_at_once(engine: Path) -> None:
    content = json.loads((engine / FILE_NAME).read_text())
    content["shapes"]["max_seq_len"] = "64"
    content["shapes"]["taps"] = [2, True]
    content["target"]["origin"] = None
    del content["backend"]
    content["extra"] = 1
    (engine / FILE_NAME).write_text(json.dumps(content))
    why = refusal(engine).why
    for name in ("shapes.max_seq_len", "shapes.taps[1]", "target.origin", "backend is missing", "extra is not a known"):
        assert name in why


def test_number_larger_than_any_float_is_named(engine: Path) -> None:
    measured = Speculation(5, 8, None, adapts=True, measured=MeasuredRounds((1.0, 1.5), (1.0, 1.25)))
    replace(Manifest.read(engine), speculation=measured, format_version=8).write(engine)
    content = json.loads((engine / FILE_NAME).read_text())
    content["speculation"]["measured"]["costs"][1] = 10**400
    (engine / FILE_NAME).write_text(json.dumps(content))
    assert "speculation.measured.costs[1] is larger than any float" in refusal(engine).why


def test_adaptive_k_is_stored(engine: Path) -> None:
    manifest = Manifest.read(engine)
    assert "adapts" not in json.loads((engine / FILE_NAME).read_text())["speculation"]
    measured = MeasuredRounds((1.0, 1.5), (1.0, 1.25))
    with_rounds = Speculation(5, 8, None, adapts=True, measured=measured)
    with_batches = Speculation(
        5, 8, None, adapts=True, measured=replace(measured, batches=(BatchCosts(2, (1.0, 1.4)),))
    )
    for version, adapting in (
        (7, Speculation(5, 8, None, adapts=True)),
        (7, with_rounds),
        (8, with_rounds),
        (9, with_batches),
    ):
        dataclasses.replace(manifest, speculation=adapting, format_version=version).write(engine)
        assert (Manifest.read(engine).speculation, Manifest.read(engine).format_version) == (adapting, version)
        stored = json.loads((engine / FILE_NAME).read_text())["speculation"].get("measured", {})
        assert ("batches" in stored) == (version == 9)
    assert version == FORMAT_VERSION - 2  # newer: drafters that read the target's file; the GPU of a plan


def test_manifests_have_the_oldest_format_that_has_all_of_them(engine: Path) -> None:
    manifest = Manifest.read(engine)
    measured = MeasuredRounds((1.0, 1.5), (1.0, 1.25))
    for rounds, version in ((measured, 7), (replace(measured, batches=(BatchCosts(2, (1.0, 1.4)),)), 9)):
        changed = replace(manifest, speculation=Speculation(5, 8, None, adapts=True, measured=rounds))
        assert in_oldest_format(changed).format_version == version
    replace(changed, format_version=8, method="peagle").write(engine)
    assert "batches requires format 9" in refusal(engine).why


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../secret", "target/../../secret", "a\\b", "C:x", ".", "", "a//b", "./a", "a\0b"]
)
def test_a_path_that_leaves_the_folder_is_refused(engine: Path, name: str) -> None:
    files = Manifest.read(engine).files
    dataclasses.replace(Manifest.read(engine), files={**files, name: FileEntry(0, "0" * 64)}).write(engine)
    assert "not a path inside the folder" in refusal(engine).why


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"speculation": Speculation(9, 8, 8)}, "between 1 and max_num_speculative_tokens"),
        ({"speculation": Speculation(0, 8, 8)}, "between 1 and max_num_speculative_tokens"),
        ({"shapes": Shapes(64, 79, 16, 100, 100, ())}, "is too small"),
        ({"shapes": Shapes(0, 80, 16, 100, 100, ())}, "max_seq_len must be at least 1"),
        ({"files": {}}, "not listed in files"),
        ({"format_version": 0}, "does not exist"),
        (
            {"drafter": None, "method": "none"},
            "without a drafter, trained_depth, draft_vocab_size and taps must be empty",
        ),
        (ALONE | {"speculation": Speculation(0, 4, None)}, "between 1 and max_num_speculative_tokens"),
        (LOOKED_UP | {"shapes": Shapes(64, 71, 16, 100, 0, ())}, "is too small"),
        *(
            ({"speculation": replace(MEASURED, measured=MeasuredRounds(*of))}, "cost above 0")
            for of in [((), ()), ((1.0,), (1.0, 2.0)), ((0.5,), (1.0,)), ((1.0,), (0.0,)), ((math.nan,), (1.0,))]
        ),
        ({"speculation": replace(MEASURED, measured=MeasuredRounds((1.0,) * 10, (1.0,) * 10))}, "cost above 0"),
        *(
            (
                {
                    "speculation": replace(
                        MEASURED,
                        measured=MeasuredRounds((1.0, 2.0), (1.0, 1.5), tuple(BatchCosts(*of) for of in batches)),
                    ),
                    "format_version": 9,
                },
                "measured.batches needs",
            )
            for batches in (
                [(1, (1.0, 1.5))],
                [(4, (1.0, 1.5)), (2, (1.0, 1.5))],
                [(2, (1.0, 1.5)), (2, (1.0, 1.5))],
                [(2, (1.0,))],
                [(2, (1.0, 0.0))],
                [(2, (1.0, math.inf))],
            )
        ),
        (ALONE | {"shapes": Shapes(64, 65, 16, 100, 0, ())}, "is too small"),
    ],
)
def test_a_manifest_that_cannot_be_true_is_refused(engine: Path, changes: dict[str, Any], complaint: str) -> None:
    dataclasses.replace(Manifest.read(engine), **changes).write(engine)
    assert complaint in refusal(engine).why


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"method": "suffix"}, "unknown draft method 'suffix'"),
        ({"method": "ngram"}, "method ngram must not have a drafter"),
        ({"method": "eagle3"}, "method eagle3 needs another kind of drafter"),
        (ALONE | {"method": "peagle"}, "method peagle requires a drafter"),
        (LOOKED_UP | {"method": "none"}, "method none does not draft, but speculation allows drafts"),
    ],
)
def test_a_method_that_cannot_be_is_refused(engine: Path, changes: dict[str, Any], complaint: str) -> None:
    replace(Manifest.read(engine), **changes | {"format_version": FORMAT_VERSION}).write(engine)
    assert complaint in str(refusal(engine))


def test_a_hand_edited_manifest_is_refused(engine: Path) -> None:
    edit(engine, eos_token_ids=[1])
    assert "changed after the build" in refusal(engine).what


@pytest.mark.parametrize(
    ("version", "accepted"), [("1.31.0", True), ("1.40.2", True), ("2.0", True), ("1.30.9", False)]
)
def test_only_an_older_runtime_is_refused(engine: Path, version: str, accepted: bool) -> None:
    manifest = Manifest.read(engine)
    if accepted:
        check_runtime(manifest.backend, {"onnxruntime": version})
        return
    with pytest.raises(EnvironmentProblem, match=r"built with onnxruntime 1\.31\.1, but 1\.30\.9 is installed"):
        check_runtime(manifest.backend, {"onnxruntime": version})


def test_manifest_is_written_atomically(engine: Path) -> None:
    Manifest.read(engine).write(engine)
    assert sorted(path.name for path in engine.iterdir()) == ["drafter", FILE_NAME, "target", "tokenizer.json"]


# ------------------------------------------------------------------------------------------------ TensorRT plans


GRAPH = "drafters/code/model.onnx"


def with_drafter(folder: Path, name: str = "code", file: str = GRAPH, **changes: Any) -> Manifest:
    """The engine's manifest with an added drafter; ``changes`` are of its record."""
    honest = Manifest.read(folder)
    added = AddedDrafter("peagle", replace(honest.drafter, file=file), Speculation(3, 4, 4), 60, "int8")
    files = honest.files | {file: FileEntry(3, "1" * 64)}
    return replace(
        honest, drafters={name: replace(added, **changes)}, files=files, format_version=FORMAT_VERSION, method="peagle"
    )


def test_added_drafters_are_read_back_and_engines_without_any_do_not_mention_them(engine: Path) -> None:
    assert "drafters" not in json.loads((engine / FILE_NAME).read_text())
    manifest = with_drafter(engine)
    manifest.write(engine)
    assert Manifest.read(engine) == manifest


def test_engine_with_a_drafter_is_that_engine_with_its_graph_sizes_and_files(engine: Path) -> None:
    manifest = with_drafter(engine)
    using, own = manifest.using("code"), manifest.using(BUILT_IN)
    added = manifest.drafters["code"]
    assert (using.drafter, using.speculation) == (added.part, added.speculation)
    assert using.shapes == replace(manifest.shapes, draft_vocab_size=60)
    assert using.precision == {"recipe": "fp32", "drafter": "int8"}
    assert using.evidence == ()
    assert (using.drafter_name, own.drafter_name) == ("code", BUILT_IN)
    assert {*using.files} - {*own.files} == {GRAPH}
    assert replace(own, files=manifest.files) == manifest
    assert (using.max_drafts, own.max_drafts) == (8, 8)


def test_files_of_a_drafter_beside_the_target_are_not_the_targets(engine: Path) -> None:
    manifest = with_drafter(engine, file="target/code+drafter.onnx")
    in_oldest_format(manifest).write(engine)
    read = Manifest.read(engine)
    assert (read.format_version, read.using("code").drafter_name) == (10, "code")
    assert "target/code+drafter.onnx" in read.using("code").files
    assert "target/code+drafter.onnx" not in {*read.target_files, *read.using(BUILT_IN).files}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"name": "../code"}, "'../code' is not the name of a drafter"),
        ({"name": BUILT_IN}, "is not the name of a drafter"),
        ({"name": "other"}, "drafters['other']: the graph is not in drafters/other/"),
        ({"file": "drafter/other.onnx"}, "the graph is not in drafters/code/"),
        ({"file": "target/other+drafter.onnx"}, "the graph is not in drafters/code/"),
        ({"method": "eagle3"}, "method eagle3 needs another kind of drafter"),
        ({"method": "ngram"}, "method ngram must not have a drafter"),
        ({"draft_vocab_size": 0}, "shapes.draft_vocab_size must be at least 1"),
        ({"speculation": Speculation(3, 9, 9)}, "the drafter drafts more tokens than the caches have room for"),
        ({"speculation": Speculation(5, 4, 4)}, "between 1 and max_num_speculative_tokens"),
    ],
)
def test_added_drafter_that_cannot_be_true_is_refused(engine: Path, changes: dict[str, Any], complaint: str) -> None:
    with_drafter(engine, **changes).write(engine)
    assert complaint in refusal(engine).why


def test_added_drafters_need_their_format_and_a_target_with_taps(engine: Path) -> None:
    manifest, sharing = with_drafter(engine), with_drafter(engine, file="target/code+drafter.onnx")
    replace(manifest, format_version=7).write(engine)
    assert "drafters require format 8" in refusal(engine).why
    replace(sharing, format_version=9).write(engine)
    assert "drafters that read the target's file require format 10" in refusal(engine).why
    replace(manifest, shapes=replace(manifest.shapes, taps=())).write(engine)
    assert "drafters['code']: the target has no taps" in refusal(engine).why


def with_plans(folder: Path, **changes: Any) -> Manifest:
    """The engine's manifest as one of TensorRT-RTX plans; ``changes`` are of the plans."""
    honest = Manifest.read(folder)
    tensors = tuple(PlanTensor(name, "int32", (-1,)) for name in (*honest.target.inputs, *honest.target.outputs))
    plan = PlanRecord(
        (Profile("verify", (1, 8, 8), (1, 9, 9), (1, 9, 9)),), {"PLUGIN_V3": 1}, {"AcceptPrefix": 1}, tensors
    )
    plan = dataclasses.replace(plan, **changes)
    return dataclasses.replace(
        honest,
        target=dataclasses.replace(honest.target, plan=plan),
        drafter=dataclasses.replace(honest.drafter, plan=plan),
        backend=BackendRecord("tensorrt-rtx", "tensorrt", {"tensorrt-rtx": "1.7.1.116"}, ("sm_89", "sm_120")),
    )


def test_plans_are_read_back(engine: Path) -> None:
    manifest = with_plans(engine)
    manifest.write(engine)
    assert Manifest.read(engine) == manifest


def test_gpu_of_a_plan_is_stored_in_a_format_of_its_own(engine: Path) -> None:
    manifest = with_plans(engine)
    manifest.write(engine)
    assert "tuned_on" not in json.loads((engine / FILE_NAME).read_text())["target"]["plan"], "as in earlier versions"
    tuned = with_plans(engine, tuned_on="NVIDIA H200")
    in_oldest_format(tuned).write(engine)
    read = Manifest.read(engine)
    assert (read.format_version, read.target.plan) == (FORMAT_VERSION, tuned.target.plan)
    replace(tuned, format_version=FORMAT_VERSION - 1).write(engine)
    assert f"plan.tuned_on requires format {FORMAT_VERSION}" in refusal(engine).why


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tensors": ()}, "target.plan.tensors do not match its inputs and outputs"),
        ({"profiles": ()}, "target.plan has no profiles"),
        ({"profiles": (Profile("p", (1, 8), (1, 9, 9), (1, 9, 9)),)}, "rows of profile 'p'"),
        ({"profiles": (Profile("p", (1, 8, 4), (1, 9, 9), (1, 9, 9)),)}, "rows of profile 'p'"),
        ({"profiles": (Profile("p", (1, 8, 8), (1, 9, 9), (0, 9, 9)),)}, "emitted of profile 'p'"),
        ({"profiles": (Profile("p", (1, 8, 8), (1, 9, 9), (1, 9, 9), (16, 8)),)}, "positions of profile 'p'"),
        ({"profiles": (Profile("p", (1, 8, 8), (1, 9, 9), (1, 9, 9), (), (2, 1, 1)),)}, "aux_columns of profile 'p'"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(engine: Path, changes: dict[str, Any], complaint: str) -> None:
    with_plans(engine, **changes).write(engine)
    assert complaint in refusal(engine).why


def test_plan_with_reach_has_matching_profiles(engine: Path) -> None:
    manifest = with_plans(engine)
    target, plan = manifest.target, manifest.target.plan
    assert plan is not None
    told = dataclasses.replace(plan, tensors=(*plan.tensors, PlanTensor("positions", "int64", (-1,))))
    part = dataclasses.replace(target, inputs=(*target.inputs, "positions"), plan=told)
    dataclasses.replace(manifest, target=part).write(engine)
    assert "positions of profile 'verify'" in refusal(engine).why


def test_plan_of_an_autoregressive_drafter_has_profiles_with_and_without_features(engine: Path) -> None:
    manifest = with_plans(engine)
    drafter, plan = manifest.drafter, manifest.target.plan
    assert drafter is not None
    assert plan is not None
    told = dataclasses.replace(plan, tensors=(*plan.tensors, PlanTensor("draft_hidden", "float16", (-1, 8))))
    for aux, is_valid in (((), False), ((1, 9, 9), True), ((0, 0, 0), True)):
        profiles = (dataclasses.replace(plan.profiles[0], aux_columns=aux),)
        changed = dataclasses.replace(told, profiles=profiles)
        part = dataclasses.replace(drafter, inputs=(*drafter.inputs, "draft_hidden"), plan=changed)
        dataclasses.replace(manifest, drafter=part, method="eagle3", format_version=FORMAT_VERSION).write(engine)
        if is_valid:
            assert Manifest.read(engine).draft_method.name == "eagle3"
        else:
            assert "drafter.plan: aux_columns of profile 'verify'" in refusal(engine).why


def test_plans_and_gpus_require_each_other(engine: Path) -> None:
    manifest = with_plans(engine)
    for gpus, complaint in (((), "given together"), (("b200",), "'b200' is not a GPU")):
        dataclasses.replace(manifest, backend=dataclasses.replace(manifest.backend, gpus=gpus)).write(engine)
        assert complaint in refusal(engine).why


@pytest.mark.parametrize(("gpu", "words"), [(None, "no NVIDIA GPU"), ("sm_90", "this machine has sm_90")])
def test_other_gpu_is_rejected_with_build_command(engine: Path, gpu: str | None, words: str) -> None:
    manifest = with_plans(engine)
    check_gpu(manifest.backend, "sm_120")
    with pytest.raises(
        EnvironmentProblem, match=r"built for sm_89 and sm_120 with tensorrt-rtx 1\.7\.1\.116"
    ) as caught:
        check_gpu(manifest.backend, gpu)
    assert words in caught.value.what
    assert "--gpu sm_90" in caught.value.fix if gpu else "--backend onnxruntime" in caught.value.fix
    check_gpu(Manifest.read(engine).backend, gpu)  # an engine of graphs runs anywhere


@pytest.mark.parametrize("version", ["1.7.1.115", "1.8.0.0", ""])
def test_plan_requires_its_tensorrt_version(engine: Path, version: str) -> None:
    manifest = with_plans(engine)
    check_runtime(manifest.backend, {"tensorrt-rtx": "1.7.1.116"})
    with pytest.raises(EnvironmentProblem, match=r"built with tensorrt-rtx 1\.7\.1\.116") as caught:
        check_runtime(manifest.backend, {"tensorrt-rtx": version} if version else {})
    assert "pip install 'tensorrt-rtx==1.7.1.116'" in caught.value.fix


def test_only_a_plan_has_caches_in_a_type_of_their_own(engine: Path) -> None:
    honest = Manifest.read(engine)
    quantized = tuple(dataclasses.replace(cache, dtype="float8e4m3fn") for cache in honest.target.caches)
    dataclasses.replace(honest, target=dataclasses.replace(honest.target, caches=quantized)).write(engine)
    with pytest.raises(EnvironmentProblem, match="onnxruntime does not support cache type"):
        Manifest.read(engine)


def test_manifest_that_cannot_be_written_leaves_the_old_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    manifest = manifest_of({name: FileEntry(1, "0" * 64) for name in FILES})
    manifest.write(tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace(manifest, product_version="another").write(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert Manifest.read(tmp_path) == manifest
