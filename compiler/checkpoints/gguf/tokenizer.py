"""Create ``tokenizer.json`` for a GGUF file from its tokens, their types, and their merges or scores."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from ....plugins.problems import shown
from .header import GgufHeader
from .pre_tokenizers import PRE_TOKENIZERS, PreTokenizer
from .sentence_pieces import gemma_pieces, llama_pieces
from .vocabulary import CONTROL, UNKNOWN, USER, Vocabulary

_SPECIAL = (UNKNOWN, CONTROL)


def tokenizer_json(header: GgufHeader) -> str:
    """Return the content of the file. Raises ``BuildError`` for an unsupported or damaged tokenizer."""
    vocabulary = Vocabulary(header)
    kind = vocabulary.field("model", str, "")
    if kind not in _KINDS:
        raise vocabulary.refused(
            f"a tokenizer of type {shown(repr(kind))}", f"the supported types are {', '.join(_KINDS)}"
        )
    make, begins_with_bos = _KINDS[kind]
    tokenizer = make(vocabulary)
    _add_special(tokenizer, vocabulary)
    if begins_with_bos(vocabulary):
        _begin_with_bos(tokenizer, vocabulary)
    return str(tokenizer.to_str())


def settings(header: GgufHeader) -> dict[str, Any]:
    """Return the content of ``tokenizer_config.json``, without the chat template."""
    vocabulary = Vocabulary(header)
    tokens = vocabulary.tokens()
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special = {name: tokens[token] for name, key in names.items() if (token := vocabulary.id(key)) is not None}
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | special


def end_ids(header: GgufHeader, others: Collection[str] = ()) -> list[int]:
    """Return the ids that end a text or a turn, according to the file, and those of ``others`` that it has."""
    vocabulary = Vocabulary(header)
    ids = [vocabulary.id(name) for name in ("eos", "eot", "eom")]
    if others:
        known = vocabulary.ids()
        ids += [known.get(text) for text in others]
    return list(dict.fromkeys(token for token in ids if token is not None))


def _byte_pairs(vocabulary: Vocabulary) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    rule = _pre_tokenizer(vocabulary)
    with vocabulary.fitting():
        tokenizer = Tokenizer(models.BPE(vocabulary.ids(), vocabulary.merges(), ignore_merges=rule.whole))
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.cut()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(vocabulary: Vocabulary) -> PreTokenizer:
    name = vocabulary.field("pre", str, "")
    if name not in PRE_TOKENIZERS:
        raise vocabulary.refused(
            f"the pre-tokenizer {shown(repr(name))}" if name else "a tokenizer without a named pre-tokenizer",
            f"the supported pre-tokenizers are {', '.join(PRE_TOKENIZERS)}; any other would split text into "
            f"different tokens",
        )
    return PRE_TOKENIZERS[name]


def _add_special(tokenizer: Any, vocabulary: Vocabulary) -> None:
    from tokenizers import AddedToken

    special = [token for token, kind in vocabulary.by_kind() if kind in _SPECIAL and token]
    own = [token for token, kind in vocabulary.by_kind() if kind == USER and token]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    tokenizer.add_tokens([AddedToken(token, normalized=False, special=False) for token in own])


def _begin_with_bos(tokenizer: Any, vocabulary: Vocabulary) -> None:
    from tokenizers import processors

    token = vocabulary.id("bos")
    if token is None:
        raise vocabulary.wrong("the tokenizer adds a BOS token to texts, but bos_token_id is missing")
    text = vocabulary.tokens()[token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[text, "$A"], pair=[text, "$A", text, "$B"], special_tokens=[(text, token)]
    )


# For each tokenizer.ggml.model: how to create the tokenizer, and whether texts begin with BOS. The file decides, else
# llama.cpp's default applies; Gemma's own tokenizer adds none, because its template writes it.
_KINDS: Mapping[str, tuple[Callable[[Vocabulary], Any], Callable[[Vocabulary], bool]]] = {
    "gpt2": (_byte_pairs, lambda it: bool(it.field("add_bos_token", bool, _pre_tokenizer(it).bos))),
    "llama": (llama_pieces, lambda it: bool(it.field("add_bos_token", bool, True))),
    "gemma4": (gemma_pieces, lambda it: False),
}
