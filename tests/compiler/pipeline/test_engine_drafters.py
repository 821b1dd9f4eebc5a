"""Drafters of a finished engine: adding one does not change the target, and an unsuitable one is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file
from safetensors.torch import load_file as load_torch

from peagle.compiler.console import exit_cleanup
from peagle.compiler.pipeline import engine_drafters
from peagle.compiler.pipeline.build import build
from peagle.compiler.pipeline.engine_drafters import DrafterRequest, add_drafter, list_drafters, remove_drafter
from peagle.compiler.pipeline.graph_stages import attach
from peagle.compiler.request.request import HeadOptions
from peagle.compiler.request.verb_options import BUILD
from peagle.compiler.store.locks import locked
from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.checks import check_files
from peagle.engines.folder.manifest import BUILT_IN, FILE_NAME, Manifest
from peagle.engines.folder.records import FileEntry, Speculation
from peagle.plugins.errors import BuildError, EnvironmentProblem, PeagleError, UsageError
from tests.models import Pair
from tests.recorded_steps import RecordedSteps


@pytest.fixture
def engine(tiny_folder: Path, tmp_path: Path) -> Path:
    """The tiny engine, whose caches have room for 6 drafts."""
    return Path(shutil.copytree(tiny_folder, tmp_path / "engine"))


@pytest.fixture
def head(tiny_pair: Pair, tmp_path: Path) -> Path:
    """A copy of its head, to be changed as a test likes."""
    return Path(shutil.copytree(tiny_pair.head, tmp_path / "other"))


def content_of(folder: Path) -> dict[str, FileEntry]:
    """Every file below a folder."""
    return {str(path.relative_to(folder)): FileEntry.of(path) for path in folder.rglob("*") if path.is_file()}


def configure(head: Path, **entries: Any) -> None:
    """Change entries of a head's configuration."""
    path = head / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def change(head: Path, **weights: Any) -> None:
    """Change weights of a head; None removes one."""
    path = head / "model.safetensors"
    changed = load_file(path) | {name.replace("__", "."): value for name, value in weights.items()}
    save_file({name: value for name, value in changed.items() if value is not None}, path)


def refused(engine: Path, head: Path | str, kind: type[PeagleError] = UsageError, **options: Any) -> str:
    """The error of an addition, which leaves no trace."""
    before = content_of(engine)
    with pytest.raises(kind) as caught:
        add_drafter(DrafterRequest(engine, str(head), **options))
    assert content_of(engine) == before
    assert not (engine / "drafters").exists()
    return str(caught.value)


def test_added_drafter_has_files_of_its_own_and_no_other_changes(engine: Path, eagle3_pair: Pair) -> None:
    before = content_of(engine)
    added = add_drafter(DrafterRequest(engine, str(eagle3_pair.head), "new"))
    after = content_of(engine)
    assert {name for name, entry in before.items() if after[name] != entry} == {FILE_NAME}
    assert {name.rpartition("/")[0] for name in after.keys() - before.keys()} == {"drafters/new"}
    assert added.bytes == sum(entry.size for name, entry in after.items() if name not in before)
    manifest = Manifest.read(engine)
    check_files(manifest.files, engine)
    assert {*manifest.files} == {*after} - {FILE_NAME}
    assert manifest.drafters == {"new": added.record}
    assert (added.record.method, added.record.speculation.num_speculative_tokens) == ("eagle3", 6)
    assert [(each.name, each.record.method) for each in list_drafters(engine)] == [
        (BUILT_IN, "peagle"),
        ("new", "eagle3"),
    ]


def test_text_is_the_same_with_the_added_drafter(engine: Path, eagle3_pair: Pair) -> None:
    add_drafter(DrafterRequest(engine, str(eagle3_pair.head), "new", num_speculative_tokens=3))
    params = [SamplingParams(max_tokens=12, temperature=each, seed=7, ignore_eos=True) for each in (0.0, 1.0)]
    with Engine.load(engine, threads=1, draft="new") as loaded:
        plain, drafted = ([loaded.generate([[5, 9]], each, draft=how)[0] for each in params] for how in ("none", None))
    assert [each.token_ids for each in plain] == [each.token_ids for each in drafted]
    assert {(each.draft, each.drafter) for each in drafted} == {("eagle3", "new")}
    assert all(each.acceptance.drafted for each in drafted)


