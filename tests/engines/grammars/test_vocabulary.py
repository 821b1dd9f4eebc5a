"""Tokens added to a vocabulary: plain text, or special symbols."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from peagle.engines import StructuredOutputsParams
from peagle.engines.grammars.compiled import Grammars

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def known() -> Tokenizer:
    """Bytes, an end and another special token, and two that are text, behind a gap of ids."""
    letters = {each: at for at, each in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    known = Tokenizer(models.BPE(letters | {"gone": 300}, []))
    known.pre_tokenizer, known.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    known.add_special_tokens(["<end>", "<turn>"])
    known.add_tokens([AddedToken(each, normalized=False) for each in ("<think>", "</think>")])
    return known


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"regex": "<think>[a-z ]{0,9}</think>[0-9]"}, "<think>so it is</think>7"),
        ({"choice": ["<think>", "</think>"]}, "</think>"),
        ({"json": {"enum": ["<think>no</think>"]}}, '"<think>no</think>"'),
        ({"json": {"type": "string"}}, '"a <think> b"'),
        ({"grammar": 'start: <turn> "<think>" /[a-z]/'}, "<turn><think>a"),
    ],
    ids=["regex", "choice", "enum", "string", "grammar"],
)
def test_grammar_can_spell_out_special_tokens(known: Tokenizer, tmp_path: Path, form: Any, text: str) -> None:
    known.save(str(tmp_path / "tokenizer.json"))
    end = known.token_to_id("<end>")
    grammars = Grammars((tmp_path / "tokenizer.json").read_text, frozenset({end}), 320)
    path = grammars.path(StructuredOutputsParams(**form), frozenset({end}))
    assert path is not None
    ids = known.encode(text, add_special_tokens=False).ids
    assert len(ids) < len(text), "it has tokens of its own"
    for token in ids:
        assert path.allowed()[token]
        path.advance(token)
    assert path.failure is None
    assert [*np.flatnonzero(path.allowed())] == [end]
    drafts = grammars.path(StructuredOutputsParams(regex="<think>yes"), frozenset({end}))
    assert drafts is not None
    assert drafts.drafts([], 4) == known.encode("<think>yes", add_special_tokens=False).ids
