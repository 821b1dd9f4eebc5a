"""A manifest that contradicts the graphs is refused before memory is allocated; its text is correct or absent."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from peagle.engines import Engine, SamplingParams
from peagle.engines.folder.manifest import FILE_NAME, _digest
from peagle.engines.folder.records import FileEntry
from peagle.plugins.errors import EnvironmentProblem, PeagleError

GREEDY = SamplingParams(max_tokens=4, ignore_eos=True)
JUNK: tuple[Any, ...] = (
    None, True, 0, 1, -1, 2, 8, 2**31, 10**18, 0.5, "", "x", "int8", "float8e4m3fn", "tensorrt-rtx", "tokenizer.json",
    "drafter/model.onnx", "a" * 300, "\udcff", "k_cache.0", "9" * 5000, [], {}, [1, 2], {"a": "b"},
)  # fmt: skip


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    """The tiny engine, whose manifest alone is there to be changed."""
    copy = Path(shutil.copytree(tiny_folder, tmp_path / "engine", copy_function=os.link))
    (copy / FILE_NAME).unlink()
    shutil.copyfile(tiny_folder / FILE_NAME, copy / FILE_NAME)
    return copy


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, and make its digest fit."""
    content = json.loads((folder / FILE_NAME).read_text())
    del content["digest"]
    change(content)
    (folder / FILE_NAME).write_text(json.dumps({**content, "digest": _digest(content)}))


def set_to(*place: Any) -> Callable[[dict[str, Any]], None]:
    """Put the last of ``place`` where the others lead."""

    def change(content: Any) -> None:
        *way, name, value = place
        for step in way:
            content = content[step]
        content[name] = value

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (set_to("shapes", "hidden_size", 7), "aux_hidden is float32"),
        (set_to("shapes", "taps", [0]), "aux_hidden is float32"),
        (set_to("shapes", "vocab_size", 1000), "logits is float32"),
        (set_to("shapes", "draft_vocab_size", 7), "draft_logits is float32"),
        (set_to("shapes", "cache_length", 10**15), "k_cache.0 is float32"),
        (set_to("target", "caches", 0, "heads", 10**9), "k_cache.0 is float32"),
        (set_to("drafter", "caches", 0, "head_dim", 3), "k_cache.0 is float32"),
        (lambda content: content["target"]["caches"].pop(), "the graph's inputs differ from the manifest: k_cache"),
        (lambda content: content["target"]["inputs"].pop(0), "the graph's inputs differ from the manifest: input_ids"),
        (lambda content: content["drafter"]["outputs"].append("draft_ids"), "one is listed twice"),
        (
            lambda content: content["target"].update(file=content["drafter"]["file"]),
            "does not match the manifest's target",
        ),
        (
            lambda content: content["drafter"].update(file=content["target"]["file"]),
            "does not match the manifest's drafter",
        ),
        (lambda content: content["drafter"].update(file="tokenizer.json"), "cannot load"),
    ],
)
def test_a_manifest_that_a_graph_contradicts_is_refused_with_both_versions(
    folder: Path, change: Callable[[dict[str, Any]], object], says: str
) -> None:
    rewrite(folder, change)
    with pytest.raises(EnvironmentProblem, match=says) as caught:
        Engine.load(folder, threads=1)
    assert "rebuild the engine" in caught.value.fix or "rebuild" in caught.value.fix


def test_a_graph_with_other_inputs_is_refused(folder: Path) -> None:
    import onnx

    path = folder / "drafter" / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    for value in (*model.graph.input, *model.graph.node):
        if isinstance(value, onnx.ValueInfoProto) and value.name == "start":
            value.name = "beginning"
        elif isinstance(value, onnx.NodeProto):
            value.input[:] = ["beginning" if name == "start" else name for name in value.input]
    path.unlink()  # a link to a file that tests share
    onnx.save(model, path)
    entry = FileEntry.of(path)
    rewrite(folder, set_to("files", "drafter/model.onnx", {"size": entry.size, "sha256": entry.sha256}))
    with pytest.raises(EnvironmentProblem, match="the graph's inputs differ from the manifest: beginning, start"):
        Engine.load(folder, threads=1)


def places(content: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON value, by the keys and indices that lead there."""
    if at:
        yield at
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in items:
        yield from places(value, (*at, key))


def edit(content: dict[str, Any], rng: random.Random) -> None:
    """Change one place as an editor or an attacker may: sizes most often."""
    section = rng.choice([*content, *["shapes"] * 6, *["speculation"] * 3, *["target", "drafter"] * 3])
    *way, last = rng.choice([*places({section: content[section]})])
    parent: Any = content
    for step in way:
        parent = parent[step]
    old, kind = parent[last], rng.random()
    if isinstance(old, list) and old and kind < 0.6:
        rng.choice([old.pop, lambda: old.append(deepcopy(rng.choice(old))), lambda: rng.shuffle(old)])()
    elif isinstance(old, dict) and old and kind < 0.6:
        del old[rng.choice([*old])]
    elif type(old) is int and kind < 0.7:
        parent[last] = rng.choice([old + 1, old - 1, old * 2, old // 2, -old, old * 10**9, rng.randrange(4096)])
    else:
        parent[last] = rng.choice(JUNK)


def test_random_manifest_edits_give_correct_text_or_a_project_error(folder: Path) -> None:
    expected = Engine.load(folder, threads=1).generate([[5, 6, 7]], GREEDY)[0].token_ids
    honest, refused = (folder / FILE_NAME).read_bytes(), 0
    for seed in range(80, 140):
        (folder / FILE_NAME).write_bytes(honest)
        rewrite(folder, lambda content, seed=seed: edit(content, random.Random(seed)))
        try:
            output = Engine.load(folder, threads=1, check="sizes").generate([[5, 6, 7]], GREEDY)[0]
        except PeagleError as error:
            refused += bool(str(error))
        else:
            assert output.token_ids == expected, f"seed {seed}"
    assert 30 < refused < 60
