"""Model names: short names, folders, ids and helpful errors; the registry is checked offline."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.compiler.checkpoints import hub
from peagle.compiler.checkpoints.known_pairs import PAIRS, HubRepo, Local, Pair
from peagle.compiler.checkpoints.resolve_names import has_drafter, resolve, resolve_head, target_config
from peagle.graphs.targets import family_for
from peagle.graphs.targets.family import default_taps
from peagle.plugins.errors import BuildError, UsageError

BUNDLED = [name for name, pair in PAIRS.items() if isinstance(pair.target, Local)]
PUBLISHED = [name for name in PAIRS if name not in BUNDLED]
BILLIONS = {
    "smollm2-135m": 0.1, "qwen3-coder-30b": 30.5, "qwen3-coder-30b-fp8": 30.5, "gpt-oss-20b": 20.9,
    "gpt-oss-120b": 116.8, "gemma-4-31b": 30.7, "gemma-4-26b-a4b": 25.2,
}  # fmt: skip
DEPTHS = {
    "demo": 8,
    "smollm2-135m": 8,
    "qwen3-coder-30b": 18,
    "qwen3-coder-30b-fp8": 18,
    "gpt-oss-20b": 10,
    "gpt-oss-120b": 8,
}


@pytest.mark.parametrize(
    ("model", "draft", "name"),
    [
        ("demo", "demo", "demo"),
        ("demo", "peagle", "demo"),
        ("smollm2-135m", "eagle3", "smollm2-135m-eagle-3"),
        ("smollm2-135m", "smollm2-135m", "smollm2-135m-p-eagle"),
    ],
)
def test_a_bundled_head_has_a_name_of_its_own(model: str, draft: str, name: str) -> None:
    assert resolve_head(model, draft)[0] == name


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_pair_brings_its_drafter_and_its_evidence(name: str) -> None:
    found, pair = resolve(name), PAIRS[name]
    assert (Local(found.target), Local(found.drafter), found.pair) == (pair.target, pair.drafter, pair)
    assert found.target.is_dir()
    assert found.drafter.is_dir()
    assert pair.evidence


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_unverified_pair_is_reported(pair: Pair) -> None:
    assert pair.taps_source
    config, _ = target_config(pair.name)
    head = json.loads((pair.drafter.path / "config.json").read_text()) if isinstance(pair.drafter, Local) else {}
    layers = family_for(config).describe(config).num_layers
    assert pair.taps == tuple(head.get("eagle_aux_hidden_state_layer_ids", default_taps(layers))), "as a build feeds it"
    assert pair.evidence or any("never loaded by this project" in note for note in pair.notes)
    assert isinstance(pair.drafter, Local) or pair.unknown
    for source in (pair.target, pair.drafter):
        if isinstance(source, HubRepo):
            assert hub.is_id(source.repo)
            assert source.revision is None or len(source.revision) == 40


def test_the_promised_models_are_there() -> None:
    assert list(PAIRS) == ["demo", *BILLIONS]
    assert {name: pair.trained_depth for name, pair in PAIRS.items()} == dict.fromkeys(PAIRS) | DEPTHS


@pytest.mark.parametrize("name", PUBLISHED)
def test_bundled_configuration_gives_the_published_model_size(name: str) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(PAIRS[name].config_folder).get_text_config()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert round(sum(math.prod(parameter.shape) for parameter in model.parameters()) / 1e9, 1) == BILLIONS[name]


@pytest.mark.parametrize("name", PAIRS)
def test_the_taps_of_the_registry_fit_the_bundled_configuration(name: str) -> None:
    config, origin = target_config(name)
    layers = config.get("text_config", config)["num_hidden_layers"]
    assert PAIRS[name].taps == (2, layers // 2, layers - 3)
    assert name in origin


def test_short_names_are_answered_without_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "download", lambda *_, **__: pytest.fail("asked the Hub"))
    for name in PAIRS:
        assert target_config(name)[0]["architectures"]


def test_short_names_are_fetched_from_their_repositories(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def download(repo: str, revision: str | None, **_: object) -> hub.Snapshot:
        asked.append((repo, revision))
        return hub.Snapshot(tmp_path, "c" * 40)

    monkeypatch.setattr(hub, "download", download)
    found = resolve("gpt-oss-20b", None, "v1", "v2")
    assert asked == [("openai/gpt-oss-20b", "v1"), ("amazon/GPT-OSS-20B-P-EAGLE", "v2")]
    assert found.pair is PAIRS["gpt-oss-20b"]
    assert found.target_commit == found.drafter_commit == "c" * 40


@pytest.mark.parametrize("name", [name for name in PUBLISHED if PAIRS[name].drafter])
@pytest.mark.parametrize("spelled", [str, str.lower, str.upper])
def test_the_id_of_a_known_target_brings_its_drafter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, spelled: Callable[[str], str]
) -> None:
    """Any letter case is accepted, and the Hub gets the original one."""
    pair, asked = PAIRS[name], []

    def download(repo: str, revision: str | None, **_: object) -> hub.Snapshot:
        asked.append(HubRepo(repo, revision))
        return hub.Snapshot(tmp_path, "c" * 40)

    monkeypatch.setattr(hub, "download", download)
    assert isinstance(pair.target, HubRepo)
    found, head = resolve(spelled(pair.target.repo), None, "v1"), pair.drafter
    # A bundled head has the pair's name, and is not downloaded.
    known_as = head.repo if isinstance(head, HubRepo) else pair.name
    assert asked == [HubRepo(pair.target.repo, "v1"), *([head] if isinstance(head, HubRepo) else [])]
    assert (found.pair, found.draft) == (pair, known_as)
    assert has_drafter(spelled(pair.target.repo))
    again = resolve(**found.repeatable())
    assert (again.pair, again.repeatable()) == (pair, found.repeatable())
    assert resolve(name, spelled(known_as) if isinstance(head, HubRepo) else known_as).pair is pair
    assert resolve(name, "owner/other").pair is None


def test_model_without_a_public_drafter_is_reported(tmp_path: Path) -> None:
    for model, draft in (
        ("gemma-4-31b", None), ("gemma-4-31b", "gemma-4-31b"), ("google/gemma-4-31B-it", None)
    ):  # fmt: skip
        with pytest.raises(UsageError, match="has no drafter") as caught:
            resolve(model, draft)
        assert "no public P-EAGLE head" in caught.value.why
        assert "--draft" in caught.value.fix
        assert "--draft ngram" in caught.value.fix


def test_model_without_a_known_drafter_requires_one(tmp_path: Path) -> None:
    for model in (str(tmp_path), "owner/model"):
        with pytest.raises(UsageError, match="needs a drafter") as caught:
            resolve(model)
        assert "Qwen/Qwen3-Coder-30B-A3B-Instruct" in caught.value.why
        assert "--draft ngram" in caught.value.fix
        assert not has_drafter(model)


def test_revision_in_a_name_suggests_the_option() -> None:
    with pytest.raises(UsageError) as caught:
        resolve("openai/gpt-oss-20b@main", "demo")
    assert "`--model openai/gpt-oss-20b --revision main`" in caught.value.fix
    with pytest.raises(UsageError) as caught:
        resolve("demo", "owner/head@v1")
    assert "`--draft owner/head --draft-revision v1`" in caught.value.fix


def test_folders_are_used_as_given(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    found = resolve(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (found.target, found.drafter, found.pair) == (tmp_path / "a", tmp_path / "b", None)
    assert (found.repeatable()["model"], found.repeatable()["revision"]) == (str(tmp_path / "a"), None)


def test_folder_takes_precedence_over_an_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "owner" / "model").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve("owner/model", "demo").target == tmp_path / "owner" / "model"


def test_a_folder_has_no_revisions(tmp_path: Path) -> None:
    for name in ("demo", str(tmp_path)):
        with pytest.raises(UsageError, match="--revision v1 does not apply"):
            resolve(name, "demo", "v1")
        with pytest.raises(UsageError, match="--draft-revision v1 does not apply"):
            resolve("demo", name, None, "v1")
        with pytest.raises(UsageError, match="--revision v1 does not apply"):
            target_config(name, "v1")


def test_custom_drafter_replaces_the_registered_pair(tmp_path: Path) -> None:
    found = resolve("demo", str(tmp_path))
    assert Local(found.target) == PAIRS["demo"].target
    assert found.pair is None
    assert resolve("demo", "demo").pair is PAIRS["demo"]
    assert found.repeatable()["model"] == "demo"
    assert found.repeatable()["draft"] == str(tmp_path)


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_folder_without_a_configuration_is_refused(tmp_path: Path, content: str | None) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "config.json").write_text(json.dumps({"a": 1}))
    config, origin = target_config(str(tmp_path / "good"))
    assert config == {"a": 1}
    assert str(tmp_path / "good") in origin
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(BuildError, match=r"config\.json"):
        target_config(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("dmeo", "did you mean demo?"),
        ("Demo", "did you mean demo?"),
        ("gpt-oss", "did you mean gpt-oss-"),
        ("/no/such/folder", "not a folder, a Hugging Face Hub id"),
        ("", "not a folder, a Hugging Face Hub id"),
        ("a\0b", "not a folder, a Hugging Face Hub id"),
        ("x" * 5000, "not a folder, a Hugging Face Hub id"),
        ("~nobody-of-this-name", "not a folder, a Hugging Face Hub id"),
    ],
)
def test_unknown_name_lists_known_names(name: str, hint: str) -> None:
    for call in (lambda: resolve(name, "demo"), lambda: resolve("demo", name), lambda: target_config(name)):
        with pytest.raises(UsageError) as caught:
            call()
        assert hint in str(caught.value)
        assert "known names are: demo, smollm2-135m, qwen3-coder-30b" in caught.value.why
        assert "path of a checkpoint folder" in caught.value.fix
        assert caught.value.exit_code == 2


def test_registry_imports_no_heavy_packages() -> None:
    code = "import sys, peagle.compiler.checkpoints.resolve_names; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"huggingface_hub", "numpy", "torch", "transformers", "rich", "typer"}


@pytest.mark.parametrize("name", PAIRS)
def test_registered_sizes_match_the_bundled_configuration(name: str) -> None:
    from peagle.graphs.targets.skeleton import Skeleton

    config, _ = target_config(name)
    roles: dict[str, int] = {}
    for weight in Skeleton(config).weights:
        roles[weight.role] = roles.get(weight.role, 0) + weight.count
    size, experts = PAIRS[name].size, roles.get("experts", 0)
    assert size.parameters == sum(roles.values())
    assert size.in_layers == sum(roles.get(role, 0) for role in ("attention", "mlp", "experts"))
    method = config.get("quantization_config", {}).get("quant_method")
    in_mxfp4, in_fp8 = experts if method == "mxfp4" else 0, size.in_layers if method == "fp8" else 0
    narrow = in_mxfp4 * 17 // 32 + in_fp8 + 2 * in_fp8 // 128**2  # block scales are bytes or bfloat16
    assert size.published_bytes == 2 * (size.parameters - in_mxfp4 - in_fp8) + narrow
