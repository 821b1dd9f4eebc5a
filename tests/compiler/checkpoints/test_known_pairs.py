"""The bundled heads: each fits its target, stores no table of the target, and has a model card."""

from __future__ import annotations

from pathlib import Path

import pytest

from peagle.compiler import bundled
from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.known_pairs import PAIRS, Local
from peagle.compiler.checkpoints.resolve_names import drafter_source, target_config
from peagle.compiler.checkpoints.target_and_drafter import read_head
from peagle.graphs.drafters import read_drafter
from peagle.graphs.drafters.tensor_layout import EMBEDDING
from peagle.graphs.targets import family_for
from peagle.plugins.errors import UsageError

EAGLE_3 = Path(bundled.__file__).parent / "heads" / "smollm2-135m-eagle-3"
HEADS = sorted(path for path in (Path(bundled.__file__).parent / "heads").iterdir() if path.is_dir())
LOCAL = {name: pair.drafter.path for name, pair in PAIRS.items() if isinstance(pair.drafter, Local)}


def target_of(head: Path) -> str:
    (name,) = (name for name in PAIRS if head.name.startswith(name))
    return name


@pytest.mark.parametrize("name", LOCAL)
def test_registered_head_fits_its_target_and_depth(name: str) -> None:
    config, _ = target_config(name)
    head = read_head(Checkpoint.open(LOCAL[name]), family_for(config).describe(config))
    assert (head.trained_depth, head.taps) == (PAIRS[name].trained_depth, PAIRS[name].taps)


@pytest.mark.parametrize("folder", HEADS, ids=lambda path: path.name)
def test_a_head_leaves_the_embedding_to_its_target_and_has_a_card(folder: Path) -> None:
    config, _ = target_config(target_of(folder))
    checkpoint = Checkpoint.open(folder)
    head = read_drafter(checkpoint.config, checkpoint.shapes, family_for(config).describe(config))
    assert EMBEDDING in head.shared
    card = (folder / "README.md").read_text()
    for part in ("license: apache-2.0", "HumanEval", "tools/train_head", "acceptance length"):
        assert part in card


def test_eagle_3_head_fits_its_target() -> None:
    config, _ = target_config(target_of(EAGLE_3))
    head = read_head(Checkpoint.open(EAGLE_3), family_for(config).describe(config))
    assert (head.strategy, head.trained_depth) == ("autoregressive", 6)


def test_head_can_be_selected_by_method() -> None:
    assert drafter_source("smollm2-135m", "eagle3") == Local(EAGLE_3)
    assert drafter_source("smollm2-135m", "peagle") == PAIRS["smollm2-135m"].drafter
    with pytest.raises(UsageError, match="no EAGLE-3 head is known for demo") as refused:
        drafter_source("demo", "eagle3")
    assert "smollm2-135m" in str(refused.value.why)
    with pytest.raises(UsageError, match="no P-EAGLE head is known for gemma-4-31b"):
        drafter_source("gemma-4-31b", "peagle")
