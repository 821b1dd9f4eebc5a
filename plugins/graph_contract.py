"""The graph contract: every input and output tensor of a target and a drafter (docs/architecture.md).

B is the batch size, S the window's columns, E = K + 1 the emission columns, F the features of a column (taps times
hidden size), V and Vd the vocabulary sizes of target and drafter, and H the drafter's hidden size. A cache is
``[B, heads, T, head_dim]`` in the graph's type or one of ``KEPT``; an int8 cache has two more bytes per position and
head for the scale.

An autoregressive drafter (EAGLE-3) runs one pass per draft, so its outputs have the shapes of K = 1, for example
``draft_ids`` [B,1]. Passes after the first have one column whose token is the last draft; ``aux_hidden`` then has no
columns, and ``draft_hidden``, which the previous pass returned as ``next_draft_hidden``, takes its place. The columns
of its ``aux_hidden`` are therefore a dim of their own, A.

If the lowering allows draft trees, the target also takes ``ancestors``: for each column, the earlier columns of its
window that it attends to. ``uniform`` then holds, for each draft, the random number of the draft's position, and a
parallel drafter returns the C likeliest ids of every position, best first, with their log probabilities. If the host
does not see the trees, the target takes ``skipped`` instead: bit t of a column's number says that it does not attend to
the earlier column t. ``uniform`` then holds the numbers of successive positions, and the target also returns ``path``:
the window column before each token that it emits.

If a backend cannot take the length of each row, its graphs read the first R positions of every cache; the host chooses
R to cover every busy row. ``positions`` holds 0 to R - 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SCALE_BYTES = 2  # bytes per position and head of an int8 cache
_SCALED = "int8"  # the cache type with these bytes
KEPT = ("float16", _SCALED)  # narrower cache types that the CPU kernel of CachedAttention accepts
WIDE = "wide"  # placeholder for the type that the graph was traced in


@dataclass(frozen=True)
class GraphTensor:
    """The type of one tensor (as NumPy names it, or ``WIDE``) and its symbolic dims."""

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
    "skipped": GraphTensor("int64", ("B", "S")),
    "next_skipped": GraphTensor("int64", ("B", "E")),
    "path": GraphTensor("int32", ("B", "E")),
    "candidate_ids": GraphTensor("int64", ("B", "E-1", "C")),
    "candidate_scores": GraphTensor("float32", ("B", "E-1", "C")),
    "positions": GraphTensor("int64", ("R",)),
}

WINDOW = ("input_ids", "start", "window_len", "draft_len")  # inputs of both target and drafter
NEXT = tuple(f"next_{name}" for name in WINDOW)  # the next round's window, laid out by the drafter
POLICY = ("temperature", "top_k", "top_p", "min_p", "tolerance")  # the sampling policy of each row
EMITTED = ("tokens", "num_tokens")

TARGET_INPUTS = (*WINDOW, "forced_next", "uniform", *POLICY)
TARGET_OUTPUTS = (*EMITTED, "aux_hidden", "logits")
DRAFTER_INPUTS = (*WINDOW, *EMITTED, "aux_hidden")
DRAFTER_OUTPUTS = ("draft_ids", *NEXT, "draft_logits")
HIDDEN, NEXT_HIDDEN = "draft_hidden", "next_draft_hidden"
AUTOREGRESSIVE_INPUTS = (*DRAFTER_INPUTS, HIDDEN)
AUTOREGRESSIVE_OUTPUTS = (*DRAFTER_OUTPUTS, NEXT_HIDDEN)
ANCESTORS, SKIPPED, NEXT_SKIPPED, PATH = "ancestors", "skipped", "next_skipped", "path"
CANDIDATES = ("candidate_ids", "candidate_scores")
POSITIONS = "positions"

MAX_CANDIDATES = 8  # per position; less likely candidates are in no tree small enough to pay off
DEEPEST = 6  # maximum depth of a draft tree: the positions whose candidates it may contain

MAX_DRAFTS = 63  # per round: AcceptPrefix's kernel handles 64 emission columns, and one is the bonus token's

# Dynamic dims and their field in a plan's profile.
PROFILE_FIELDS = {"B": "rows", "S": "columns", "E": "emitted", "R": "positions", "A": "aux_columns"}
MIN_SIZES = {"aux_columns": 0}  # of fields that may be smaller than 1
PARTIAL_FIELDS = ("positions", "aux_columns")  # empty in the profiles of graphs without these dims


def cache_names(layers: int) -> tuple[str, ...]:
    """Return the cache inputs of a graph in order: the keys of every layer, then the values."""
    return tuple(f"{kind}_cache.{layer}" for kind in "kv" for layer in range(layers))


def cache_width(head_dim: int, dtype: str) -> int:
    """Return the number of elements per position and head of a cache of this type."""
    return head_dim + SCALE_BYTES if dtype == _SCALED else head_dim


def is_cache(name: str) -> bool:
    """Return True if a graph input is a cache."""
    return name.startswith(("k_cache.", "v_cache."))


def written(cache: str) -> str:
    """Return the output name of a cache input; both share memory."""
    return f"{cache}.out"
