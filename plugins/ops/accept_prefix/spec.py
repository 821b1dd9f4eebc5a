"""``AcceptPrefix``: select the tokens that a verify pass emits."""

from __future__ import annotations

from ...op_spec import FLOATS, Kernel, Operand, OpSpec
from .body import body
from .reference import accept_prefix

SPEC = OpSpec(
    name="AcceptPrefix",
    doc="""Draw each column's token from the target's own distribution and keep the drafts that agree.

Emission column j (of E = K + 1) holds the target's logits after window column c0 + j, c0 = window_len - 1 - draft_len.
Its token y_j is the arg-max when temperature is 0, else a draw from softmax(logits / temperature) cut by min-p, then
top-k, then top-p (the order of vLLM): the arg-max of logits / temperature + Gumbel noise over what is left, where the
noise is hashed from ``uniform`` and the token id. Draft j + 1 is accepted while it
equals y_j; the row emits the a accepted drafts and y_a. Because y_j does not depend on the drafts, the text for a given
``uniform`` is the same with speculation on or off; for one-hot drafts this is lossless rejection sampling.

Source: the verification step of P-EAGLE (arXiv 2602.01469), speculative sampling (arXiv 2302.01318).""",
    inputs=(
        Operand("logits", ("B", "E", "V"), FLOATS, "target logits; columns past draft_len are never read"),
        Operand("input_ids", ("B", "S"), ("int64",), "the window: committed tokens, then drafts, then padding"),
        Operand("window_len", ("B",), ("int32",), "valid window columns; 0 marks an idle row"),
        Operand("draft_len", ("B",), ("int32",), "how many of the valid columns, at the end, are drafts (0..K)"),
        Operand("forced_next", ("B",), ("int64",), "the known next prompt token, emitted as it is; -1 for none"),
        Operand("uniform", ("B", "E"), ("float32",), "one number of [0, 1) per emission column"),
        Operand("temperature", ("B",), ("float32",), "0 is greedy: the lowest id wins a tie"),
        Operand("top_k", ("B",), ("int32",), "keep the k largest and their ties; <= 0 is off"),
        Operand(
            "top_p", ("B",), ("float32",), "keep the smallest best prefix of this mass; >= 1 is off, <= 0 the best"
        ),
        Operand("min_p", ("B",), ("float32",), "keep p >= min_p * max p; 0 is off"),
        Operand(
            "tolerance", ("B",), ("float32",), "lossy: also accept p(draft) >= (1 - tolerance) * max p; 0 is lossless"
        ),
    ),
    outputs=(
        Operand("tokens", ("B", "E"), ("int32",), "accepted drafts, the recovered or bonus token, then -1"),
        Operand("num_tokens", ("B",), ("int32",), "valid tokens: accepted + 1, or 0 for an idle row"),
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
