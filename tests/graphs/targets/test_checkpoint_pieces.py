"""The checkpoint tensors of a graph, and errors for incomplete checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peagle.graphs.targets import family_for
from peagle.graphs.targets.checkpoint_pieces import Shape, Sources, UnreadRows
from peagle.graphs.targets.skeleton import Skeleton
from peagle.plugins.errors import BuildError
from tests.models import CONFIGS

MOE = CONFIGS["qwen3-moe"]
PREFIX = "model.layers.0.mlp.experts"


def stored_for(name: str) -> tuple[dict[str, Shape], dict[str, Shape]]:
    """The weights of a family's graph, and a checkpoint that has exactly these, under the names of its files."""
    config = CONFIGS[name]
    family, shapes = family_for(config), Skeleton(config).shapes
    stored: dict[str, Shape] = {}
    for weight, shape in shapes.items():
        pieces = family.sources(weight, shape)
        for piece in pieces:
            for key in piece.keys:
                part = shape[1:] if piece.how in ("stack", "interleave") else shape
                if piece.how == "interleave":
                    part = (part[0] // 2, *part[1:])
                elif piece.how == "transpose":
                    part = (part[0], part[2], part[1])
                inside = name.startswith("gemma-4") and key.startswith("model.")
                stored[key.replace("model.", "model.language_model.", 1) if inside else key] = part
    return shapes, stored


@pytest.fixture(scope="module", params=list(CONFIGS))
def whole(request: pytest.FixtureRequest) -> tuple[str, dict[str, Shape], dict[str, Shape]]:
    return request.param, *stored_for(request.param)


def check(name: str, stored: dict[str, Shape], shapes: dict[str, Shape]) -> None:
    Sources(family_for(CONFIGS[name]), CONFIGS[name], stored).check(shapes)


def test_a_whole_checkpoint_is_accepted(whole: tuple[str, dict[str, Shape], dict[str, Shape]]) -> None:
    name, shapes, stored = whole
    check(name, stored, shapes)


def test_tensors_known_to_be_useless_are_accepted(whole: tuple[str, dict[str, Shape], dict[str, Shape]]) -> None:
    name, shapes, stored = whole
    more = {"model.layers.0.self_attn.rotary_emb.inv_freq": (8,)}
    if name.startswith("gemma-4"):
        more |= {"model.vision_tower.encoder.layers.0.mlp.up_proj.linear.weight": (3, 3), "lm_head.weight": (96, 48)}
    check(name, stored | more, shapes)


@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_all_problems_are_reported_together(
    whole: tuple[str, dict[str, Shape], dict[str, Shape]], data: st.DataObject
) -> None:
    name, shapes, stored = whole
    keys = data.draw(st.permutations(sorted(stored)))
    missing, wrong = keys[: data.draw(st.integers(0, 4))], keys[4 : 4 + data.draw(st.integers(0, 4))]
    extra = data.draw(st.lists(st.sampled_from(["../x", "/etc/passwd", "model.layers.99.mlp.up_proj.weight"])))
    damaged = {key: (*shape, 7) if key in wrong else shape for key, shape in stored.items() if key not in missing}
    damaged |= dict.fromkeys(extra, (2, 3))
    shuffled = dict(data.draw(st.permutations(sorted(damaged.items()))))
    if not (missing or wrong or extra):
        check(name, shuffled, shapes)
        return
    with pytest.raises(BuildError) as caught:
        check(name, shuffled, shapes)
    text = str(caught.value)
    for count, kind in ((len(missing), "missing"), (len(wrong), "with a wrong shape"), (len(set(extra)), "unknown")):
        assert (f"{count} {kind}" in text) == (count > 0)
    canonical = family_for(CONFIGS[name]).canonical
    for key in [*map(canonical, missing), *wrong, *extra]:
        assert key in text


def test_long_lists_are_cut_and_counted() -> None:
    shapes, _ = stored_for("llama")
    with pytest.raises(BuildError, match=f"and {len(shapes) - 20} more"):
        check("llama", {}, shapes)


def test_a_missing_expert_is_named() -> None:
    shapes, stored = stored_for("qwen3-moe")
    del stored[f"{PREFIX}.5.up_proj.weight"]
    with pytest.raises(BuildError, match=rf"1 missing:\s+{PREFIX}\.5\.up_proj\.weight \[24, 48\]"):
        check("qwen3-moe", stored, shapes)


def test_values_come_in_graph_order() -> None:
    shapes, stored = stored_for("qwen3-moe")
    sources = Sources(family_for(MOE), MOE, stored)
    values = {key: np.random.default_rng(len(key)).normal(size=shape) for key, shape in stored.items()}

    def runs(key: str) -> Iterator[UnreadRows]:
        return (UnreadRows.of(values[key][i : i + 5]) for i in range(0, len(values[key]), 5))

    name = f"{PREFIX}.gate_up_proj"
    found = [(run.size, run.read()) for run in sources.runs(name, shapes[name], runs)]
    assert all(size == rows.size for size, rows in found)
    weight = np.concatenate([rows for _, rows in found]).reshape(shapes[name])
    for expert in range(6):
        for offset, part in enumerate(("gate", "up")):
            np.testing.assert_array_equal(weight[expert, offset::2], values[f"{PREFIX}.{expert}.{part}_proj.weight"])


def test_halves_of_stacked_matrices_are_interleaved() -> None:
    config, name = CONFIGS["gemma-4-moe"], "model.layers.0.experts.gate_up_proj"
    shapes, stored = stored_for("gemma-4-moe")
    values = np.random.default_rng(0).normal(size=shapes[name])

    def runs(key: str) -> Iterator[UnreadRows]:
        assert key == "model.language_model.layers.0.experts.gate_up_proj"
        return (UnreadRows.of(values[i : i + 4]) for i in range(0, 6, 4))

    found = [run.read() for run in Sources(family_for(config), config, stored).runs(name, shapes[name], runs)]
    weight = np.concatenate(found)
    np.testing.assert_array_equal(weight[:, 0::2], values[:, :24])
    np.testing.assert_array_equal(weight[:, 1::2], values[:, 24:])
