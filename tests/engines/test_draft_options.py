"""The drafter and draft method of a call: the named one, else the engine's, or one that fits."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.pipeline.engine_drafters import DrafterRequest, add_drafter, remove_drafter
from peagle.engines import Engine, EnvironmentProblem, SamplingParams, UsageError, loop
from peagle.engines.draft_options import LoadedDrafters
from peagle.engines.folder.manifest import BUILT_IN, Manifest
from peagle.engines.folder.records import FileEntry
from peagle.engines.policy import misfit
from tests.engines.mixed_requests import GREEDY

CODE = "def area(width, height):\n    return"


@pytest.fixture
def folder(drafters_folder: Path, tmp_path: Path) -> Path:
    """A copy of the engine with drafters, to be changed as a test likes."""
    return Path(shutil.copytree(drafters_folder, tmp_path / "engine"))


@pytest.fixture(scope="module")
def loaded(drafters_folder: Path) -> Iterator[Engine]:
    """Its own drafter and both of the others."""
    with Engine.load(drafters_folder, max_batch_size=2, threads=1, drafters=["twin", "noisy"]) as engine:
        yield engine


def used(engine: Engine, draft: str | None = None, **options: Any) -> tuple[str, str]:
    """The draft method and the drafter of a request."""
    output = engine.generate([CODE], SamplingParams(max_tokens=8, ignore_eos=True), draft=draft, **options)[0]
    return output.draft, output.drafter


@pytest.mark.parametrize(
    ("draft", "expected"),
    [
        (None, ("peagle", BUILT_IN)),
        (BUILT_IN, ("peagle", BUILT_IN)),
        ("peagle", ("peagle", BUILT_IN)),
        ("peagle-chain", ("peagle-chain", BUILT_IN)),
        ("twin", ("peagle", "twin")),
        ("noisy", ("peagle", "noisy")),
        ("ngram", ("ngram", "")),
        ("none", ("none", "")),
    ],
)
def test_call_gets_the_drafter_or_method_that_it_names(
    loaded: Engine, draft: str | None, expected: tuple[str, str]
) -> None:
    assert used(loaded, draft) == expected


def test_plain_decoding_uses_no_drafter(loaded: Engine) -> None:
    assert used(loaded, "twin", num_speculative_tokens=0) == ("none", "")


def test_each_drafter_has_its_own_limit_of_drafts(loaded: Engine) -> None:
    assert used(loaded, "twin", num_speculative_tokens=8) == ("peagle", "twin")
    with pytest.raises(UsageError, match="num_speculative_tokens must be"):
        used(loaded, "noisy", num_speculative_tokens=4)


def test_engine_that_is_loaded_with_a_drafter_uses_it_by_default(drafters_folder: Path) -> None:
    with Engine.load(drafters_folder, threads=1, draft="noisy") as engine:
        assert engine.drafters == ("noisy",)
        assert engine.num_speculative_tokens == 3
        assert used(engine) == ("peagle", "noisy")
        with pytest.raises(UsageError, match="draft is built-in, but that drafter is not loaded") as caught:
            used(engine, BUILT_IN)
        assert "POST /v1/drafters" in str(caught.value)
        engine.load_drafter(BUILT_IN)
        assert used(engine, BUILT_IN, num_speculative_tokens=8) == ("peagle", BUILT_IN)


@pytest.mark.parametrize("draft", ["ngram", "none"])
def test_engine_that_is_loaded_with_a_method_uses_it_by_default(drafters_folder: Path, draft: str) -> None:
    with Engine.load(drafters_folder, threads=1, draft=draft) as engine:
        assert used(engine) == (draft, "")
        assert used(engine, BUILT_IN) == ("peagle", BUILT_IN)
        if draft == "none":
            with pytest.raises(UsageError, match="draft is none, but num_speculative_tokens is 2"):
                used(engine, num_speculative_tokens=2)


def test_drafter_that_is_added_to_a_running_engine_can_be_loaded(folder: Path) -> None:
    with Engine.load(folder, threads=1) as running:
        add_drafter(DrafterRequest(folder, "demo", "late"))
        running.load_drafter("late")
        running.load_drafter("late")  # it is there
        assert running.drafters == (BUILT_IN, "late")
        remove_drafter(folder, "late")
        assert used(running, "late") == ("peagle", "late")
        running.unload_drafter("late")
        with pytest.raises(UsageError, match="draft must be"):
            used(running, "late")


@pytest.mark.parametrize(("slots", "k"), [(1, 4), (3, "auto")])
def test_unloaded_drafter_is_used_to_the_end_of_its_requests_and_then_freed(
    drafters_folder: Path, slots: int, k: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.load(drafters_folder, max_batch_size=slots, threads=1) as engine:
        engine.load_drafter("twin")
        drafter: Any = engine._factory.drafters._others["twin"].drafter
        held = [weakref.ref(each) for each in (drafter, drafter.caches.drafter_stacks[0].base)]
        del drafter
        at_return = list[list[bool]]()
        monkeypatch.setattr(loop, "return_freed_memory", lambda: at_return.append([each() is None for each in held]))
        params = SamplingParams(max_tokens=60, ignore_eos=True)
        texts = [engine.submit(CODE, params, draft="twin", num_speculative_tokens=k) for _ in range(4)]
        gc.disable()  # a server would wait for its next collection
        try:
            engine.unload_drafter("twin")
            assert [each() is None for each in held] == [False, False]
            outputs = [text.result() for text in texts]
            assert [each() is None for each in held] == [True, True]
        finally:
            gc.enable()
        assert at_return == [[True, True]]
        plain = engine.generate([CODE], params, draft="none")[0]
        assert {(each.drafter, each.token_ids) for each in outputs} == {("twin", plain.token_ids)}
        assert outputs[0].acceptance.accepted


def test_drafters_that_cannot_be_loaded_or_unloaded_are_named(loaded: Engine, drafters_folder: Path) -> None:
    for name in ("unknown", "../target", "", ["twin"], None):
        with pytest.raises(UsageError, match=r"the engine has no drafter .*\n.* built-in, .*twin"):
            loaded.load_drafter(name)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="ngram is a draft method, not a drafter"):
        loaded.load_drafter("ngram")
    for name in ("unknown", "", ["twin"], None):
        with pytest.raises(UsageError, match=r"no drafter .* is loaded"):
            loaded.unload_drafter(name)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="the drafter built-in cannot be unloaded"):
        loaded.unload_drafter(BUILT_IN)
    with pytest.raises(UsageError, match="draft must be"):
        Engine.load(drafters_folder, draft="unknown")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("peagle.engines.engine.open_backend", lambda *_: pytest.fail("it opened the engine first"))
        for name, said in (("unknown", "the engine has no drafter 'unknown'"), ("ngram", "is a draft method")):
            with pytest.raises(UsageError, match=said):
                Engine.load(drafters_folder, drafters=[name])
    with pytest.raises(UsageError, match="drafters must be a str or a list of non-empty strings"):
        Engine.load(drafters_folder, drafters=3)  # type: ignore[arg-type]


def test_damaged_drafter_is_not_loaded_and_others_do_not_care(folder: Path) -> None:
    graph = folder / "drafters" / "twin" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[::-1])
    with Engine.load(folder, threads=1) as running:
        with pytest.raises(EnvironmentProblem, match="was changed after the build") as caught:
            running.load_drafter("twin")
        assert f"run `peagle-compile drafter remove {folder} twin`, and add the drafter again" in str(caught.value)
        assert used(running) == ("peagle", BUILT_IN)


def test_drafter_of_another_target_in_the_same_folder_is_not_loaded(
    drafters_folder: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Engine.load(drafters_folder, threads=1) as running:
        monkeypatch.setattr(running, "folder", tiny_folder)
        with pytest.raises(EnvironmentProblem, match="was replaced after it was loaded"):
            running.load_drafter("any")


def test_drafter_for_another_build_of_the_target_is_not_loaded(folder: Path) -> None:
    """The graph of the target has the length of its caches, which the drafter's has too."""
    with Engine.load(folder, threads=1) as running:
        manifest = Manifest.read(folder)
        name, entry = "target/model.onnx", FileEntry(1, "0" * 64)
        replace(manifest, files={**manifest.files, name: entry}).write(folder)
        with pytest.raises(EnvironmentProblem, match="was replaced after it was loaded"):
            running.load_drafter("twin")


