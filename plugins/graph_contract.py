"""The graph contract: every tensor that goes into and comes out of a target and a drafter (docs/architecture.md).

B rows, S columns of the window, E = K + 1 emission columns, F features of a column (taps times hidden size), V and Vd
the vocabularies of target and drafter, H the drafter's hidden size. A cache is ``[B, heads, T, head_dim]``, of the
graph's type or one of ``KEPT``; of int8 a position of a head has two bytes more, its scale.

An autoregressive drafter (EAGLE-3) makes a pass for every draft, so what it gives is that of K = 1, ``draft_ids``
[B,1] for example. Passes after the first are over one column, whose token is the last draft; ``aux_hidden`` has no
columns then, and ``draft_hidden``, which the last pass gave as ``next_draft_hidden``, is the feature in its place.

Where drafts may be a tree, which a lowering decides, the target is told the ``ancestors`` of every column, the earlier
ones of its window that it sees, and ``uniform`` has for each draft the number of its position. A parallel drafter gives
the C likeliest ids of every position then, best first, and the logarithms of their probabilities.

Where a backend cannot be told how long each row is, its graphs read the first R positions of every cache, which the
host chooses so that they hold every busy row; ``positions`` are their numbers, 0 to R - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCALE_BYTES = 2  # of a position of a head, in a cache of int8
KEPT = ("float16", "int8")  # narrower types of caches that our CPU kernel of CachedAttention takes
WIDE = "wide"  # in the place of a type: the one that the graph was traced in


@dataclass(frozen=True)
class GraphTensor:
    """The type of one tensor, as NumPy names it or ``WIDE``, and its symbolic dims."""

    dtype: str
    dims: tuple[str, ...]


TENSORS: Mapping[str, GraphTensor] = {
    "input_ids": GraphTensor("int64", ("B", "S")),
    "start": GraphTensor("int64", ("B",)),
    "window_len": GraphTensor("int32", ("B",)),
    "draft_len": GraphTensor("int32", ("B",)),
    "forced_next": GraphTensor("int64", ("B",)),
    "uniform": GraphTensor("float32", ("B", "E")),
    "temperature": GraphTensor("float32", ("B",)),
    "top_k": GraphTensor("int32", ("B",)),
    "top_p": GraphTensor("float32", ("B",)),
    "min_p": GraphTensor("float32", ("B",)),
    "tolerance": GraphTensor("float32", ("B",)),
    "tokens": GraphTensor("int32", ("B", "E")),
    "num_tokens": GraphTensor("int32", ("B",)),
    "aux_hidden": GraphTensor(WIDE, ("B", "S", "F")),
    "logits": GraphTensor(WIDE, ("B", "E", "V")),
    "draft_ids": GraphTensor("int32", ("B", "E-1")),
    "next_input_ids": GraphTensor("int64", ("B", "E")),
    "next_start": GraphTensor("int64", ("B",)),
    "next_window_len": GraphTensor("int32", ("B",)),
    "next_draft_len": GraphTensor("int32", ("B",)),
    "draft_logits": GraphTensor(WIDE, ("B", "E-1", "Vd")),
    "draft_hidden": GraphTensor(WIDE, ("B", "H")),
    "next_draft_hidden": GraphTensor(WIDE, ("B", "H")),
    "ancestors": GraphTensor("bool", ("B", "S", "S")),
    "candidate_ids": GraphTensor("int64", ("B", "E-1", "C")),
    "candidate_scores": GraphTensor(WIDE, ("B", "E-1", "C")),
    "positions": GraphTensor("int64", ("R",)),
}

WINDOW = ("input_ids", "start", "window_len", "draft_len")  # what both halves are fed
NEXT = tuple(f"next_{name}" for name in WINDOW)  # and the drafter lays out for the next round
POLICY = ("temperature", "top_k", "top_p", "min_p", "tolerance")  # how a row's tokens are chosen
EMITTED = ("tokens", "num_tokens")

TARGET_INPUTS = (*WINDOW, "forced_next", "uniform", *POLICY)
TARGET_OUTPUTS = (*EMITTED, "aux_hidden", "logits")
DRAFTER_INPUTS = (*WINDOW, *EMITTED, "aux_hidden")
DRAFTER_OUTPUTS = ("draft_ids", *NEXT, "draft_logits")
HIDDEN, NEXT_HIDDEN = "draft_hidden", "next_draft_hidden"
AUTOREGRESSIVE_INPUTS = (*DRAFTER_INPUTS, HIDDEN)
AUTOREGRESSIVE_OUTPUTS = (*DRAFTER_OUTPUTS, NEXT_HIDDEN)
ANCESTORS = "ancestors"
CANDIDATES = ("candidate_ids", "candidate_scores")
POSITIONS = "positions"

MOST_CANDIDATES = 8  # of a position; less likely ones are in no tree of a size that pays

MAX_DRAFTS = 63  # of a round: the kernel of AcceptPrefix looks at 64 emission columns, and one is the bonus token's

# Dims that vary, and their field of a plan's profile.
PROFILE_FIELDS = {"B": "rows", "S": "columns", "E": "emitted", "R": "positions"}


def cache_names(layers: int) -> tuple[str, ...]:
    """The cache inputs of a graph in order: the keys of every layer, then the values."""
    return tuple(f"{kind}_cache.{layer}" for kind in "kv" for layer in range(layers))


def cache_width(head_dim: int, dtype: str) -> int:
    """How many numbers of its type a cache has for each position of a head."""
    return head_dim + SCALE_BYTES if dtype == "int8" else head_dim


def is_cache(name: str) -> bool:
    """Whether an input of a graph is a cache."""
    return name.startswith(("k_cache.", "v_cache."))


def written(cache: str) -> str:
    """The output that a cache comes back by; it shares the input's memory."""
    return f"{cache}.out"
