"""The ``tokenizer.json`` of a GGUF file, made from its tokens, their kinds, and their merges or scores."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....plugins.errors import BuildError
from ....plugins.problems import shown
from .header import GgufHeader
from .pre_tokenizers import PRE_TOKENIZERS, PreTokenizer

_KEY = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER = 2, 3, 4  # of tokenizer.ggml.token_type
_SPECIAL = (_UNKNOWN, _CONTROL)
_OWN = "use a file of the model whose tokenizer is whole, or the safetensors of the model"


def tokenizer_json(header: GgufHeader) -> str:
    """The content of the file. Raises ``BuildError`` for a tokenizer that is of another kind, or does not fit."""
    made = _byte_pairs(header)
    return str(made.to_str())


def special_tokens(header: GgufHeader) -> dict[str, str]:
    """The text of each special token that the file names by its id, as ``tokenizer_config.json`` has them."""
    tokens = _tokens(header)
    keys = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {name: _id(header, f"{key}_token_id", len(tokens)) for name, key in keys.items()}
    return {name: tokens[token] for name, token in ids.items() if token is not None}


def end_ids(header: GgufHeader) -> list[int]:
    """The ids that end a text or a turn, as the file names them."""
    count = len(_tokens(header))
    ids = (_id(header, f"{key}_token_id", count) for key in ("eos", "eot", "eom"))
    return list(dict.fromkeys(token for token in ids if token is not None))


def _byte_pairs(header: GgufHeader) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    kind = _said(header, "model", str, "")
    if kind != "gpt2":
        raise _refused(header, f"a tokenizer of the kind {shown(repr(kind))}", "gpt2 (byte pairs) is read")
    tokens, rule = _tokens(header), _pre_tokenizer(header)
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise _wrong(header, "two tokens have the same text")
    try:
        tokenizer = Tokenizer(models.BPE(vocabulary, _merges(header), ignore_merges=rule.whole))
    except Exception as error:  # the library raises bare Exception
        raise _wrong(header, str(error)) from None
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = rule.cut()
    tokenizer.decoder = decoders.ByteLevel()
    _add_special(tokenizer, header, tokens)
    if _said(header, "add_bos_token", bool, rule.bos):
        _begin_with_bos(tokenizer, header, tokens)
    return tokenizer


def _pre_tokenizer(header: GgufHeader) -> PreTokenizer:
    name = _said(header, "pre", str, "")
    if name not in PRE_TOKENIZERS:
        stated = shown(repr(name)) if name else "no name"
        raise _refused(
            header,
            f"{stated} for how a text is cut before its bytes are paired",
            f"those that are known here are {', '.join(PRE_TOKENIZERS)}; cut otherwise, a text has other tokens",
        )
    return PRE_TOKENIZERS[name]


def _add_special(tokenizer: Any, header: GgufHeader, tokens: list[str]) -> None:
    from tokenizers import AddedToken

    kinds = _said(header, "token_type", list, [])
    if kinds and len(kinds) != len(tokens):
        raise _wrong(header, f"{len(tokens)} tokens have {len(kinds)} kinds")
    for group in (_SPECIAL, (_USER,)):
        added = [
            AddedToken(token, normalized=False, special=group is _SPECIAL)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind in group
        ]
        (tokenizer.add_special_tokens if group is _SPECIAL else tokenizer.add_tokens)(added)


def _begin_with_bos(tokenizer: Any, header: GgufHeader, tokens: list[str]) -> None:
    from tokenizers import processors

    token = _id(header, "bos_token_id", len(tokens))
    if token is None:
        raise _wrong(header, "a text is to begin with a token that is not named (bos_token_id)")
    text = tokens[token]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[text, "$A"], pair=[text, "$A", text, "$B"], special_tokens=[(text, token)]
    )


def _merges(header: GgufHeader) -> list[tuple[str, str]]:
    stated = _said(header, "merges", list, [])
    pairs = [tuple(each.split(" ")) for each in stated if isinstance(each, str)]
    if len(pairs) != len(stated) or any(len(pair) != 2 for pair in pairs):
        raise _wrong(header, "a merge is not two tokens with a space between them")
    return [(pair[0], pair[1]) for pair in pairs]


def _tokens(header: GgufHeader) -> list[str]:
    tokens: list[str] = _said(header, "tokens", list, [])
    if not tokens or not all(isinstance(token, str) for token in tokens):
        raise _wrong(header, "it has no list of tokens")
    return tokens


def _id(header: GgufHeader, key: str, count: int) -> int | None:
    token = header.metadata.get(_KEY + key)
    if token is None:
        return None
    if type(token) is not int or not 0 <= token < count:
        raise _wrong(header, f"{_KEY}{key} is {shown(repr(token))}, and there are {count} tokens")
    return token


def _said(header: GgufHeader, key: str, kind: type[Any], otherwise: Any) -> Any:
    """What the file says under a key. Raises ``BuildError`` where that is of another type."""
    value = header.metadata.get(_KEY + key, otherwise)
    if type(value) is not kind:
        raise _wrong(header, f"{_KEY}{key} is {shown(repr(value))}")
    return value


def _wrong(header: GgufHeader, why: str) -> BuildError:
    return BuildError(f"{header.file} has a tokenizer that is not whole", why=why, fix=_OWN)


def _refused(header: GgufHeader, what: str, why: str) -> BuildError:
    return BuildError(f"{header.file} has {what}", why=why, fix=_OWN)


def settings(header: GgufHeader) -> Mapping[str, Any]:
    """The content of ``tokenizer_config.json``, without the chat template."""
    return {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False} | special_tokens(
        header
    )
