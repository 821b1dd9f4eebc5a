"""Every kind of head drafts the same as the reference, in both layouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from peagle.graphs import graph_files, stream_weights
from peagle.graphs.drafters import read_drafter, torch_reference
from peagle.graphs.drafters.drafter_layers import drafter_rotary
from peagle.graphs.lowering import LOWERINGS, lower
from peagle.plugins.errors import BuildError
from tests.graphs.running import Graph
from tests.graphs.traced import traced_drafter
from tests.heads import FORMS, LLAMA3, Form, Head
from tests.models import VOCAB

CACHE, K = 48, 4


def graph_of(name: str) -> tuple[Head, Path]:
    """The head of a form and its semantic graph."""
    head = FORMS[name].make()
    return head, traced_drafter(head.spec, head.target)


def drafted(path: Path, head: Head, ids: np.ndarray, features: np.ndarray) -> list[np.ndarray]:
    """Draft logits after a prefill of 9 tokens, and after a round of which two drafts were accepted."""
    graph = Graph(path, head.spec.caches, CACHE)
    junk = np.full((1, 2), 7)
    windows = [(0, ids[None, :9], 0, ids[9:10]), (9, np.concatenate([ids[None, 9:12], junk], 1), K, ids[10:13])]
    logits = []
    for start, window, drafts, emitted in windows:
        width = window.shape[1]
        tokens = np.full((1, K + 1), -1, np.int32)
        tokens[0, : len(emitted)] = emitted
        out = graph(
            input_ids=window.astype(np.int64),
            start=np.array([start], np.int64),
            window_len=np.array([width], np.int32),
            draft_len=np.array([drafts], np.int32),
            tokens=tokens,
            num_tokens=np.array([len(emitted)], np.int32),
            aux_hidden=features[None, start : start + width],
        )
        logits.append(out["draft_logits"][0])
    return logits


# Each is a part of "everything" as well; ``tests/conformance/test_speculators.py`` has heads with one of them each.
IN_EVERYTHING = {"own vocabulary, residual normed", "a norm per tap, five taps", "sliding window"}


@pytest.mark.parametrize("lowering", ["std", "ort"])
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in IN_EVERYTHING else [])
        for name in FORMS
        if name != "plain"  # test_drafter.py has it
    ],
)
def test_every_kind_of_head_drafts_like_the_reference(
    name: str, lowering: str, tmp_path: Path, rng: np.random.Generator
) -> None:
    head, semantic = graph_of(name)
    path, tensors = tmp_path / "model.onnx", head.weights()
    stream_weights.attach(
        lower(graph_files.load(semantic), LOWERINGS[lowering], cache_length=CACHE), lambda n: tensors[n].numpy(), path
    )
    ids = rng.integers(2, VOCAB, 14)
    width = head.spec.target_hidden_size * len(head.spec.taps)
    features = rng.standard_normal((14, width)).astype(np.float32)
    for logits, length in zip(drafted(path, head, ids, features), (10, 13), strict=True):
        expected = torch_reference.draft_logits(
            tensors, head.spec, ids[:length].tolist(), torch.from_numpy(features[: length - 1]), K
        )
        np.testing.assert_allclose(logits, expected.numpy(), atol=1e-4)


CHANGES: list[tuple[str, Any]] = [
    ("one norm before fc, wider target", "input_norm"),
    ("a norm per tap, five taps", "fc_norm"),
    ("norms of q and k, yarn rope", "q_norm"),
    ("norms of q and k, yarn rope", "k_norm"),
    ("norms of q and k, yarn rope", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("all biases, llama3 rope", "o_proj.bias"),
    ("all biases, llama3 rope", "down_proj.bias"),
    ("all biases, llama3 rope", {"rope_scaling": None}),
    ("sliding window", {"sliding_window": 4}),
    ("own vocabulary, residual normed", {"norm_before_residual": False}),
    ("qkv biases, odd widths, linear rope", "v_proj.bias"),
    ("qkv biases, odd widths, linear rope", {"rope_scaling": {"type": "linear", "factor": 2.0}}),
]


@pytest.mark.parametrize(("name", "change"), CHANGES, ids=[f"{n}: {c}" for n, c in CHANGES])
def test_each_part_that_distinguishes_a_kind_reaches_the_logits(
    name: str, change: Any, rng: np.random.Generator
) -> None:
    head = FORMS[name].make()
    ids = rng.integers(2, VOCAB, 12).tolist()
    features = torch.tensor(rng.standard_normal((11, head.shapes["fc.weight"][1])), dtype=torch.float32)
    before = torch_reference.draft_logits(head.weights(), head.spec, ids, features, K)
    if isinstance(change, dict):
        head.config.update(change)
    else:
        touched = {name: tensor.roll(1, 0) for name, tensor in head.tensors.items() if change in name}
        assert touched
        head.tensors.update(touched)
    after = torch_reference.draft_logits(head.weights(), head.spec, ids, features, K)
    assert (before - after).abs().max() > 1e-3


def test_norm_output_is_known_and_of_no_effect_in_one_pass() -> None:
    head = FORMS["a norm per tap, five taps"].make()
    other = replace(head, config=head.config | {"eagle_config": {"fc_norm": True, "norm_output": False}})
    assert (head.spec.norm_output, other.spec.norm_output) == (True, False)
    features = torch.zeros(3, 5 * 48)
    drafts = [torch_reference.draft_logits(h.weights(), h.spec, [2, 3, 4, 5], features, K) for h in (head, other)]
    assert torch.equal(*drafts)


@pytest.mark.parametrize("name", FORMS)
def test_both_layouts_are_read_as_one_head(name: str) -> None:
    flat = FORMS[name].make()
    other = flat.as_speculators()
    assert any(key.startswith("midlayer.") for key in flat.tensors)
    assert not any(key.startswith("midlayer.") for key in other.tensors)
    ours, theirs = vars(flat.spec) | {"keys": None}, vars(other.spec) | {"keys": None}
    assert ours == theirs
    for weights_of in (flat.weights(), other.weights()):
        assert {n: tuple(t.shape) for n, t in weights_of.items() if n != "t2d"} == flat.spec.expected_shapes()
    assert all(torch.equal(tensor, other.weights()[n]) for n, tensor in flat.weights().items())


def test_model_prefix_and_training_leftovers_are_ignored() -> None:
    head = FORMS["norms of q and k, yarn rope"].make()
    tensors = {f"model.{name}": tensor for name, tensor in head.tensors.items()}
    tensors |= {"verifier_norm.weight": torch.ones(48), "verifier_lm_head.weight": torch.ones(96, 48)}
    tensors |= {"model.layers.1.self_attn.rotary_emb.inv_freq": torch.ones(8), "t2d": torch.ones(96)}
    other = Head(head.config, tensors, head.target)
    assert other.spec.expected_shapes() == head.spec.expected_shapes()
    assert other.spec.keys["layers.0.self_attn.q_norm.weight"] == "model.midlayer.self_attn.q_norm.weight"
    assert not any("verifier" in name or "inv_freq" in name for name in other.spec.keys)


def test_a_tied_head_reads_its_embeddings_twice() -> None:
    head = FORMS["plain"].make()
    del head.tensors["lm_head.weight"]
    head.config["tie_word_embeddings"] = True
    assert head.spec.keys["lm_head.weight"] == "embed_tokens.weight"
    assert torch.equal(head.weights()["lm_head.weight"], head.tensors["embed_tokens.weight"])


SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "draft_vocab_size", "num_key_value_heads",
)  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_sizes_come_from_tensors(name: str) -> None:
    head = FORMS[name].make()
    config = {key: value for key, value in head.config.items() if key not in SIZES}
    for left_out in ("head_dim", "num_attention_heads"):
        stated = {key: value for key, value in config.items() if key != left_out}
        assert read_drafter(stated, head.shapes, head.target) == head.spec


def test_omitted_config_fields_have_transformers_defaults() -> None:
    head = Form(heads=32, kv_heads=8, head_dim=8, config={"head_dim": None}).make().as_speculators()
    del head.config["transformer_layer_config"]["num_attention_heads"]
    assert (head.spec.num_heads, head.spec.cache.head_dim) == (32, 8)


def test_head_rope_is_read_from_any_key() -> None:
    old = Form(config={"rope_scaling": {"type": "llama3", **LLAMA3}}).make().spec
    new = Form(config={"rope_theta": None, "rope_parameters": LLAMA3 | {"rope_theta": 500.0}}).make().spec
    short = {k: v for k, v in LLAMA3.items() if k != "original_max_position_embeddings"}
    implied = Form(config={"rope_scaling": short, "max_position_embeddings": 32}).make().spec
    assert old.rope == new.rope == implied.rope == LLAMA3 | {"rope_theta": 500.0}
    assert Form(config={"rope_theta": None}).make().spec.rope == {"rope_type": "default", "rope_theta": 10000.0}


def test_llama3_rope_follows_its_rule() -> None:
    table = drafter_rotary(FORMS["all biases, llama3 rope"].make().spec)
    expected = []
    for i in range(8):
        inverse = 500.0 ** (-i / 8)
        share = (32 * inverse / (2 * np.pi) - 1.0) / (4.0 - 1.0)
        share = min(max(share, 0.0), 1.0)
        expected.append((1 - share) * inverse / 4.0 + share * inverse)
    np.testing.assert_allclose(table.inv_freq, expected, rtol=1e-5)
    assert table.scaling == 1.0


def eagle3(**form: Any) -> Head:
    """An autoregressive head: no placeholders, neither in tensors nor in config."""
    head = Form(layers=1, **form).make()
    del head.tensors["mask_hidden"], head.config["ptd_token_id"]
    return head


def test_an_eagle3_head_is_read() -> None:
    head = eagle3()
    assert (head.spec.strategy, head.spec.mask_token_id, head.spec.shared) == ("autoregressive", -1, ())
    assert "mask_hidden" not in head.spec.expected_shapes()


def test_eagle3_head_can_share_the_targets_tables() -> None:
    head = eagle3()
    del head.tensors["embed_tokens.weight"], head.tensors["lm_head.weight"]
    assert head.spec.shared == ("embed_tokens.weight", "lm_head.weight")
    small = eagle3(draft_vocab=VOCAB - 30)
    del small.tensors["embed_tokens.weight"]
    assert small.spec.shared == ("embed_tokens.weight",)
    del small.tensors["lm_head.weight"]
    with pytest.raises(BuildError, match=r"lm_head\.weight is missing"):
        _ = small.spec
    smaller = eagle3(target_hidden=64)
    del smaller.tensors["embed_tokens.weight"]
    with pytest.raises(BuildError, match=r"embed_tokens\.weight is missing"):
        _ = smaller.spec


def test_speculators_eagle3_head_normalizes_its_residual_by_default() -> None:
    head = eagle3()
    assert not head.spec.norm_before_residual
    head.config["speculators_model_type"] = "eagle3"
    assert head.spec.norm_before_residual
    head.config["norm_before_residual"] = False
    assert not head.spec.norm_before_residual
