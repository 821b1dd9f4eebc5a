"""Contents of ``tokenizer.json``: a byte-level one, pieces of SentencePiece, and hostile entries."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Library

from peagle.engines.text.tokenizer import Tokenizer

# Its match takes so many steps that the library of regular expressions gives up, and tokenizers panics.
PANICS = r"((?:[a-z]" + r"|[\s\S]" * 200 + r")+)+(?<![\s\S])"
TRUNCATION = {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
PADDING = {
    "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 1, "pad_type_id": 0,
    "pad_token": "[PAD]",
}  # fmt: skip
STEPS = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
TEXT = {"Sequence": {"id": "A", "type_id": 0}}
TEXT_AND_TEXT = [TEXT, {"Sequence": {"id": "B", "type_id": 0}}]


def byte_level(**entries: Any) -> dict[str, Any]:
    """The content of a ``tokenizer.json`` with a token for each byte, and these entries."""
    vocabulary = {letter: at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    step = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {"version": "1.0", "added_tokens": [], "model": model, "pre_tokenizer": step, "decoder": step, **entries}


def inserting(*ids: int) -> dict[str, Any]:
    """A post-processor that puts these ids before a text."""
    added = {"id": "<s>", "ids": ids, "tokens": ["<s>"] * len(ids)}
    single = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, TEXT]
    return {"type": "TemplateProcessing", "single": single, "pair": TEXT_AND_TEXT, "special_tokens": {"<s>": added}}


def sentence_pieces(folder: Path, tokens: Sequence[str], decoder: Any = None) -> Tokenizer:
    """A tokenizer in the manner of Llama 2 and Mistral, unless ``decoder`` is another; ``<s>`` is special."""
    library = Library(models.BPE({token: at for at, token in enumerate(tokens)}, [], byte_fallback=True))
    library.decoder = decoder or decoders.Sequence(STEPS)
    library.add_special_tokens([AddedToken(token) for token in tokens if token == "<s>"])
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)
