"""A target whose skeleton an earlier build has derived needs no modules for its weights and ranges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.checkpoints.target import Target
from peagle.compiler.pipeline import skeleton_stage
from peagle.compiler.pipeline.skeleton_stage import with_kept_skeleton
from peagle.compiler.store.stage_origin import StageOrigin
from peagle.compiler.store.stages import StageStore
from peagle.graphs.targets.skeleton import Skeleton
from peagle.plugins.errors import BuildError
from tests.models import CONFIGS, make_pair


@pytest.fixture
def store(tmp_path: Path) -> StageStore:
    return StageStore(tmp_path / "store")


def configured(target: Target, **changes: Any) -> Target:
    """Return the target with another configuration."""
    config = {**target.config, **changes}
    return replace(target, skeleton=Skeleton(config), checkpoint=replace(target.checkpoint, config=config))


@pytest.mark.parametrize("family", CONFIGS)
def test_kept_facts_equal_those_of_the_modules(family: str, tmp_path: Path, store: StageStore) -> None:
    target = Target.open(make_pair(tmp_path / "pair", family).target)
    derived = with_kept_skeleton(target, store, "name").skeleton.facts
    kept = with_kept_skeleton(target, store, "name").skeleton.facts
    assert kept == derived == Skeleton(target.config).facts


def test_listings_of_the_cache_name_the_model(tmp_path: Path, store: StageStore) -> None:
    target = Target.open(make_pair(tmp_path / "pair", "llama").target)
    with_kept_skeleton(target, store, "org/model")
    [folder] = [path for path in (store.root / "skeleton").iterdir() if path.is_dir()]
    assert StageOrigin.read(folder) == StageOrigin("build", "org/model")


def test_a_second_build_creates_no_modules(tmp_path: Path, store: StageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target.open(make_pair(tmp_path / "pair", "qwen3").target)
    with_kept_skeleton(target, store, "name")

    def refuse(_: Skeleton) -> None:
        raise AssertionError("modules are created")

    monkeypatch.setattr(Skeleton, "_built", property(refuse))
    again = with_kept_skeleton(Target.open(target.folder), store, "name")
    again.check()
    assert again.skeleton.range_shapes.caches


def test_another_configuration_or_library_is_derived_anew(
    tmp_path: Path, store: StageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = Target.open(make_pair(tmp_path / "pair", "llama").target)
    with_kept_skeleton(target, store, "name")
    more = target.config["num_hidden_layers"] + 1
    larger = with_kept_skeleton(configured(target, num_hidden_layers=more), store, "name")
    assert len(larger.skeleton.weights) > len(target.skeleton.weights)
    monkeypatch.setattr(skeleton_stage, "version", lambda library: "another")
    with_kept_skeleton(target, store, "name")
    assert len([path for path in (store.root / "skeleton").iterdir() if path.is_dir()]) == 3


def test_a_configuration_without_a_model_leaves_nothing(tmp_path: Path, store: StageStore) -> None:
    target = Target.open(make_pair(tmp_path / "pair", "llama").target)
    with pytest.raises(BuildError):
        with_kept_skeleton(configured(target, hidden_act="no such function"), store, "name")
    assert not [path for path in (store.root / "skeleton").iterdir() if path.is_dir()]
