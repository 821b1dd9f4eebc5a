"""Speculation options of vLLM and TensorRT-LLM without a counterpart here: why, and which values are refused.

The keys come from ``speculative_config`` in vLLM's ``config/speculative.py`` and from TensorRT-LLM's
``llmapi/llm_args.py``. ``serve`` and ``build`` both read them; ``build`` adds a table of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NoCounterpart:
    """Options (``keys``) that are ignored, with the reason (``why``).

    Values in ``same`` (lower case) describe the behaviour here and are accepted silently. If ``fix`` is set, all other
    values are refused.
    """

    keys: str
    why: str
    same: tuple[str, ...] = ()
    fix: str = ""

    def takes(self, value: Any) -> bool:
        """Return True if the value is empty or describes the behaviour here."""
        return value is None or value in ("", [], {}) or (_is_scalar(value) and str(value).lower() in self.same)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


ONE_GPU = "an engine runs on one GPU"
FITS_ONE = "remove the key; `peagle-compile build --dry-run --gpu NAME` checks whether the model fits one GPU"
NO_SUCH_RUNTIME = "the key configures a component that peagle-compile does not have"
_EXACT = "acceptance is exact: drafts never change the output"
_LOSSY = "remove the key; for lossy acceptance, set acceptance_tolerance in the request"

NO_COUNTERPARTS = (
    NoCounterpart("parallel_drafting", "the head's config.json declares whether the head drafts in one pass"),
    NoCounterpart(
        "draft_len_schedule max_concurrency acceptance_window acceptance_length_threshold "
        "num_speculative_tokens_per_batch_size acceptance_rate_window_size acceptance_rate_threshold",
        "the engine measures at run time how many drafts pay off",
    ),
    NoCounterpart(
        "parallel_drafting_spec speculative_token_tree eagle_choices use_dynamic_tree dynamic_tree_max_topk "
        "dynamic_tree_max_topK max_non_leaves_per_layer",
        "the engine chooses the shape and depth of the draft tree in each round; num_speculative_tokens limits "
        "the number of drafts",
        same=("false",),
    ),
    NoCounterpart(
        "num_eagle_layers eagle3_one_model",
        "a head is always a separate graph, and its config.json gives the number of layers",
    ),
    NoCounterpart(
        "eagle3_model_arch",
        "drafts come from a P-EAGLE or EAGLE-3 head, or from n-gram lookup in the text",
        same=("llama3",),
        fix="remove the key: the head's config.json gives its architecture",
    ),
    NoCounterpart("greedy_sampling", _EXACT, same=("true",), fix=_LOSSY),
    NoCounterpart("rejection_sample_method", _EXACT, same=("standard",), fix=_LOSSY),
    NoCounterpart(
        "draft_sample_method",
        "a draft is the most likely token; it is accepted if the target samples the same token",
        same=("greedy",),
    ),
    NoCounterpart(
        "allow_advanced_sampling use_rejection_sampling enable_penalty", "drafting works with every sampling method"
    ),
    NoCounterpart("draft_tensor_parallel_size tensor_parallel_size", ONE_GPU, same=("1",), fix=FITS_ONE),
    NoCounterpart("max_model_len", "a head's KV caches are as long as its target's"),
    NoCounterpart(
        "prompt_lookup_max prompt_lookup_min max_matching_ngram_size is_keep_all is_use_oldest is_public_pool",
        "n-gram lookup has no options",
    ),
    NoCounterpart(
        "load_format kv_cache_dtype moe_backend attention_backend enforce_eager code_revision "
        "disable_padded_drafter_batch use_local_argmax_reduction disable_eagle_block_drop",
        NO_SUCH_RUNTIME,
    ),
)

# Options that only a build reads, or that have another name at run time.
OF_A_BUILD = (
    NoCounterpart(
        "model revision speculative_model speculative_model_dir mask_token_id eagle3_layers_to_capture",
        "the drafter is built into the engine",
    ),
    NoCounterpart("quantization", "a drafter is quantized when its engine is built"),
    NoCounterpart(
        "max_draft_len max_total_draft_tokens", "this option takes vLLM's names", fix="use num_speculative_tokens"
    ),
    NoCounterpart("decoding_type", "this option takes vLLM's names", fix="use method"),
    NoCounterpart(
        "posterior_threshold", "acceptance is exact by default", fix="use acceptance_tolerance, which is lossy"
    ),
)


def by_key(*tables: tuple[NoCounterpart, ...]) -> Mapping[str, NoCounterpart]:
    """Return the entries of the tables by key."""
    return {key: entry for table in tables for entry in table for key in entry.keys.split()}
