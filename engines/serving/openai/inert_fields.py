"""Fields of OpenAI's and vLLM's APIs that this server does not act on, on any endpoint for texts and chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..inert_fields import InertFields

# Fields that never change the answer: user ids, billing, storage, names, cache hints. Any value is accepted.
IGNORED = (
    "metadata",
    "prompt_cache_key",
    "prompt_cache_options",
    "prompt_cache_retention",
    "request_id",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
)

# Values that do not change the answer, by field. Null is always accepted.
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    # OpenAI's API
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "reasoning_effort": (),
    "suffix": ("",),
    "web_search_options": (),
    # vLLM's API
    "add_generation_prompt": (True,),
    "add_special_tokens": (True,),
    "chat_template": (),
    "continue_final_message": (False,),
    "early_stopping": (False,),
    "echo": (False,),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": ({},),
    "length_penalty": (1,),
    "logits_processors": ([],),
    "max_repetition_pattern_size": (0,),
    "media_io_kwargs": ({},),
    "min_repetition_pattern_size": (0,),
    "mm_processor_kwargs": ({},),
    "priority": (0,),
    "prompt_embeds": ([],),
    "repetition_detection": (),
    "repetition_min_count": (0,),
    "return_prompt_text": (False,),
    "return_token_ids": (False,),
    "return_token_strs": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "structural_tag": (),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "truncation_side": ("left",),
    "use_beam_search": (False,),
    "vllm_xargs": ({},),
}
# Chat templates write their special tokens themselves; no others are added to a conversation.
NEUTRAL_IN_CHAT = {**NEUTRAL, "add_special_tokens": (False,)}

INERT, INERT_IN_CHAT = InertFields(IGNORED, NEUTRAL), InertFields(IGNORED, NEUTRAL_IN_CHAT)