def test_one_further_drafter_can_be_named_alone(drafters_folder: Path) -> None:
    with Engine.load(drafters_folder, threads=1, drafters="twin") as engine:
        assert engine.drafters == (BUILT_IN, "twin")


def test_usual_number_of_drafts_is_within_the_room_of_the_drafter(loaded: Engine) -> None:
    for draft, k, usual in (
        (None, 4, 4), ("twin", 4, 4), ("noisy", 4, 3), ("noisy", "auto", "auto"), ("noisy", None, None),
        ("none", 4, None), ("ngram", 4, 4), ("unknown", 4, 4),
    ):  # fmt: skip
        assert loaded.usual_drafts(draft, k) == usual  # type: ignore[arg-type]


def test_salt_of_a_client_never_finds_the_texts_of_another_drafter(drafters_folder: Path) -> None:
    with Engine.load(drafters_folder, threads=1, drafters=["twin"], prefix_cache_bytes=1 << 22) as engine:

        def cached(**options: Any) -> int:
            params = SamplingParams(max_tokens=1, cache_salt=options.pop("cache_salt", None))
            return engine.generate([CODE * 8], params, **options, num_speculative_tokens=2)[0].cached_tokens

        assert [cached(draft="twin"), cached(draft="twin") > 0] == [0, True]
        key = Manifest.read(drafters_folder).drafters["twin"].part.origin.revision
        assert cached(cache_salt=f"{key} ") == 0


def test_drafter_without_accepted_drafts_is_left_for_another_or_none(
    drafters_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where the call names none, and only of an engine that may choose."""
    monkeypatch.setattr(misfit, "MIN_RATE", 2.0)  # any acceptance is too low
    monkeypatch.setattr(misfit, "MIN_DRAFTS", 4)
    options: dict[str, Any] = {"num_speculative_tokens": 2}
    for chooses in (True, False):
        with Engine.load(drafters_folder, threads=1, drafters=["twin"], auto_draft=chooses) as engine:
            taken = [engine.generate([CODE], GREEDY, **options)[0].drafter for _ in range(3)]
            assert taken == ([BUILT_IN, "twin", ""] if chooses else [BUILT_IN] * 3)
            assert used(engine, BUILT_IN) == ("peagle", BUILT_IN)
            assert f"the drafter {BUILT_IN} does not match" in engine.load_now.warnings[0]
            with pytest.raises(UsageError, match="num_speculative_tokens must be"):
                engine.generate([CODE], GREEDY, num_speculative_tokens=99)


def test_drafter_that_is_chosen_for_a_call_gets_as_many_drafts_as_it_has_room_for(loaded: Engine) -> None:
    drafters = LoadedDrafters(loaded._factory.drafters.defaults)
    drafters.add(loaded._factory.drafters._others["noisy"])
    drafters.unfit = lambda: {BUILT_IN}
    chosen = drafters.decoding(None, 4)
    assert (chosen.drafter_name, chosen.policy.max_drafts) == ("noisy", 3)
