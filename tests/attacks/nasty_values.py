"""Values that break programs: numbers at the limits of their types, invalid texts, malformed documents."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

INTEGERS = (
    0, -1, 1, 2, 3, 5, 7, 8, 64, 65, 255, 256, 1000, 4096, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1,
    2**63, -(2**63), 2**64, 10**30,
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 1e-6, 1e-37, 1e-38, 1e-45, 5e-324, 2.5, 100.0, 3.5e38, 1e300, float("inf"),
    float("-inf"), float("nan"),
)  # fmt: skip
NUMBERS_AS_TEXT = (
    "", " ", "0", "-0", "-1", "+1", "1.5", "1e3", "1e400", "-1e400", "nan", "inf", "-inf", "Infinity", "0x10", "1_000",
    "١٢", "\uff11", "2147483648", "9223372036854775808", "9" * 5000, "--1", "1,2", "1;2", "true", "None", "null",
)  # fmt: skip
TEXTS = (
    "", " ", "\t\n", "a", "-", "--", "---", "=", "a=b", "*", "?", "[", "[a", "{", "}{", "\\", "/", "//", ".", "..", "~",
    "$HOME", "%s%n", "{0}", "{x!r}", "'", '"', "`id`", "\x00", "\x1b[31m", "\ufeff", "\u202e", "é", "e\u0301", "中文",
    "😀", "\ud800", "\udcff", "a" * 300, "a" * 100_000, "a/b", "owner/name", "../x", "a/../b", "layers.*", "layers.0.*",
    "**", "demo", "DEMO", "fp32", "fp8", "int4", "int8", "mxfp8", "bf16", "onnxruntime", "tensorrt", "sm_89", "b200",
    "rtx-5090", "ort", "std", "max", "mse", "percentile", "<eos>", "<mask>", "def f(", "\n" * 50, "None", "true", "0",
)  # fmt: skip


def integer(rng: random.Random) -> int:
    """A number at the edge of some type, or a small one."""
    return rng.choice(INTEGERS) if rng.random() < 0.7 else rng.randint(-3, 40)


def number(rng: random.Random) -> int | float:
    """A whole or a real number, possibly not finite."""
    return integer(rng) if rng.random() < 0.4 else rng.choice(FLOATS) if rng.random() < 0.6 else rng.uniform(-1, 3)


def number_as_text(rng: random.Random) -> str:
    """Draw a text that a user may type for a number."""
    return rng.choice(NUMBERS_AS_TEXT) if rng.random() < 0.5 else str(number(rng))


def text(rng: random.Random) -> str:
    """A text that somebody looks for in vain, cannot print, or takes for another."""
    if rng.random() < 0.8:
        return rng.choice(TEXTS)
    return "".join(chr(rng.choice((rng.randint(1, 127), rng.randint(128, 0x24FF)))) for _ in range(rng.randint(1, 20)))


def argument(rng: random.Random) -> str:
    """Draw a text for a command line: without NUL, possibly invalid UTF-8."""
    return text(rng).replace("\0", "").replace("\ud800", "\udc80")


def value(rng: random.Random, depth: int = 2) -> Any:
    """Anything that JSON can say, and numbers that it cannot."""
    kind = rng.randint(0, 9 if depth else 6)
    if kind < 3:
        return number(rng)
    if kind < 5:
        return text(rng) if rng.random() < 0.7 else number_as_text(rng)
    if kind < 7:
        return rng.choice((None, True, False))
    if kind == 7:
        return {text(rng): value(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return [value(rng, depth - 1) for _ in range(rng.randint(0, 4))]


def python_value(rng: random.Random) -> Any:
    """Draw a value that a caller of the Python API may pass by mistake."""
    import numpy as np

    odd: Sequence[Callable[[], Any]] = (
        lambda: np.int64(rng.randint(0, 9)), lambda: np.float32(rng.random()), lambda: np.array(3),
        lambda: np.array([1, 2]), lambda: b"abc", lambda: (x for x in (1, 2)), object, lambda: {1, 2}, lambda: range(3),
        lambda: 1j, lambda: print, lambda: bytearray(b"\xff"), lambda: np.float64("nan"), lambda: np.bool_(True),
        lambda: np.zeros(0), lambda: np.array(["a"]), lambda: type, lambda: ...,
    )  # fmt: skip
    return rng.choice(odd)() if rng.random() < 0.35 else value(rng)


# ------------------------------------------------------------------------------------------------------ documents

NOT_A_DOCUMENT: tuple[bytes, ...] = (
    b"", b" ", b"\0", b"\0" * 4096, b"\xff\xfe{\0}\0", b"\xef\xbb\xbf{}", b"\xff", b"{", b"[" * 100_000, b"{'a': 1}",
    b'{"a":' * 5_000, b"null", b"3", b'"text"', b"[]", b"{}", b"- a\n- b\n", b"a: b: c", b"\ta: 1", b"a: &x [*x]",
    b"a: !!python/object/apply:os.system ['true']", b"a: !!binary x", b"%YAML 9.9\n---\na: 1", b"---\na: 1\n---\nb: 2",
    b"<<: {max_seq_len: 64}", b"<<: 3", b"? [1, 2]\n: 3", b"1: 2", b"null: 3", b"a: 2026-99-99", b"max_seq_len: 0o7777",
    b"max_seq_len: 1e400", b"max_seq_len: " + b"9" * 5000, b"a: 1\na: 2", b"a: 'x", b"max_seq_len: 0x40", b"\x85",
    b"a: &a [x,x]\nb: &b [*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b]\nmodel: [*c,*c,*c,*c,*c,*c]",
    b'{"max_seq_len": NaN}', b'{"max_seq_len": 1e999}', b'{"model": "a\\u0000b"}', b'{"out": "a\\u0000b"}',
    b'{"model": "\\ud800"}', b'{"out": "\\ud800"}', b"out: ''", b"model: ''", b"model: [a, b]", b"\xc3\x28",
)  # fmt: skip


def edited(rng: random.Random, document: Any, known: Sequence[str] = ()) -> tuple[str, Any]:
    """Return the description of a change to one value of a JSON document, and the changed copy."""
    copy = json.loads(json.dumps(document))
    places = list(_places(copy))
    holder, key, path = rng.choice(places)
    what = rng.choice(("set", "set", "set", "near", "near", "delete", "add", "swap"))
    if what == "delete":
        del holder[key]
    elif what == "add" and isinstance(holder, dict):
        key = rng.choice(known) if known and rng.random() < 0.7 else text(rng)
        holder[key] = value(rng)
        return f"add {path}/{key[:40]!r} = {_short(holder[key])}", copy
    elif what == "swap":
        other, place, there = rng.choice(places)
        holder[key] = json.loads(json.dumps(other[place]))
        return f"put {there} into {path}", copy
    elif what == "near":
        holder[key] = _near(rng, holder[key])
    else:
        holder[key] = value(rng)
    return f"{what} {path}" + ("" if what == "delete" else f" = {_short(holder[key])}"), copy


def _near(rng: random.Random, old: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice((old + 1, old - 1, old * 2, old // 2, -old, integer(rng)))
    if isinstance(old, float):
        return rng.choice((old * 2, -old, 1 / old if old else 1.0, rng.choice(FLOATS)))
    if isinstance(old, str):
        return rng.choice((old + "x", old[:-1], old.upper(), "/" + old, "../" + old, text(rng)))
    if isinstance(old, list):
        return rng.choice((old + old, old[::-1], old[1:], [], [old]))
    if isinstance(old, Mapping):
        return rng.choice(({}, {**old, "x": 1}, [old], dict(list(old.items())[1:])))
    return value(rng)


def _places(document: Any, path: str = "") -> Any:
    """(what holds it, key, path) of all values of a document."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for key, held in list(items):
        yield document, key, f"{path}/{key}"
        if isinstance(held, dict | list):
            yield from _places(held, f"{path}/{key}")


def _short(any_value: Any) -> str:
    return repr(any_value)[:80]
