"""``PlaceholderDraft``: lay out the rows of one parallel drafting pass, and the window that follows it."""

from __future__ import annotations

from ...limits import Bound, at_least_zero
from ...op_spec import Attribute, Kernel, Operand, OpSpec
from .body import body
from .cpu_cases import cpu_cases
from .reference import placeholder_draft

SPEC = OpSpec(
    name="PlaceholderDraft",
    doc="""Lay out the drafter's single pass: real rows for committed slots, then mask-token placeholders.

With K = E - 1 and c0 = window_len - 1 - draft_len, a row commits C = c0 + num_tokens slots (0 when idle). Slot c
carries the token *after* it (the EAGLE shift): input_ids[c + 1] while c < c0, then tokens[c - c0]; rows from C on carry
the mask token. Row c is at absolute position start + c, so no positions are returned. Drafts 1..K are read at
``emit_rows``: the last real row and K - 1 placeholders. Further rows only fill the fixed width, and are not read.
The caller computes hidden = where(row_is_real, fc(aux), fc(mask_hidden)) and next_input_ids = [newest,
draft_1..draft_K].

Source: P-EAGLE, arXiv 2602.01469 (all K drafts from one forward pass, one shared hidden vector and mask embedding).""",
    inputs=(
        Operand("input_ids", ("B", "S"), ("int64",), "the target's window"),
        Operand("start", ("B",), ("int64",), "absolute position of window column 0"),
        Operand("window_len", ("B",), ("int32",), "valid window columns; 0 marks an idle row"),
        Operand("draft_len", ("B",), ("int32",), "number of drafts at the end of the valid columns (0..K)"),
        Operand("tokens", ("B", "E"), ("int32",), "tokens that AcceptPrefix emitted"),
        Operand("num_tokens", ("B",), ("int32",), "number of valid tokens; 0 for an idle row"),
    ),
    outputs=(
        Operand("row_ids", ("B", "S+E-2"), ("int64",), "token of every drafter row"),
        Operand(
            "row_is_real", ("B", "S+E-2"), ("bool",), "true for rows that take fc(aux); the others take fc(mask_hidden)"
        ),
        Operand("emit_rows", ("B", "E-1"), ("int64",), "rows whose outputs are the drafts 1..K"),
        Operand("newest", ("B",), ("int64",), "last emitted token; 0 for an idle row"),
        Operand("next_start", ("B",), ("int64",), "absolute position of the newest token"),
        Operand("next_window_len", ("B",), ("int32",), "K + 1, or 0 for an idle row"),
        Operand("next_draft_len", ("B",), ("int32",), "K, or 0 for an idle row"),
    ),
    reference=placeholder_draft,
    body=body,
    attributes=(Attribute("mask_token_id", int, -1, "the drafter's placeholder token; must be given", at_least_zero),),
    bounds=(Bound(("E",), "tokens must have at least 2 columns: K >= 1 drafts and one more", minimum=2),),
    kernel=Kernel(entry="placeholder_draft", blocks="B", threads=128, scalars=("B", "S", "E", "mask_token_id")),
    cpu_cases=cpu_cases,
)
