"""Token ids in and out, with the tensors of TensorRT-LLM's backend, so that its clients work unchanged.

https://github.com/triton-inference-server/tensorrtllm_backend, ``all_models/inflight_batcher_llm/tensorrt_llm``. There
is one beam, and ``output_ids`` contain only new tokens, as with ``exclude_input_in_output``.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ....plugins.errors import UsageError
from .fields import InputTensors
from .front_model import Client, FrontModel
from .local_link import Tensors

# TensorRT-LLM's tensor -> this engine's.
_SAME = {
    "request_output_len": "max_tokens", "temperature": "temperature", "runtime_top_k": "top_k",
    "runtime_top_p": "top_p", "min_length": "min_tokens", "random_seed": "random_seed",
    "repetition_penalty": "repetition_penalty", "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty", "num_draft_tokens": "num_speculative_tokens",
    "return_log_probs": "return_log_probs",
}  # fmt: skip
_OF_DRAFTS = ("num_draft_proposed", "num_draft_accepted", "lossy")


class TokenModel(FrontModel):
    """Decoupled front model for clients with a tokenizer of their own."""

    def answer(self, client: Client, tensors: Tensors) -> None:
        """Send new tokens as they arrive, or all of them at the end."""
        inputs = InputTensors(tensors)
        streams, shows = inputs.flag("streaming"), inputs.flag("return_log_probs")
        ids: list[np.ndarray] = []
        likely: list[np.ndarray] = []
        for piece in self.pieces(client, _asked(inputs, tensors)):
            ids.append(piece["output_ids"].reshape(-1))
            if shows:
                likely.append(piece["output_log_probs"].reshape(-1))
            is_last = "finish_reason" in piece
            if streams or is_last:
                self.send(client, _response(ids, likely, piece), is_last=is_last)
                ids, likely = [], []
            if is_last:
                return


def _asked(inputs: InputTensors, tensors: Tensors) -> Tensors:
    """Return the tensors for the engine's model. Raises ``UsageError`` for unsupported values."""
    if "input_ids" not in inputs or "request_output_len" not in inputs:
        raise UsageError("the request lacks input_ids or request_output_len", fix="send both")
    ids = tensors["input_ids"].reshape(1, -1)
    if "input_lengths" in inputs:
        length = inputs.one("input_lengths")
        if not 0 < length <= ids.size:
            raise UsageError(
                f"input_lengths is {length}, but input_ids has {ids.size} ids",
                fix=f"send a length from 1 to {ids.size}",
            )
        ids = ids[:, :length]
    if "beam_width" in inputs and inputs.one("beam_width") != 1:
        raise UsageError("beam_width is not 1", why="beam search is not supported", fix="remove the input")
    found = {"input_ids": ids, "return_token_ids": np.array([[True]])}
    found |= {ours: tensors[name].reshape(1, 1) for name, ours in _SAME.items() if name in tensors}
    more: dict[str, Any] = {}
    stops = _words(tensors, "stop_words_list")
    if "end_id" in inputs and inputs.one("end_id") >= 0:
        stops.append(inputs.one("end_id"))
    if stops:
        more["stop_token_ids"] = stops
    if bans := _words(tensors, "bad_words_list"):
        more["bad_token_ids"] = bans
    if more:
        found["sampling_parameters"] = np.array([[json.dumps(more).encode()]], np.object_)
    return found


def _words(tensors: Tensors, name: str) -> list[int]:
    """Return the token ids of a word list of shape [1, 2, N]: ids in the first row, end offsets in the second.

    Raises ``UsageError`` for words of several tokens.
    """
    if name not in tensors:
        return []
    both = tensors[name]
    if both.shape[:2] != (1, 2):
        raise UsageError(
            f"{name} has shape {list(both.shape)}", fix="send token ids and end offsets as a tensor of shape [1, 2, N]"
        )
    ids, offsets = both[0]
    last = [int(end) for end in offsets if end >= 0]
    if last != list(range(1, len(last) + 1)) or len(last) > ids.size:
        raise UsageError(
            f"{name} has words of several tokens, or invalid end offsets",
            why="this model supports only words of one token",
            fix="send the words to the text model, as stop_words or bad_words",
        )
    return [int(each) for each in ids[: len(last)]]


def _response(ids: list[np.ndarray], likely: list[np.ndarray], piece: Tensors) -> Tensors:
    """Return the tensors of one response: the new tokens, and with the last ones the engine's statistics."""
    new = np.concatenate(ids).astype(np.int32)
    found: Tensors = {"output_ids": new[None, None], "sequence_length": np.array([[new.size]], np.int32)}
    if likely:
        found["output_log_probs"] = np.concatenate(likely).astype(np.float32)[None, None]
    if "cum_log_probs" in piece:
        found["cum_log_probs"] = piece["cum_log_probs"].reshape(1, 1)
    for name in ("finish_reason", *_OF_DRAFTS):
        if name in piece:
            found[name] = piece[name]
    return found
