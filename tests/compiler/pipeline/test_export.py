"""Exports: complete graphs and weights or nothing, and errors for damaged checkpoints."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper
from safetensors.numpy import load_file, save_file

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.weight_files import INDEX
from peagle.compiler.pipeline.export import export
from peagle.compiler.request import verb_options
from peagle.compiler.store import publish
from peagle.compiler.store.destination import EXPORT
from peagle.graphs.targets import family_for
from peagle.plugins.errors import BuildError, UsageError
from tests.fixtures.commands import Run
from tests.models import Pair


@pytest.fixture(scope="module")
def exported(demo_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo pair; its traces are kept from the engine's build."""
    out = tmp_path_factory.mktemp("export") / "demo-onnx"
    return export(verb_options.EXPORT.request(model="demo", out=out)).path


def test_export_folder_matches_its_record(exported: Path) -> None:
    manifest = json.loads((exported / EXPORT).read_text())
    found = {str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file()}
    assert found == {*manifest["files"], EXPORT}
    graphs = {f"{p}/{f}" for p in ("target", "drafter") for f in ("semantic.onnx", "model.onnx", "model.onnx.data")}
    sidecars = {"target/config.json", "drafter/config.json", "tokenizer.json", "export_report.json"}
    assert graphs | sidecars <= found
    assert (manifest["model"], manifest["draft"], manifest["for"], manifest["precision"]) == (
        "demo", "demo", "ort", "fp32",
    )  # fmt: skip


