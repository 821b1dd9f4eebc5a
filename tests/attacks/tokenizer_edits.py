"""Hostile tokenizers: a ``tokenizer.json`` with arbitrary truncation, padding, steps and added tokens."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from peagle.engines import Engine, EngineFailed, RequestOutput, SamplingParams, StructuredOutputsParams
from peagle.engines.text.tokenizer import Tokenizer
from peagle.plugins.errors import PeagleError
from tests.attacks import nasty_values as nasty
from tests.attacks.world import World
from tests.models import VOCAB
from tests.tokenizer_files import PANICS, TEXT, TEXT_AND_TEXT, byte_level, inserting

Piece = tuple[str, Any]  # an entry of the file and its value; or "base", "text", "edit" and a JSON path with its value

_CODE = "def add(a, b):\n    return a + b  # caf\u00e9 \u4e2d\u6587 \U0001f600"
_PROBE = SamplingParams(max_tokens=6, seed=3, ignore_eos=True)
_WORDS = ("", "a", "b", " ", "ab", "aa", "\u0120", "\u2581", "\ufffd", "\u00e9", "x" * 30, "x" * 10_000, "a" * 5_000)
_EXPRESSIONS = (
    "", "a", ".", ".*", r"[\s\S]", "(?=a)", "^", "$", r"\b", "(a+)+$", "(a|aa)+$", r"(\w*)*!", "[", "(", "a{100000}",
    "(?<!a)", r"\p{L}+", r"(a)\1", "(?i)A", "(?m)^", PANICS, f"(?=a){PANICS}", r"\s+", ".{0,9}",
)  # fmt: skip
_BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous", "Other")
_SIZES = (-1, 0, 1, 2, 4, 7, 40, 96, 10**6, 10**9, 2**31, 2**63 - 1, 2**64)
_IDS = (0, 1, 2, 7, 95, 96, 255, 256, 259, 10**6, 2**32 - 1, 2**32)


def draw(rng: random.Random, world: World) -> list[Piece]:
    """A tokenizer, a text for it, and one to three hostile entries."""
    pieces: list[Piece] = [("base", rng.choice(("bytes", "pieces"))), ("text", _text(rng))]
    for _ in range(rng.choice((1, 1, 2, 3))):
        name = rng.choice((*_DRAWN, "edit"))
        if name != "edit":
            pieces.append((name, _DRAWN[name](rng)))
        else:  # of any entry in the file
            content = json.loads((world.engine / "tokenizer.json").read_text())
            words, content = nasty.edited(rng, content)
            pieces.append(("edit", {"words": words, "content": content}))
    return pieces


def run(world: World, engine: Engine, pieces: list[Piece]) -> str | None:
    """Describe what is wrong with encoding, decoding, or an ``engine`` with the tokenizer; None if nothing is."""
    given = [(name, value) for name, value in pieces if name not in ("base", "text")]
    text = dict(pieces).get("text", _CODE)
    base = _pieces() if dict(pieces).get("base") == "pieces" else byte_level()
    tiny = json.loads((world.engine / "tokenizer.json").read_text())
    for content, vocab_size in ((base, 300), (tiny, VOCAB)):
        tokenizer = _read(world, _with(content, given), vocab_size)
        if isinstance(tokenizer, str):
            return tokenizer
        if tokenizer is None:
            continue
        for each in (_CODE, text):
            if complaint := _of_a_text(world, tokenizer, each, vocab_size):
                return complaint
        if vocab_size == VOCAB and (complaint := _of_an_engine(engine, tokenizer, text)):
            return complaint
    return None


def _read(world: World, content: Any, vocab_size: int) -> Tokenizer | str | None:
    """The tokenizer, None where it is refused, or a complaint."""
    (world.here / "tokenizer.json").write_text(json.dumps(content))
    return _ended(lambda: Tokenizer(world.here, {0}, vocab_size))


def _ended(call: Callable[[], Any]) -> Any:
    """Return the result of a call; None for a ``PeagleError``, a description for an unhelpful error."""
    try:
        return call()
    except EngineFailed as error:
        return f"one text ended a pass of all: {error}"
    except PeagleError as error:
        return None if error.what and error.why and error.fix else f"an error without a reason or a cure: {error}"


def _of_a_text(world: World, tokenizer: Tokenizer, text: str, vocab_size: int) -> str | None:
    ids = _ended(lambda: tokenizer.encode(text))
    if not isinstance(ids, list):
        return ids if isinstance(ids, str) else None
    plain = _plain(world)
    if ids != list(plain.encode(text).ids):
        return f"other ids than those of the same file without truncation, padding and dropout: {ids[:9]}"
    if not all(0 <= token < vocab_size for token in ids):
        return f"ids that the model does not have: {max(ids)}"
    if tokenizer.encode(text, max_seq_len=len(ids) + 1) != ids:
        return "other ids where they just fit the context"
    decoded = _ended(lambda: (tokenizer.decode(ids),))
    if isinstance(decoded, tuple) and decoded[0] != plain.decode(ids):
        return f"another text than the library's: {decoded[0][:80]!r}"
    stream = tokenizer.stream()
    streamed = _ended(lambda: tuple(stream.push(token) for token in ids[:200]))
    pieces = _ended(lambda: tuple(map(tokenizer.piece, sorted({*ids})[:50])))
    return next((each for each in (decoded, streamed, pieces) if isinstance(each, str)), None)


def _plain(world: World) -> Any:
    """The same file as the library reads it, without what is for training runs."""
    import tokenizers

    content = json.loads((world.here / "tokenizer.json").read_text())
    content["truncation"] = content["padding"] = None
    if isinstance(content.get("model"), dict) and "dropout" in content["model"]:
        content["model"]["dropout"] = None
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def _of_an_engine(engine: Engine, tokenizer: Tokenizer, text: str) -> str | None:
    """The same ids give the same ids with any tokenizer, and the engine keeps running after each text."""
    with Engine(engine.folder, engine.manifest, engine._backend, tokenizer) as hostile:
        calls: Mapping[str, Callable[[], RequestOutput]] = {
            "text": lambda: hostile.generate([text], _PROBE)[0],
            "stop": lambda: hostile.generate([[7, 8, 9]], SamplingParams(max_tokens=6, stop="b", bad_words=["ab"]))[0],
            "form": lambda: hostile.generate([[7, 8, 9]], SamplingParams(max_tokens=6, structured_outputs=_FORM))[0],
            "ids": lambda: hostile.generate([[7, 8, 9]], _PROBE)[0],
        }
        ended = {name: _ended(call) for name, call in calls.items()}
        hostile.require_open()
    if complaint := next((each for each in ended.values() if isinstance(each, str)), None):
        return complaint
    with Engine(engine.folder, engine.manifest, engine._backend, engine.tokenizer) as friendly:
        expected = friendly.generate([[7, 8, 9]], _PROBE)[0].token_ids
    if (output := ended["ids"]) is not None and output.token_ids != expected:
        return f"other tokens after the same ids: {output.token_ids}"
    return None


_FORM = StructuredOutputsParams(regex="[ab]{3}")


# ------------------------------------------------------------------------------------------------ entries


def _with(content: dict[str, Any], given: list[Piece]) -> dict[str, Any]:
    """A copy of a file with these entries; an edit stands for a file of its own."""
    made = json.loads(json.dumps(content))
    for name, value in given:
        if name == "edit":
            made = json.loads(json.dumps(value["content"]))
        elif name == "model":
            made["model"] = {**made["model"], **value} if isinstance(made.get("model"), dict) else value
        elif isinstance(made, dict):
            steps = made.get(name)
            joins = name in ("decoder", "pre_tokenizer") and isinstance(steps, dict) and isinstance(value, dict)
            made[name] = _sequence(name, [steps, value]) if joins else value
    return dict(made) if isinstance(made, dict) else made


def _text(rng: random.Random) -> str:
    return rng.choice((_CODE * rng.choice((1, 3, 40)), "a" * rng.choice((1, 9, 300, 5000)), nasty.text(rng), " " * 99))


def _truncation(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return nasty.value(rng)
    return {
        "max_length": rng.choice(_SIZES), "strategy": rng.choice(("LongestFirst", "OnlyFirst", "OnlySecond", "x")),
        "stride": rng.choice((0, 0, 0, *_SIZES)), "direction": rng.choice(("Left", "Right")),
    }  # fmt: skip


def _padding(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return nasty.value(rng)
    return {
        "strategy": rng.choice(("BatchLongest", {"Fixed": rng.choice(_SIZES)}, {"Fixed": rng.choice(_SIZES)})),
        "direction": rng.choice(("Left", "Right")), "pad_to_multiple_of": rng.choice((None, *_SIZES)),
        "pad_id": rng.choice(_IDS), "pad_type_id": 0, "pad_token": rng.choice(_WORDS),
    }  # fmt: skip


def _replace(rng: random.Random) -> dict[str, Any]:
    pattern = {"String": rng.choice(_WORDS)} if rng.random() < 0.5 else {"Regex": rng.choice(_EXPRESSIONS)}
    return {"type": "Replace", "pattern": pattern, "content": rng.choice(_WORDS)}


def _steps_of(step: Callable[[random.Random], Any], name: str) -> Callable[[random.Random], Any]:
    """One step, some, many of the same, or some in sequences of sequences."""

    def drawn(rng: random.Random) -> Any:
        roll = rng.random()
        if roll < 0.05:
            return nasty.value(rng)
        if roll < 0.5:
            return step(rng)
        if roll < 0.6:
            return _sequence(name, [step(rng)] * rng.choice((2, 9, 40, 200)))
        made = [step(rng) for _ in range(rng.randint(0, 4))]
        for _ in range(rng.choice((0, 0, 1, 30, 120)) if roll > 0.9 else 0):
            made = [_sequence(name, made)]
        return _sequence(name, made)

    return drawn


_LISTS = {
    "normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors",
    "decoder": "decoders",
}  # fmt: skip


def _sequence(name: str, steps: list[Any]) -> dict[str, Any]:
    return {"type": "Sequence", _LISTS[name]: steps}


def _normalizer(rng: random.Random) -> Any:
    return rng.choice((
        _replace(rng), _replace(rng), _replace(rng), {"type": "Prepend", "prepend": rng.choice(_WORDS)},
        {"type": "Strip", "strip_left": True, "strip_right": rng.random() < 0.5},
        {"type": rng.choice(("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel", "x"))},
        {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
         "lowercase": True},
        {"type": "Precompiled", "precompiled_charsmap": _charsmap(rng)},
    ))  # fmt: skip


def _charsmap(rng: random.Random) -> str:
    size = rng.choice((0, 4, 8, 2**31, 2**32 - 1))
    return base64.b64encode(size.to_bytes(4, "little") + rng.randbytes(rng.choice((0, 3, 8, 64)))).decode()


def _pre_tokenizer(rng: random.Random) -> Any:
    return rng.choice((
        {"type": "Split", "pattern": _replace(rng)["pattern"], "behavior": rng.choice(_BEHAVIORS),
         "invert": rng.random() < 0.5},
        {"type": "Punctuation", "behavior": rng.choice(_BEHAVIORS)},
        {"type": "FixedLength", "length": rng.choice(_SIZES)},
        {"type": "Digits", "individual_digits": True},
        {"type": "Metaspace", "replacement": rng.choice(("\u2581", "a", "")), "prepend_scheme": "always",
         "split": True},
        {"type": "CharDelimiterSplit", "delimiter": rng.choice(("a", " ", ""))},
        {"type": rng.choice(("Whitespace", "WhitespaceSplit", "BertPreTokenizer", "UnicodeScripts"))},
    ))  # fmt: skip


def _post_processor(rng: random.Random) -> Any:
    some = [rng.choice(_IDS) for _ in range(rng.choice((0, 1, 1, 5, 5000)))]
    pair = {"sep": ["s", rng.choice(_IDS)], "cls": ["c", rng.choice(_IDS)]}
    return rng.choice((
        inserting(*some), inserting(*some),
        {"type": "BertProcessing", **pair},
        {"type": "RobertaProcessing", **pair, "trim_offsets": True, "add_prefix_space": False},
        {"type": "TemplateProcessing", "single": [TEXT] * rng.choice((0, 1, 2, 900)), "pair": TEXT_AND_TEXT,
         "special_tokens": {}},
        {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<missing>", "type_id": 0}}, TEXT],
         "pair": TEXT_AND_TEXT, "special_tokens": {}},
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    ))  # fmt: skip


def _decoder(rng: random.Random) -> Any:
    return rng.choice((
        _replace(rng), _replace(rng), _replace(rng),
        {"type": "Strip", "content": rng.choice(("a", " ", "", "ab")), "start": rng.choice(_SIZES),
         "stop": rng.choice(_SIZES)},
        {"type": "WordPiece", "prefix": rng.choice(_WORDS), "cleanup": True},
        {"type": "BPEDecoder", "suffix": rng.choice(_WORDS)},
        {"type": "CTC", "pad_token": rng.choice(_WORDS), "word_delimiter_token": rng.choice(_WORDS), "cleanup": True},
        {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True},
        {"type": rng.choice(("ByteFallback", "Fuse", "ByteLevel", "x"))},
    ))  # fmt: skip


def _added_tokens(rng: random.Random) -> Any:
    if rng.random() < 0.1:
        return nasty.value(rng)
    return [
        {"id": rng.choice(_IDS), "content": rng.choice((*_WORDS, "<x>", nasty.text(rng))),
         **{flag: rng.random() < 0.5 for flag in ("single_word", "lstrip", "rstrip", "normalized", "special")}}
        for _ in range(rng.randint(1, 3))
    ]  # fmt: skip


def _model(rng: random.Random) -> Any:
    name = rng.choice(
        ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback",
         "ignore_merges", "merges", "type")
    )  # fmt: skip
    values: dict[str, Any] = {
        "dropout": rng.choice((0.0, 0.5, 1.0, 2.0)), "unk_token": rng.choice(_WORDS), "merges": [["a", "b"]],
        "type": rng.choice(("WordPiece", "WordLevel", "Unigram", "x")),
    }  # fmt: skip
    return {name: values.get(name, rng.choice((*_WORDS, True, False)))}


_DRAWN: Mapping[str, Callable[[random.Random], Any]] = {
    "truncation": _truncation,
    "padding": _padding,
    "normalizer": _steps_of(_normalizer, "normalizer"),
    "pre_tokenizer": _steps_of(_pre_tokenizer, "pre_tokenizer"),
    "post_processor": _steps_of(_post_processor, "post_processor"),
    "decoder": _steps_of(_decoder, "decoder"),
    "added_tokens": _added_tokens,
    "model": _model,
}


def _pieces() -> dict[str, Any]:
    """A tokenizer as SentencePiece makes them: a token for each byte, and the space is U+2581."""
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "aa"]
    model = {
        "type": "BPE", "vocab": {token: at for at, token in enumerate(tokens)}, "merges": [["a", "a"]],
        "byte_fallback": True, "unk_token": "<unk>", "fuse_unk": True, "dropout": None,
    }  # fmt: skip
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    back = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    decoder = _sequence("decoder", [back, {"type": "ByteFallback"}, {"type": "Fuse"}])
    return {"version": "1.0", "added_tokens": [], "model": model, "normalizer": space, "decoder": decoder}
