"""What vLLM and TensorRT-LLM say of speculation that nothing here is told by: why not, and which values are refused.

The keys of ``speculative_config`` in vLLM's ``config/speculative.py`` and TensorRT-LLM's ``llmapi/llm_args.py``.
``serve`` reads them, and ``build``, whose table has them beside its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NoCounterpart:
    """What becomes of ``keys``: their values are left out, and that is told with ``why``.

    Values ``same`` as what happens here, in lower case, are taken without a word. With ``fix`` all others are refused.
    """

    keys: str
    why: str
    same: tuple[str, ...] = ()
    fix: str = ""

    def takes(self, value: Any) -> bool:
        """Whether that value says what happens here, or nothing."""
        return value is None or value in ("", [], {}) or (_is_scalar(value) and str(value).lower() in self.same)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


ONE_GPU = "an engine runs on one GPU"
FITS_ONE = "leave it out if the model fits one: `peagle-compile build --dry-run --gpu NAME` says"
NO_SUCH_RUNTIME = "that runtime has no counterpart here"
_EXACT = "acceptance changes no text"
_LOSSY = "leave it out; acceptance_tolerance of a request is lossy"

NO_COUNTERPARTS = (
    NoCounterpart("parallel_drafting", "whether a head drafts in one pass stands in its config.json"),
    NoCounterpart(
        "draft_len_schedule max_concurrency acceptance_window acceptance_length_threshold "
        "num_speculative_tokens_per_batch_size acceptance_rate_window_size acceptance_rate_threshold",
        "how many drafts pay is measured while an engine runs",
    ),
    NoCounterpart(
        "parallel_drafting_spec speculative_token_tree eagle_choices use_dynamic_tree dynamic_tree_max_topk "
        "dynamic_tree_max_topK max_non_leaves_per_layer",
        "the engine chooses in each round which drafts form a tree and how deep it is; num_speculative_tokens limits "
        "how many drafts there are",
        same=("false",),
    ),
    NoCounterpart(
        "num_eagle_layers eagle3_one_model",
        "a head is always a graph of its own, and how many layers it has stands in its config.json",
    ),
    NoCounterpart(
        "eagle3_model_arch",
        "drafts come from a P-EAGLE or EAGLE-3 head, or are looked up in the text",
        same=("llama3",),
        fix="leave it out: the head's config.json says what it is",
    ),
    NoCounterpart("greedy_sampling", _EXACT, same=("true",), fix=_LOSSY),
    NoCounterpart("rejection_sample_method", _EXACT, same=("standard",), fix=_LOSSY),
    NoCounterpart(
        "draft_sample_method",
        "a draft is the likeliest token; it is accepted when it is the token that is drawn",
        same=("greedy",),
    ),
    NoCounterpart(
        "allow_advanced_sampling use_rejection_sampling enable_penalty", "every way of sampling is drafted for"
    ),
    NoCounterpart("draft_tensor_parallel_size tensor_parallel_size", ONE_GPU, same=("1",), fix=FITS_ONE),
    NoCounterpart("max_model_len", "a head's caches are as long as its target's"),
    NoCounterpart(
        "prompt_lookup_max prompt_lookup_min max_matching_ngram_size is_keep_all is_use_oldest is_public_pool",
        "how drafts are looked up in the text has no options",
    ),
    NoCounterpart(
        "load_format kv_cache_dtype moe_backend attention_backend enforce_eager code_revision "
        "disable_padded_drafter_batch use_local_argmax_reduction disable_eagle_block_drop",
        NO_SUCH_RUNTIME,
    ),
)

# What a build reads, and an engine has by then, or is told by another name.
OF_A_BUILD = (
    NoCounterpart(
        "model revision speculative_model speculative_model_dir mask_token_id eagle3_layers_to_capture",
        "an engine has its drafter built in",
    ),
    NoCounterpart("quantization", "what is rounded of a drafter is rounded when its engine is built"),
    NoCounterpart("max_draft_len max_total_draft_tokens", "vLLM's names are read", fix="say num_speculative_tokens"),
    NoCounterpart("decoding_type", "vLLM's names are read", fix="say method"),
    NoCounterpart("posterior_threshold", "acceptance is exact unless told", fix="acceptance_tolerance is lossy"),
)


def by_key(*tables: tuple[NoCounterpart, ...]) -> Mapping[str, NoCounterpart]:
    """The entries of tables by each of their keys."""
    return {key: entry for table in tables for entry in table for key in entry.keys.split()}