def test_drafter_has_the_number_types_that_a_build_would_choose(drafters_folder: Path) -> None:
    built_in, noisy, twin = list_drafters(drafters_folder)
    assert {each.record.precision for each in (built_in, noisy, twin)} == {"int8"}
    assert replace(twin.record.part, origin=built_in.record.part.origin, file="") == replace(
        built_in.record.part, file=""
    )


def test_drafts_are_limited_by_the_room_of_the_caches(engine: Path, head: Path) -> None:
    configure(head, num_speculative_tokens=9)
    added = add_drafter(DrafterRequest(engine, str(head)))
    assert added.record.speculation.max_num_speculative_tokens == 6
    assert "trained for 9 drafts, but the engine's caches have room for 6" in added.warnings[0]


def test_layer_ids_that_have_two_meanings_are_described_unless_they_are_overridden(
    engine: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny target has too few layers for a second meaning."""
    name, taps = "eagle_aux_hidden_state_layer_ids", [*Manifest.read(engine).shapes.taps]
    configure(head, **{name: None, "eagle_config": {name: taps}})
    monkeypatch.setattr(engine_drafters, "doubts_of_taps", lambda head, _: [f"read as {head['eagle_config'][name]}"])
    assert f"read as {taps}" in add_drafter(DrafterRequest(engine, str(head), "one")).warnings
    stated = DrafterRequest(engine, str(head), "two", head=HeadOptions(taps=tuple(map(str, taps))))
    assert f"read as {taps}" not in add_drafter(stated).warnings


@pytest.mark.parametrize("k", [0, 7])
def test_impossible_number_of_drafts_is_refused(engine: Path, head: Path, k: int) -> None:
    said = refused(engine, head, num_speculative_tokens=k)
    assert f"--num-speculative-tokens {k} is not between 1 and 6" in said


def test_head_that_reads_other_layers_is_refused(engine: Path, head: Path, tiny_pair: Pair) -> None:
    taps = Manifest.read(engine).shapes.taps
    configure(head, eagle_aux_hidden_state_layer_ids=[taps[0] - 1, *taps[1:]])
    said = refused(engine, head)
    assert f"the head reads the target's layers {taps[0] - 1}, {taps[1]}, {taps[2]} (its taps)" in said
    assert f"`peagle-compile build --model {tiny_pair.target} --draft {head}`" in said
    added = add_drafter(DrafterRequest(engine, str(head), head=HeadOptions(taps=tuple(map(str, taps)))))
    assert added.name == "other"


def test_engine_that_was_built_without_a_head_takes_none(engine: Path, head: Path) -> None:
    manifest = Manifest.read(engine)
    shapes = replace(manifest.shapes, taps=(), draft_vocab_size=0)
    files = {name: entry for name, entry in manifest.files.items() if not name.startswith("drafter/")}
    shutil.rmtree(engine / "drafter")
    replace(
        manifest, drafter=None, method="none", speculation=Speculation(0, 0, None), shapes=shapes, files=files
    ).write(engine)
    said = refused(engine, head)
    assert "the engine was built without a head, so its target has no outputs that a drafter could read" in said


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ngram", "the name is that of the built-in drafter or of a draft method"),
        (BUILT_IN, "the name is that of the built-in drafter or of a draft method"),
        ("../target", "a name has 1 to 64 letters"),
        ("", "a name has 1 to 64 letters"),
        ("x" * 65, "a name has 1 to 64 letters"),
        (3, "a drafter cannot be named 3"),
    ],
)
def test_unusable_name_is_refused(engine: Path, head: Path, name: Any, said: str) -> None:
    assert said in refused(engine, head, name=name)


def test_name_is_given_once(engine: Path, head: Path) -> None:
    add_drafter(DrafterRequest(engine, str(head)))
    with pytest.raises(UsageError, match="already has a drafter named other") as caught:
        add_drafter(DrafterRequest(engine, str(head)))
    assert f"peagle-compile drafter remove {engine} other" in str(caught.value)


def test_advice_quotes_the_engine_for_a_shell(engine: Path, head: Path) -> None:
    engine = engine.rename(engine.with_name("my engine"))
    add_drafter(DrafterRequest(engine, str(head)))
    with pytest.raises(UsageError, match="already has a drafter") as caught:
        add_drafter(DrafterRequest(engine, str(head)))
    assert f"peagle-compile drafter remove '{engine}' other" in str(caught.value)


def test_draft_method_is_refused_as_a_head(engine: Path) -> None:
    assert "--draft ngram is not a head" in refused(engine, "ngram")


def test_drafter_whose_numbers_overflow_is_not_added(engine: Path, head: Path) -> None:
    norm = load_file(head / "model.safetensors")["norm.weight"]
    change(head, norm__weight=np.full_like(norm, 3e38), lm_head__weight=None)
    said = refused(engine, head, BuildError)
    assert "NaN or infinite" in said


def data_bytes(engine: Path) -> int:
    """The bytes of all weights of an engine."""
    return sum(path.stat().st_size for path in engine.rglob("*.onnx.data"))


def draft_logits(engine: Path, draft: str) -> np.ndarray:
    with Engine.load(engine, threads=1, draft=draft) as loaded:
        return loaded.draft_logits([5, 9, 30, 2], 3)


def test_head_without_an_embedding_reads_that_in_the_targets_file(
    engine: Path, head: Path, tiny_pair: Pair, tmp_path: Path
) -> None:
    """It drafts what a head drafts that stores the same table, to the bit, and no file holds it again."""
    table = load_torch(tiny_pair.target / "model.safetensors")["model.embed_tokens.weight"].float().numpy()
    change(head, embed_tokens__weight=table)
    before, target = data_bytes(engine), content_of(engine / "target")
    add_drafter(DrafterRequest(engine, str(head), "copying"))
    copying = data_bytes(engine) - before
    change(head, embed_tokens__weight=None)
    add_drafter(DrafterRequest(engine, str(head), "bare"))
    assert data_bytes(engine) - before - copying <= copying - table.nbytes
    np.testing.assert_array_equal(draft_logits(engine, "bare"), draft_logits(engine, "copying"))
    manifest = Manifest.read(engine)
    check_files(manifest.files, engine)
    assert {*manifest.files} == {*content_of(engine)} - {FILE_NAME}
    assert (manifest.format_version, manifest.drafters["bare"].part.file) == (10, "target/bare+drafter.onnx")
    assert manifest.target_files == Manifest.read(tiny_copy(engine, tmp_path)).target_files
    for graph in engine.rglob("*.onnx"):
        onnx.load(graph)
    remove_drafter(engine, "bare")
    assert content_of(engine / "target") == target
    assert Manifest.read(engine).format_version == 8


def tiny_copy(engine: Path, tmp_path: Path) -> Path:
    """The engine without its added drafters."""
    copy = Path(shutil.copytree(engine, tmp_path / "copy"))
    for name in Manifest.read(copy).drafters:
        remove_drafter(copy, name)
    return copy


def test_head_without_an_embedding_reads_the_codes_that_a_build_would_share(
    head: Path, tiny_pair: Pair, tmp_path: Path
) -> None:
    """Of a quantized embedding, which the drafter of the build reads too: it is the same head."""
    change(head, embed_tokens__weight=None)
    out = tmp_path / "engine"
    asked = {"model": str(tiny_pair.target), "draft": str(head), "max_seq_len": 64, "num_speculative_tokens": 2}
    build(BUILD.request(**asked, out=out, precision="int8"))
    add_drafter(DrafterRequest(out, str(head), "again"))
    sizes = {(out / "target" / f"{name}drafter.onnx.data").stat().st_size for name in ("", "again+")}
    assert len(sizes) == 1
    np.testing.assert_array_equal(draft_logits(out, "again"), draft_logits(out, BUILT_IN))


def test_engine_without_the_targets_semantic_graph_takes_the_embedding_from_the_checkpoint(
    engine: Path, head: Path
) -> None:
    """Engines of older versions do not record the location of the embedding in their file."""
    manifest = Manifest.read(engine)
    (engine / "target" / "semantic.onnx").unlink()
    files = {name: entry for name, entry in manifest.files.items() if name != "target/semantic.onnx"}
    replace(manifest, files=files).write(engine)
    change(head, embed_tokens__weight=None)
    assert add_drafter(DrafterRequest(engine, str(head))).record.part.file == "drafters/other/model.onnx"


def test_changed_checkpoint_of_the_target_is_refused_as_a_source_of_weights(
    pair: Pair, head: Path, tmp_path: Path
) -> None:
    out = tmp_path / "engine"
    asked = {"model": str(pair.target), "draft": str(pair.head), "max_seq_len": 64, "num_speculative_tokens": 2}
    build(BUILD.request(**asked, out=out))
    configure(pair.target, some_entry=1)
    add_drafter(DrafterRequest(out, str(head), "whole"))  # needs nothing of it
    change(head, embed_tokens__weight=None)
    add_drafter(DrafterRequest(out, str(head), "bare"))  # the engine has the embedding
    for name in ("whole", "bare"):
        remove_drafter(out, name)
    change(head, lm_head__weight=None)
    said = refused(out, head, EnvironmentProblem)
    assert "was changed after the build" in said
    assert "the head takes lm_head.weight from the target" in said
    shutil.rmtree(pair.target)
    assert "cannot be opened" in refused(out, head, EnvironmentProblem)


def test_removing_a_drafter_restores_the_engine(engine: Path, head: Path, eagle3_pair: Pair) -> None:
    before = content_of(engine)
    add_drafter(DrafterRequest(engine, str(head)))
    add_drafter(DrafterRequest(engine, str(eagle3_pair.head), "new"))
    assert remove_drafter(engine, "other").name == "other"
    manifest = Manifest.read(engine)
    check_files(manifest.files, engine)
    assert [*manifest.drafters] == ["new"]
    remove_drafter(engine, "new")
    assert content_of(engine) == before
    assert not (engine / "drafters").exists()


def test_removing_a_drafter_shows_that_it_waits_for_another_command(engine: Path, head: Path) -> None:
    add_drafter(DrafterRequest(engine, str(head)))
    others = ExitStack()
    progress = RecordedSteps(others.close)
    others.enter_context(locked(engine))
    remove_drafter(engine, "other", progress)
    assert progress.steps == [f"wait for another command that uses {engine}"]


@pytest.mark.parametrize(
    ("name", "said"), [(BUILT_IN, "built with this drafter"), ("gone", "the added drafters are: none")]
)
def test_only_added_drafters_can_be_removed(engine: Path, name: str, said: str) -> None:
    before = content_of(engine)
    with pytest.raises(UsageError, match=said):
        remove_drafter(engine, name)
    assert content_of(engine) == before


def test_folder_without_an_engine_is_refused(tmp_path: Path, head: Path) -> None:
    for call in (
        lambda: add_drafter(DrafterRequest(tmp_path, str(head))),
        lambda: list_drafters(tmp_path),
        lambda: remove_drafter(tmp_path, "other"),
    ):
        with pytest.raises(EnvironmentProblem, match="is not an engine folder"):
            call()


def test_stop_during_the_checks_of_a_drafter_leaves_no_files(
    engine: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the process ends at once, without unwinding: it removes the registered paths."""
    before, registered = content_of(engine), []

    def stop(*_: Any) -> None:
        registered.extend(exit_cleanup._paths)
        raise KeyboardInterrupt

    change(head, embed_tokens__weight=None)
    monkeypatch.setattr(engine_drafters, "_require_numbers", stop)
    with pytest.raises(KeyboardInterrupt):
        add_drafter(DrafterRequest(engine, str(head), "new"))
    assert content_of(engine) == before
    assert not (engine / "drafters").exists()
    assert {engine / "drafters" / "new", engine / "target" / "new+drafter.onnx"} <= {*registered}


def test_stop_after_the_manifest_lists_a_drafter_keeps_its_files(
    engine: Path, head: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deferred = []
    write = Manifest.write

    def write_and_stop(manifest: Manifest, folder: Path) -> None:
        write(manifest, folder)
        deferred.append(exit_cleanup.stops_are_deferred())

    monkeypatch.setattr(Manifest, "write", write_and_stop)
    add_drafter(DrafterRequest(engine, str(head), "new"))
    assert deferred == [True]
    assert engine / "drafters" / "new" not in exit_cleanup._paths
    check_files(Manifest.read(engine).files, engine)


def with_less_room(manifest: Manifest) -> Manifest:
    return replace(manifest, speculation=Speculation(2, 2, manifest.speculation.trained_depth))


def with_other_weights(manifest: Manifest) -> Manifest:
    return replace(manifest, files={**manifest.files, "target/model.onnx.data": FileEntry(1, "0" * 64)})


@pytest.mark.parametrize("changed", [with_less_room, with_other_weights])
def test_drafter_is_not_added_to_an_engine_that_replaced_its_own(
    engine: Path, head: Path, monkeypatch: pytest.MonkeyPatch, changed: Callable[[Manifest], Manifest]
) -> None:
    def attach_and_rebuild(*given: Any, **named: Any) -> Any:
        changed(Manifest.read(engine)).write(engine)
        return attach(*given, **named)

    monkeypatch.setattr(engine_drafters, "attach", attach_and_rebuild)
    with pytest.raises(UsageError, match="was changed while the drafter was being made"):
        add_drafter(DrafterRequest(engine, str(head)))
    assert Manifest.read(engine).drafters == {}
    assert not (engine / "drafters").exists()


def test_leftovers_of_a_killed_addition_do_no_harm(engine: Path, head: Path) -> None:
    (engine / "drafters" / "other").mkdir(parents=True)
    (engine / "drafters" / "other" / "model.onnx").write_text("half a graph")
    check_files(Manifest.read(engine).files, engine)
    add_drafter(DrafterRequest(engine, str(head)))
    check_files(Manifest.read(engine).files, engine)


def test_engine_behind_a_link_takes_a_drafter_and_loses_it(engine: Path, head: Path, tmp_path: Path) -> None:
    before, link = content_of(engine), tmp_path / "current"
    link.symlink_to(engine)
    add_drafter(DrafterRequest(link, str(head), "new"))
    assert [*Manifest.read(engine).drafters] == ["new"]
    remove_drafter(link, "new")
    assert content_of(engine) == before


def test_head_in_the_place_of_its_drafter_is_not_replaced(engine: Path, head: Path) -> None:
    place = engine / "drafters" / "other"
    shutil.copytree(head, place)
    before = content_of(engine)
    with pytest.raises(UsageError, match="exists but is not a drafter of this engine"):
        add_drafter(DrafterRequest(engine, str(place)))
    assert content_of(engine) == before
    assert add_drafter(DrafterRequest(engine, str(place), "new")).name == "new"


@pytest.mark.parametrize("kind", ["link", "file", "link to a head"])
def test_drafters_path_that_is_not_a_folder_is_left_unchanged(
    engine: Path, head: Path, tmp_path: Path, kind: str
) -> None:
    place, elsewhere = engine / "drafters", tmp_path / "elsewhere"
    shutil.copytree(head, elsewhere / "other")
    if kind == "link":
        place.symlink_to(elsewhere)
    elif kind == "file":
        place.write_text("somebody's")
    else:
        place.mkdir()
        (place / "other").symlink_to(elsewhere / "other")
    before = content_of(engine), content_of(elsewhere)
    with pytest.raises(UsageError, match=r"can(not)? be added to"):
        add_drafter(DrafterRequest(engine, str(head)))
    assert (content_of(engine), content_of(elsewhere)) == before


def test_drafter_with_missing_files_can_be_removed(engine: Path, head: Path) -> None:
    before = content_of(engine)
    add_drafter(DrafterRequest(engine, str(head)))
    shutil.rmtree(engine / "drafters" / "other")
    assert remove_drafter(engine, "other").name == "other"
    assert content_of(engine) == before


@pytest.mark.parametrize("shares", [False, True])
def test_leftovers_of_a_killed_removal_go_with_the_next_change(
    engine: Path, head: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    before = content_of(engine)
    if shares:
        change(head, embed_tokens__weight=None)
    add_drafter(DrafterRequest(engine, str(head)))
    add_drafter(DrafterRequest(engine, str(head), "new"))
    with monkeypatch.context() as patch:
        patch.setattr(engine_drafters, "remove", lambda _: None)  # as if the process were killed here
        remove_drafter(engine, "other")
    assert content_of(engine).keys() - {*Manifest.read(engine).files, FILE_NAME}
    remove_drafter(engine, "new")
    assert content_of(engine) == before
