"""``AcceptPrefix``: select the tokens that a verify pass emits."""

from __future__ import annotations

from ...op_spec import FLOATS, Kernel, Operand, OpSpec
from .body import body
from .reference import accept_prefix

SPEC = OpSpec(
    name="AcceptPrefix",
    doc="""Sample each column's token from the target's own distribution, and keep the drafts that agree.

Emission column j (of E = K + 1) holds the target's logits after window column c0 + j, c0 = window_len - 1 - draft_len.
If the temperature is 0, its token y_j is the arg-max. Otherwise, y_j is a sample of softmax(logits / temperature),
truncated by min-p, then top-k, then top-p (the order of vLLM): the arg-max of logits / temperature + Gumbel noise over
the remaining tokens. The noise is a hash of ``uniform`` and the token id. Drafts are accepted in order, as long as
draft j + 1 equals y_j; the row emits the a accepted drafts and y_a. Because y_j does not depend on the drafts, the
text for a given ``uniform`` is the same with and without speculation; for one-hot drafts this is lossless rejection
sampling.

Source: the verification step of P-EAGLE (arXiv 2602.01469), speculative sampling (arXiv 2302.01318).""",
    inputs=(
        Operand("logits", ("B", "E", "V"), FLOATS, "target logits; columns past draft_len are never read"),
        Operand("input_ids", ("B", "S"), ("int64",), "the window: committed tokens, then drafts, then padding"),
        Operand("window_len", ("B",), ("int32",), "valid window columns; 0 marks an idle row"),
        Operand("draft_len", ("B",), ("int32",), "number of drafts at the end of the valid columns (0..K)"),
        Operand(
            "forced_next", ("B",), ("int64",), "the known next prompt token, emitted unchanged; -1 if there is none"
        ),
        Operand("uniform", ("B", "E"), ("float32",), "one number in [0, 1) per emission column"),
        Operand("temperature", ("B",), ("float32",), "0 is greedy; the lowest id wins a tie"),
        Operand("top_k", ("B",), ("int32",), "keep the k most likely tokens and ties with the last one; <= 0 is off"),
        Operand(
            "top_p",
            ("B",),
            ("float32",),
            "keep the most likely tokens up to this probability; >= 1 is off, <= 0 keeps the best",
        ),
        Operand("min_p", ("B",), ("float32",), "keep tokens with p >= min_p * max p; 0 is off"),
        Operand(
            "tolerance", ("B",), ("float32",), "lossy: also accept p(draft) >= (1 - tolerance) * max p; 0 is lossless"
        ),
    ),
    outputs=(
        Operand("tokens", ("B", "E"), ("int32",), "accepted drafts, then the recovered or bonus token, then -1"),
        Operand("num_tokens", ("B",), ("int32",), "number of valid tokens: accepted drafts + 1, or 0 for an idle row"),
    ),
    reference=accept_prefix,
    body=body,
    kernel=Kernel(
        entry="accept_prefix",
        blocks="B",
        threads=512,
        scalars=("B", "E", "S", "V"),
        typed_by="logits",
        cluster=8,
        headers=("own_tokens.cuh",),
    ),
)
