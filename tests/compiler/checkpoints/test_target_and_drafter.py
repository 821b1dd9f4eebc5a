"""The end-of-text tokens of a pair of checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from peagle.compiler.checkpoints.resolve_names import resolve
from peagle.compiler.checkpoints.target_and_drafter import GENERATION_CONFIG, Inputs, read_inputs
from peagle.compiler.request.request import HeadOptions, SizeOptions
from peagle.graphs.drafters import TAPS
from peagle.plugins.errors import BuildError
from tests.models import Pair


def read(pair: Pair) -> Inputs:
    return read_inputs(SizeOptions(), resolve(str(pair.target), str(pair.head)))


def say(pair: Pair, eos: Any) -> Path:
    file = pair.target / GENERATION_CONFIG
    file.write_text(json.dumps({"eos_token_id": eos}))
    return file


@pytest.mark.parametrize(("eos", "ids"), [(5, (5,)), ([1, 95], (1, 95)), (None, ()), ([], ())])
def test_generation_config_defines_end_tokens(pair: Pair, eos: Any, ids: tuple[int, ...]) -> None:
    say(pair, eos)
    assert read(pair).eos_token_ids == ids


@pytest.mark.parametrize("eos", [1_000_000_000, -1, 96, "5", 5.0, True, [1, None], {"a": 1}])
def test_an_id_that_the_model_cannot_give_is_refused(pair: Pair, eos: Any) -> None:
    file = say(pair, eos)
    with pytest.raises(BuildError) as caught:
        read(pair)
    assert str(file) in caught.value.what
    assert "0 to 95" in caught.value.why


def test_config_defines_end_tokens_without_generation_config(pair: Pair) -> None:
    (pair.target / GENERATION_CONFIG).unlink(missing_ok=True)
    config = pair.config
    (pair.target / "config.json").write_text(json.dumps(config | {"eos_token_id": 10**9}))
    with pytest.raises(BuildError, match=r"config\.json: eos_token_id is 1000000000"):
        read(pair)


def test_a_generation_config_of_endless_depth_is_refused(pair: Pair) -> None:
    (pair.target / GENERATION_CONFIG).write_text("[" * 100_000)
    with pytest.raises(BuildError, match=r"generation_config\.json is not valid JSON"):
        read(pair)


def test_yarn_allows_a_longer_sequence_than_the_config_states(pair: Pair) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 200}
    config = {name: value for name, value in pair.config.items() if name != "rope_parameters"}
    (pair.target / "config.json").write_text(json.dumps(config | {"rope_scaling": rope}))
    inputs = read_inputs(SizeOptions(max_seq_len=700), resolve(str(pair.target), str(pair.head)))
    assert inputs.max_seq_len == 700
    assert not any("max_seq_len" in warning for warning in inputs.warnings)


def test_a_template_that_no_chat_could_use_is_a_warning(pair: Pair) -> None:
    (pair.target / "chat_template.jinja").write_text("{{ messages }}")
    before = read(pair).warnings
    (pair.target / "chat_template.jinja").write_text("{% if")
    (warning,) = set(read(pair).warnings) - set(before)
    assert warning.startswith("chat will not be available: the model's chat template is not valid Jinja (line 1:")


def test_damaged_template_is_rejected(pair: Pair) -> None:
    (pair.target / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(BuildError, match=r"chat_template\.jinja cannot be read"):
        read(pair)


def test_head_with_mask_hidden_declared_eagle3_is_read_as_p_eagle_with_a_note(pair: Pair) -> None:
    file = pair.head / "config.json"
    config = json.loads(file.read_text())
    for said, warns in (("peagle", False), ("eagle3", True)):
        file.write_text(json.dumps(config | {"speculators_model_type": said, "norm_before_residual": False}))
        inputs = read(pair)
        assert inputs.head is not None
        assert inputs.head.strategy == "parallel"
        assert (
            any(
                "has speculators_model_type eagle3; the head was read as P-EAGLE" in warning
                for warning in inputs.warnings
            )
            == warns
        )


def test_captured_layers_are_reported_unless_taps_are_given(pair: Pair) -> None:
    file = pair.head / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"eagle_config": {TAPS: [1, 2, 3]}}))
    inputs = read(pair)
    assert inputs.target.spec.taps == (2, 3, 4)
    assert any("the taps are [2, 3, 4]" in warning for warning in inputs.warnings)
    given = HeadOptions(taps=("1", "2", "3"))
    inputs = read_inputs(SizeOptions(), resolve(str(pair.target), str(pair.head)), given.over)
    assert inputs.target.spec.taps == (1, 2, 3)
    assert not any("the head lists layers" in warning for warning in inputs.warnings)


def test_suggested_replacement_head_has_the_same_method(pair: Pair, eagle3_pair: Pair) -> None:
    for head, kind in ((pair.head, "P-EAGLE"), (eagle3_pair.head, "EAGLE-3")):
        folder = Path(shutil.copytree(head, pair.target.with_name(kind)))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 7}))
        with pytest.raises(BuildError) as caught:
            read(type(pair)(pair.target, folder))
        assert caught.value.fix == f"use the {kind} head that was trained for this target"
