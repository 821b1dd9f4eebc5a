"""``CachedAttention``: write new keys and values into a linear cache, attend at absolute positions."""

from __future__ import annotations

from collections.abc import Mapping

from ...graph_contract import SCALE_BYTES
from ...limits import finite, not_negative, zero_or_one
from ...op_spec import FLOAT8, FLOATS, Attribute, Operand, OpSpec
from .body import body
from .cpu_cases import cpu_cases
from .reference import cached_attention


def _check_dims(dims: Mapping[str, int]) -> str | None:
    if {"Hq", "Hkv"} <= dims.keys() and (not dims["Hkv"] or dims["Hq"] % dims["Hkv"]):
        return f"{dims['Hq']} query heads cannot share {dims['Hkv']} key heads evenly"
    if dims.get("S", 0) > dims.get("T", dims.get("S", 0)):
        return f"{dims['S']} new positions do not fit a cache of {dims['T']}"
    if {"D", "W"} <= dims.keys() and dims["W"] not in (dims["D"], dims["D"] + SCALE_BYTES):
        return f"a cache with {dims['W']} numbers per position does not fit heads of size {dims['D']}"
    return None


SPEC = OpSpec(
    name="CachedAttention",
    doc="""Causal attention over a linear key-value cache that keeps its length.

New keys and values go to absolute positions start..start + S - 1. The caller ensures that start + S <= T: nothing is
clamped, and ONNX Runtime and the reference refuse other inputs. Query s sees positions <= start + s, and > start + s -
window if window > 0. The contents of the cache after these positions have no influence as long as they are finite, so
a rejected draft needs no clearing: later writes overwrite it. Query heads share key heads in consecutive groups of
Hq / Hkv. Scores are scale * q.k, soft-capped as softcap * tanh(score / softcap) before masking. A sink is one more
softmax column per head, which is dropped afterwards.

With ``k_scale`` and ``v_scale``, the caches hold E4M3 codes, as ``CacheWriteFp8`` writes them, and attention uses the
decoded values, also for the new positions. Without the scales, there are three types of caches: the type of q;
float16, to which new keys and values are rounded before they are used (with ``saturates``, finite ones beyond its range
become its largest, instead of infinity); and int8, with a scale for each position of a head (``int8_caches.py``).

With ``ancestors``, the window is a tree of drafts. Within the window, a column sees itself and the earlier columns
that its row of ``ancestors`` names, and no others, whatever they contain. Its position is start + the number of these
columns, and the attention window counts along them, so a column gets the same result as if they were the whole window.

Source: ONNX operators TensorScatter-24 and Attention-24 (bottom-right causal, nonpad_kv_seqlen); sinks of GPT-OSS.""",
    inputs=(
        Operand("q", ("B", "Hq", "S", "D"), FLOATS, "queries, rotated"),
        Operand("k", ("B", "Hkv", "S", "D"), FLOATS, "new keys, rotated", same_as="q"),
        Operand("v", ("B", "Hkv", "S", "D"), FLOATS, "new values", same_as="q"),
        Operand(
            "k_cache",
            ("B", "Hkv", "T", "W"),
            (*FLOATS, FLOAT8, "int8"),
            "keys by absolute position, in q's type, float16 or codes; W is D, or D + 2 for int8",
            wide_as="q",
        ),
        Operand(
            "v_cache",
            ("B", "Hkv", "T", "W"),
            (*FLOATS, FLOAT8, "int8"),
            "values by absolute position",
            same_as="k_cache",
        ),
        Operand("start", ("B",), ("int64",), "absolute position of query 0, the number of tokens already in the cache"),
        Operand("sinks", ("Hq",), FLOATS, "score of the extra softmax column of each head", optional=True, same_as="q"),
        Operand("ancestors", ("B", "S", "S"), ("bool",), "for a tree: true if column s sees column t", optional=True),
    ),
    outputs=(
        Operand(
            "y",
            ("B", "S", "Hq", "D"),
            FLOATS,
            "output, with heads after the sequence; reshapes to [B, S, Hq * D]",
            same_as="q",
        ),
        Operand(
            "k_out", ("B", "Hkv", "T", "W"), FLOATS, "k_cache with k written", same_as="k_cache", aliases="k_cache"
        ),
        Operand(
            "v_out", ("B", "Hkv", "T", "W"), FLOATS, "v_cache with v written", same_as="k_cache", aliases="v_cache"
        ),
    ),
    reference=cached_attention,
    body=body,
    attributes=(
        Attribute("scale", float, 1.0, "factor of q.k, usually 1 / sqrt(D)", finite),
        Attribute("window", int, 0, "number of positions that a query sees, including its own; 0 is all", not_negative),
        Attribute("softcap", float, 0.0, "bound on the magnitude of a score; 0 is off", not_negative),
        Attribute("k_scale", float, 0.0, "factor of the codes in k_cache; 0 if the cache has no codes", not_negative),
        Attribute("v_scale", float, 0.0, "factor of the codes in v_cache; set both factors or neither", not_negative),
        Attribute("scaled", int, 0, "1: caches are int8, with a scale for each position of a head", zero_or_one),
        Attribute("saturates", int, 0, "1: numbers beyond the range of float16 caches are clamped", zero_or_one),
    ),
    check_dims=_check_dims,
    cpu_cases=cpu_cases,
    in_fused_regions=True,
)
