"""The ops of the ``peagle`` ONNX domain, one folder each: spec, NumPy reference, body of standard ops."""

from __future__ import annotations

from collections.abc import Mapping

from ..op_spec import OpSpec
from .accept_prefix import SPEC as _ACCEPT_PREFIX
from .accept_tree import SPEC as _ACCEPT_TREE
from .cache_write_fp8 import SPEC as _CACHE_WRITE_FP8
from .cached_attention import SPEC as _CACHED_ATTENTION
from .close_up import SPEC as _CLOSE_UP
from .grow_tree import SPEC as _GROW_TREE
from .microscaled_round import SPEC as _MICROSCALED_ROUND
from .mxfp4_down import SPEC as _MXFP4_DOWN
from .mxfp4_gate_up import SPEC as _MXFP4_GATE_UP
from .numbers_at import SPEC as _NUMBERS_AT
from .placeholder_draft import SPEC as _PLACEHOLDER_DRAFT
from .quantized_embedding import SPEC as _QUANTIZED_EMBEDDING
from .quantized_experts import SPEC as _QUANTIZED_EXPERTS
from .quantized_linear import SPEC as _QUANTIZED_LINEAR
from .sparse_experts import SPEC as _SPARSE_EXPERTS
from .wide_embedding import SPEC as _WIDE_EMBEDDING
from .wide_experts import SPEC as _WIDE_EXPERTS
from .wide_linear import SPEC as _WIDE_LINEAR

__all__ = ["OPS"]

_ALL = (
    _ACCEPT_PREFIX,
    _ACCEPT_TREE,
    _CACHE_WRITE_FP8,
    _CACHED_ATTENTION,
    _CLOSE_UP,
    _GROW_TREE,
    _MICROSCALED_ROUND,
    _MXFP4_DOWN,
    _MXFP4_GATE_UP,
    _NUMBERS_AT,
    _PLACEHOLDER_DRAFT,
    _QUANTIZED_EMBEDDING,
    _QUANTIZED_EXPERTS,
    _QUANTIZED_LINEAR,
    _SPARSE_EXPERTS,
    _WIDE_EMBEDDING,
    _WIDE_EXPERTS,
    _WIDE_LINEAR,
)
OPS: Mapping[str, OpSpec] = {op.name: op for op in _ALL}
