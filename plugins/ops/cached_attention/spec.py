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

New keys and values go to absolute positions start..start + S - 1 (start + S <= T is the caller's duty: nothing is
clamped, ONNX Runtime and the reference refuse). Query s sees positions <= start + s, and > start + s - window if
window > 0. Whatever the cache holds further on has no influence as long as it is finite, so a rejected draft needs no
clearing: later writes overwrite it. Query heads share key heads in consecutive groups of Hq / Hkv. Scores are
scale * q.k, soft-capped as softcap * tanh(score / softcap) before masking; a sink is one more softmax column per head
that is dropped afterwards.

With ``k_scale`` and ``v_scale`` the caches hold E4M3 codes, as ``CacheWriteFp8`` writes them, and attention sees what
they stand for, the new positions included; without, they are of the type of q, or float16, to the nearest of which new
keys and values are rounded before anything sees them, or int8: a scale for each position and head (``int8_caches.py``).

With ``ancestors`` the window is a tree of drafts: of the window a column sees itself and the earlier columns that its
row of ``ancestors`` names, and no others, whatever is in them. Its position is start + the number of those, and the
window of attention is counted along them: it gets what it would get if they were the whole window.

Source: ONNX operators TensorScatter-24 and Attention-24 (bottom-right causal, nonpad_kv_seqlen); sinks of GPT-OSS.""",
    inputs=(
        Operand("q", ("B", "Hq", "S", "D"), FLOATS, "queries, rotated"),
        Operand("k", ("B", "Hkv", "S", "D"), FLOATS, "new keys, rotated", same_as="q"),
        Operand("v", ("B", "Hkv", "S", "D"), FLOATS, "new values", same_as="q"),
        Operand(
            "k_cache",
            ("B", "Hkv", "T", "W"),
            (*FLOATS, FLOAT8, "int8"),
            "keys by absolute position: of q's type, float16 or codes; W is D, of int8 D + 2",
            wide_as="q",
        ),
        Operand(
            "v_cache",
            ("B", "Hkv", "T", "W"),
            (*FLOATS, FLOAT8, "int8"),
            "values by absolute position",
            same_as="k_cache",
        ),
        Operand("start", ("B",), ("int64",), "absolute position of query 0: tokens already in the cache"),
        Operand("sinks", ("Hq",), FLOATS, "score of the extra softmax column of each head", optional=True, same_as="q"),
        Operand("ancestors", ("B", "S", "S"), ("bool",), "of a tree: whether column s sees column t", optional=True),
    ),
    outputs=(
        Operand(
            "y", ("B", "S", "Hq", "D"), FLOATS, "heads after the sequence: reshapes to [B, S, Hq * D]", same_as="q"
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
        Attribute("scale", float, 1.0, "multiplies q.k, usually 1 / sqrt(D)", finite),
        Attribute("window", int, 0, "how many positions a query sees, itself included; 0 is all", not_negative),
        Attribute("softcap", float, 0.0, "bound on the size of a score; 0 is off", not_negative),
        Attribute("k_scale", float, 0.0, "what a code in k_cache is multiplied with; 0: there are none", not_negative),
        Attribute("v_scale", float, 0.0, "the same of v_cache; both or neither", not_negative),
        Attribute("scaled", int, 0, "1: caches are int8, each position of a head with its scale", zero_or_one),
    ),
    check_dims=_check_dims,
    cpu_cases=cpu_cases,
    in_stretches=True,
)