@pytest.mark.parametrize("shares", [False, True])
def test_export_that_is_stopped_during_assembly_resumes_from_its_steps(
    cli: Run, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(publish, "shares_blocks", lambda *_: shares)
    command = ("export", "demo", "--force", "--out", tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(publish.Assembly, "check", interrupt)
        done = cli(*command)
    assert (done.code, "resumes" in done.err) == (130, True)
    assert list(tmp_path.iterdir()) == []
    assert cli(*(each for each in command if each != "--force")).code == 0
    report = json.loads((tmp_path / "out" / "export_report.json").read_text())
    reused = {phase["phase"] for phase in report["phases"] if phase.get("reused")}
    assert reused >= {"attach target", "attach drafter"}


def test_an_export_is_inspected(cli: Run, exported: Path) -> None:
    said = cli("inspect", exported).out
    assert all(text in said for text in ("for", "ort", "fp32", "demo", "up to 8", "target/model.onnx.data"))
    content = json.loads(cli("inspect", exported, "--json").out)
    assert content["bytes"] == sum(entry["size"] for entry in content["files"].values())
    assert content["export"] == str(exported)


@pytest.mark.parametrize("damage", ["files", "for", "max_seq_len"])
def test_export_with_a_damaged_record_is_rejected(cli: Run, exported: Path, tmp_path: Path, damage: str) -> None:
    record = json.loads((exported / EXPORT).read_text())
    for changed in (record | {damage: [None]}, {name: value for name, value in record.items() if name != damage}, []):
        (tmp_path / EXPORT).write_text(json.dumps(changed))
        done = cli("inspect", tmp_path)
        assert done.code == 3
        assert "not a valid record" in done.err


def test_incomplete_export_is_rejected(cli: Run, exported: Path, tmp_path: Path) -> None:
    (tmp_path / EXPORT).write_bytes((exported / EXPORT).read_bytes())
    done = cli("inspect", tmp_path)
    assert done.code == 3
    assert "is missing" in done.err


@pytest.mark.parametrize("part", ["target", "drafter"])
@pytest.mark.parametrize("graph", ["semantic", "model"])
def test_graphs_pass_the_checker(exported: Path, part: str, graph: str) -> None:
    onnx.checker.check_model(str(exported / part / f"{graph}.onnx"))


def test_the_semantic_graph_has_the_checkpoint_s_weights_without_a_second_copy(exported: Path) -> None:
    checkpoint = Checkpoint.open(Path(__file__).parents[3] / "compiler" / "bundled" / "demo" / "target")
    model = onnx.load(exported / "target" / "semantic.onnx")
    tied = family_for(checkpoint.config).tied(checkpoint.config)
    initializers = {tied.get(tensor.name, tensor.name): tensor for tensor in model.graph.initializer}
    for name in checkpoint.tensors:
        np.testing.assert_array_equal(numpy_helper.to_array(initializers[name]), checkpoint.read(name))
    data = exported / "target" / "model.onnx.data"
    assert data.stat().st_size < 1.1 * 4 * sum(np.prod(shape) for shape in checkpoint.shapes.values())


def test_an_exported_semantic_graph_can_be_lowered_again(exported: Path) -> None:
    from peagle.graphs.graph_files import load
    from peagle.graphs.lowering import LOWERINGS, lower

    lowered = lower(load(exported / "target" / "semantic.onnx"), LOWERINGS["std"], cache_length=64)
    tables = [v for n, v in lowered.model.graph.initializers.items() if n.endswith("rotary_emb.cos")]
    assert [list(table.shape) for table in tables] == [[64, 16]]


def test_the_report_states_memory_bytes_and_time(exported: Path) -> None:
    report = json.loads((exported / "export_report.json").read_text())
    assert report["seconds"] > 0
    assert 0 <= report["peak_rss_beyond_imports_bytes"] < report["peak_rss_bytes"]
    assert report["bytes"]["target"] > report["checkpoint_bytes"]["target"] > 7_000_000
    assert report["checkpoint_format"] == {"target": "plain", "drafter": "plain"}


def test_a_target_without_a_drafter_is_exported_alone(cli: Run, pair: Pair, tmp_path: Path) -> None:
    done = cli("export", pair.target, "--out", tmp_path / "out", "--for", "std", "--max-seq-len", 64)
    assert done.code == 0, done.err
    assert "exported alone" in done.err
    assert {path.name for path in (tmp_path / "out").iterdir() if path.is_dir()} == {"target"}
    again = cli("export", pair.target, "--out", tmp_path / "out", "--max-seq-len", 64)  # replaces its own
    assert again.code == 0, again.err


def test_target_exported_alone_has_the_taps_of_the_user(cli: Run, pair: Pair, tmp_path: Path) -> None:
    asked = ("export", pair.target, "--out", tmp_path / "out", "--for", "std", "--max-seq-len", 64)
    done = cli(*asked, "--taps", "1,2")
    assert done.code == 0, done.err
    assert "exported alone, with the taps (1, 2)" in done.err
    model = onnx.load(tmp_path / "out" / "target" / "model.onnx", load_external_data=False)
    hidden = json.loads((pair.target / "config.json").read_text())["hidden_size"]
    widths = [output.type.tensor_type.shape.dim[-1].dim_value for output in model.graph.output]
    assert 2 * hidden in widths


@pytest.mark.parametrize(
    "flags", [("--mask-token-id", 3), ("--draft-revision", "main"), ("--draft-precision", "int8")], ids=lambda f: f[0]
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_options_of_a_head_are_refused_without_one(
    cli: Run, pair: Pair, tmp_path: Path, flags: tuple[Any, ...], dry_run: bool
) -> None:
    done = cli("export", pair.target, "--out", tmp_path / "out", *flags, *["--dry-run"] * dry_run)
    assert done.code == UsageError.exit_code
    assert f"error: {flags[0]}" in done.err
    assert "has no effect without a head" in done.err
    assert "the target is exported alone" in done.err


def test_tensorrt_graphs_are_half_width_and_checked(cli: Run, pair: Pair, tmp_path: Path) -> None:
    done = cli("export", pair.target, "--draft", pair.head, "--for", "tensorrt", "--out", tmp_path / "out", "--json")
    assert done.code == 0, done.err
    report = json.loads(done.out)
    assert (report["for"], report["recipe"]["recipe"]) == ("tensorrt", "bf16")
    for part in ("target", "drafter"):
        onnx.checker.check_model(str(tmp_path / "out" / part / "model.onnx"))
    model = onnx.load(tmp_path / "out" / "target" / "model.onnx")
    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    assert types["k_cache.0"] == onnx.TensorProto.BFLOAT16
    assert types["temperature"] == onnx.TensorProto.FLOAT
    weight = next(t for t in model.graph.initializer if t.name.endswith("layers.3.mlp.up_proj.weight"))
    exact = Checkpoint.open(pair.target).read("model.layers.3.mlp.up_proj.weight")
    np.testing.assert_allclose(numpy_helper.to_array(weight).astype(np.float32), exact, rtol=2**-8)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--for", "coreml"), "unknown --for coreml"),
        (("--precision", "bf16"), "ONNX Runtime computes in fp32 on a CPU"),
        (("--for", "tensorrt", "--precision", "fp32"), "fp16 or bf16"),
        (("--num-speculative-tokens", -1), "below 0"),
        (("--num-speculative-tokens", 0, "--draft-precision", "int8"), "this engine would have no drafter"),
        (("--max-seq-len", 0), "below 1"),
    ],
)
def test_invalid_export_request_is_rejected(cli: Run, tmp_path: Path, arguments: tuple[object, ...], says: str) -> None:
    done = cli("export", "demo", "--out", tmp_path / "out", *arguments)
    assert done.code == 2
    assert says in done.err
    assert not (tmp_path / "out").exists()


def test_foreign_folder_is_not_replaced(cli: Run, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = cli("export", "demo", "--out", tmp_path)
    assert done.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


# --------------------------------------------------------------------------------------------- damaged checkpoints


def _shard(folder: Path, count: int, order: list[str]) -> dict[str, str]:
    """Cut the only weight file of ``folder`` into shards; returns the index."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = [f"model-{i:05}-of-{count:05}.safetensors" for i in range(count)]
    for i, file in enumerate(names):
        save_file({name: tensors[name] for name in order[i::count]}, folder / file)
    return {name: names[i % count] for i, name in enumerate(order)}


def _write_index(folder: Path, index: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": index}))


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=8)
@given(data=st.data())
def test_all_damage_is_reported_in_one_error_before_writing(pair: Pair, tmp_path: Path, data: st.DataObject) -> None:
    """Shards in any order, missing and misshapen tensors, extra ones with hostile names, a truncated file."""
    work = tmp_path / "work"
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(pair.target, work / "target")
    order = data.draw(st.permutations(sorted(load_file(pair.target / "model.safetensors"))))
    missing, wrong = order[: data.draw(st.integers(0, 2))], order[2 : 2 + data.draw(st.integers(0, 2))]
    strangers = data.draw(st.lists(st.sampled_from(["../../escape", "/etc/passwd", "a/../../b"]), unique=True))
    tensors = load_file(work / "target" / "model.safetensors")
    tensors = {n: (t.reshape(1, *t.shape) if n in wrong else t) for n, t in tensors.items() if n not in missing}
    tensors |= {name: np.zeros(2, np.float32) for name in strangers}
    save_file(tensors, work / "target" / "model.safetensors")
    count = data.draw(st.integers(1, 4))
    index = _shard(work / "target", count, data.draw(st.permutations(sorted(tensors))))
    truncated = data.draw(st.sampled_from([None, *sorted(set(index.values()))]))
    if truncated:
        path = work / "target" / truncated
        path.write_bytes(path.read_bytes()[: -data.draw(st.integers(1, 64))])
    _write_index(work / "target", index)
    before = _tree(work)
    options = verb_options.EXPORT.request(
        model=str(work / "target"), out=work / "out", draft=str(pair.head), max_seq_len=64
    )
    if not (missing or wrong or strangers or truncated):
        assert export(options).path == work / "out"
        return
    with pytest.raises(BuildError) as caught:
        export(options)
    text = str(caught.value)
    for name in [truncated] if truncated else [*missing, *wrong, *strangers]:
        assert str(name) in text
    assert _tree(work) == before
    assert not (tmp_path / "escape").exists()


def test_tensor_in_two_shards_is_named_with_other_damage(pair: Pair, tmp_path: Path) -> None:
    order = sorted(load_file(pair.target / "model.safetensors"))
    index = _shard(pair.target, 2, order)
    twice = load_file(pair.target / index[order[0]]) | {order[1]: np.zeros(1, np.float32)}
    save_file(twice, pair.target / index[order[0]])
    _write_index(pair.target, index | {"gone.weight": index[order[0]], "out.weight": "../x.safetensors"})
    with pytest.raises(BuildError) as caught:
        export(verb_options.EXPORT.request(model=str(pair.target), out=tmp_path / "out", draft=str(pair.head)))
    for name in (order[1], "gone.weight", "../x.safetensors"):
        assert name in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_header_of_ten_megabytes_is_read_or_refused_but_never_a_crash(pair: Pair, tmp_path: Path) -> None:
    tensors = load_file(pair.target / "model.safetensors")
    save_file(tensors, pair.target / "model.safetensors", metadata={"note": "x" * 10_000_000})
    assert export(
        verb_options.EXPORT.request(model=str(pair.target), out=tmp_path / "out", draft=str(pair.head), max_seq_len=64)
    ).path.is_dir()
    tensors |= {f"stranger.{i}.{'y' * 900}": np.zeros(1, np.float32) for i in range(10_000)}
    save_file(tensors, pair.target / "model.safetensors")
    assert os.path.getsize(pair.target / "model.safetensors") > 10_000_000
    with pytest.raises(BuildError, match="10000 unknown to the model"):
        export(
            verb_options.EXPORT.request(
                model=str(pair.target), out=tmp_path / "other", draft=str(pair.head), max_seq_len=64
            )
        )
