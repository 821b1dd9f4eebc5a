"""SentencePiece tokenizers: a space is the letter ``▁``, and characters without a token are encoded as bytes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from .vocabulary import CONTROL, UNKNOWN, Vocabulary

_SPACE = "▁"
_BYTES = 6  # a value of tokenizer.ggml.token_type
Merge = tuple[str, str]


def llama_pieces(vocabulary: Vocabulary) -> Any:
    """Create the tokenizer of Llama 2 and Mistral: merges ranked by token score, and a space before the text."""
    from tokenizers import decoders, normalizers

    merges = vocabulary.merges() or merges_by_score(vocabulary)
    tokenizer = _pieces(vocabulary, merges)
    led = bool(vocabulary.field("add_space_prefix", bool, True))
    spaces = normalizers.Replace(" ", _SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), spaces]) if led else spaces
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if led else [])])
    return tokenizer


def gemma_pieces(vocabulary: Vocabulary) -> Any:
    """Create the tokenizer of Gemma 4, whose file contains the merges."""
    from tokenizers import decoders, normalizers, pre_tokenizers

    tokenizer = _pieces(vocabulary, vocabulary.merges())
    tokenizer.normalizer = normalizers.Replace(" ", _SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _pieces(vocabulary: Vocabulary, merges: Sequence[Merge]) -> Any:
    from tokenizers import Tokenizer, models

    unknown = next((token for token, kind in vocabulary.by_kind() if kind == UNKNOWN), None)
    with vocabulary.fitting():
        return Tokenizer(models.BPE(vocabulary.ids(), [*merges], unk_token=unknown, fuse_unk=True, byte_fallback=True))


def merges_by_score(vocabulary: Vocabulary) -> list[Merge]:
    """Return the pairs that form each token, by descending score of that token."""
    scores = vocabulary.scores()
    apart = {token for token, kind in vocabulary.by_kind() if kind in (UNKNOWN, CONTROL, _BYTES)}
    return _ranked(vocabulary.ids(), scores, apart)


def _ranked(ids: Mapping[str, int], scores: Sequence[float], apart: Collection[str]) -> list[Merge]:
    found: list[tuple[float, int, int, Merge]] = []
    for token, index in ids.items():
        if token in apart:
            continue
        pairs = ((token[:at], token[at:]) for at in range(1, len(token)))
        known = [pair for pair in pairs if all(part in ids and part not in apart for part in pair)]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(scores[index], len(left), len(right), (left, right)) for left, right in known]
    found.sort(key=lambda each: each[:3], reverse=True)
    return [merge for *_, merge in found]
