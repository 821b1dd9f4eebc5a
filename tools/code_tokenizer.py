"""A lossless byte-level BPE tokenizer for Python source, 2,048 entries.

The split rule keeps a line break together with the indentation that follows it, so that "\\n        " can become one
token: indentation carries the structure of Python, and spending one token per line on it shortens every sequence.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import PreTrainedTokenizerFast

VOCAB_SIZE = 2048
END = "<|endoftext|>"
MASK = "<|mask|>"  # never occurs in text: the drafter's placeholder row
MAX_LENGTH = 2048

# Line breaks with indentation | word | up to three digits | punctuation | other white space.
_SPLIT = r"\n+ *| ?[A-Za-z_]+| ?[0-9]{1,3}| ?[^\sA-Za-z0-9_]+|\s+"


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learn the merges from `texts`; every one of the 256 byte values stays representable."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=END,
        eos_token=END,
        pad_token=END,
        mask_token=MASK,
        model_max_length=MAX_LENGTH,
        clean_up_tokenization_spaces=False,
    )


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Read the tokenizer back from a model folder."""
    return PreTrainedTokenizerFast.from_pretrained(folder)


def encode_stream(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> Tensor:
    """Return all documents as one stream of ids, each followed by the end token.  int64 [T]."""
    end = int(tokenizer.eos_token_id)
    ids: list[int] = []
    for encoding in tokenizer.backend_tokenizer.encode_batch(texts):
        ids += [*encoding.ids, end]
    return torch.tensor(ids, dtype=torch.int64)
