"""The target, as used by the head tools."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from peagle.compiler.checkpoints.checkpoint import Checkpoint
from peagle.compiler.checkpoints.resolve_names import resolve_target


@dataclass(frozen=True)
class TargetFiles:
    """A target named as for the compiler: a registry name, a folder, or a GGUF file."""

    name: str
    checkpoint: Checkpoint

    @staticmethod
    def find(name: str) -> TargetFiles:
        """Fetch it if needed. Raises ``SystemExit`` for architectures other than Llama's."""
        checkpoint = Checkpoint.open(resolve_target(name).target)
        if checkpoint.config.get("model_type") != "llama":
            raise SystemExit(f"{name} is a {checkpoint.config.get('model_type')!r}: only Llama targets are supported")
        return TargetFiles(name, checkpoint)

    @property
    def layers(self) -> int:
        return int(self.checkpoint.config["num_hidden_layers"])

    def model(self, dtype: torch.dtype) -> LlamaForCausalLM:
        """Return the model in `dtype`, frozen."""
        config = LlamaConfig.from_dict(dict(self.checkpoint.config))
        with torch.device("meta"):
            model = LlamaForCausalLM(config)
        names = self.checkpoint.shapes
        weights = {name: torch.from_numpy(self.checkpoint.read(name)).to(dtype) for name in names}
        if config.tie_word_embeddings:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
        model.load_state_dict(weights, assign=True)
        model.tie_weights()
        # Not a weight, so it is still on the meta device.
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
        model.eval().requires_grad_(False)
        return model

    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return its tokenizer, with the chat template."""
        return AutoTokenizer.from_pretrained(self.checkpoint.folder)


def placeholder_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the placeholder token: the mask token, or the last special token that dialogues do not use."""
    if tokenizer.mask_token_id is not None:
        return int(tokenizer.mask_token_id)
    in_use = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    special = [i for i, token in tokenizer.added_tokens_decoder.items() if token.special and i not in in_use]
    if not special:
        raise SystemExit("the tokenizer has no unused special token for placeholders")
    return int(max(special))


def fast_dtype() -> torch.dtype:
    """Return bfloat16 if this processor multiplies it (then some four times as fast as float32), else float32."""
    can = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if can else torch.float32
