"""The demo drafter's initial state: sizes, initial weights, and auxiliary hidden-state layers."""

from __future__ import annotations

import torch
from peagle_module import Drafter, DrafterConfig
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM

TRAINED_DEPTH = 8
LAYERS = 2
INTERMEDIATE = 640

# See `look_back`.
KEY_FEATURE, QUERY_FEATURE = 0, 1
FEATURE_SIZE = 3.0
SHARPNESS = 4.0
SLOW_PERIODS = 19.0, 355.0  # positions; rotary pairs this slow encode distances without repeating


def tap_layers(layers: int) -> tuple[int, int, int]:
    """Return the customary auxiliary layers: the residual stream entering a low, a middle and a high layer."""
    return 2, layers // 2, layers - 3


def new_drafter(target: Qwen3ForCausalLM, mask_id: int, ids: Tensor) -> tuple[Drafter, float]:
    """Return an initialized drafter, and the scale of the tapped states.  `ids` int64 [B, T]: text to measure them on.

    Embedding, head and final norm start as the target's. `fc` starts as the highest tap divided by the scale of the
    states: the blocks add vectors of norm about one to its output.
    """
    shape = target.config
    taps = tap_layers(shape.num_hidden_layers)
    drafter = Drafter(
        DrafterConfig(
            hidden_size=shape.hidden_size,
            target_hidden_size=shape.hidden_size,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS,
            num_attention_heads=shape.num_attention_heads,
            num_key_value_heads=shape.num_key_value_heads,
            head_dim=shape.head_dim,
            rms_norm_eps=shape.rms_norm_eps,
            rope_theta=10000.0,
            vocab_size=shape.vocab_size,
            draft_vocab_size=shape.vocab_size,
            ptd_token_id=mask_id,
            max_position_embeddings=shape.max_position_embeddings,
            num_speculative_tokens=TRAINED_DEPTH,
            aux_layers=taps,
        )
    )
    aux = target_states(target, ids, taps)[0].flatten(0, 1)
    scale = aux.square().mean().sqrt().item()
    with torch.no_grad():
        for weight in drafter.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)
        drafter.embed_tokens.weight.copy_(target.get_input_embeddings().weight)
        drafter.lm_head.weight.copy_(target.lm_head.weight)
        drafter.norm.weight.copy_(target.model.norm.weight)
        drafter.fc.weight[:, -shape.hidden_size :] += torch.eye(shape.hidden_size)
        drafter.fc.weight /= scale
        drafter.mask_hidden *= scale
        look_back(drafter, aux)
    return drafter, scale


def look_back(drafter: Drafter, aux: Tensor) -> None:
    """Initialize one head of each key group in the first block to attend to the nearest real rows.

    A placeholder has no information of its own; until some head brings it the last real row, nothing from that row can
    be learned. So one feature is set to +1 in real rows and -1 in placeholders, for the keys, and one to +1 in both,
    for the queries; rotary positions turn their constant product into a preference for short distances. aux [R,
    aux_size]: tapped states of real rows.
    """
    size = drafter.config.target_hidden_size
    for feature, tap, in_placeholder in ((KEY_FEATURE, 2, -1.0), (QUERY_FEATURE, 1, 1.0)):
        part = slice(tap * size, (tap + 1) * size)
        states = aux[:, part]
        moment = states.T @ states / len(states)
        mean = states.mean(0)
        # The direction in which the states are most nearly constant (least squares, slightly regularised).
        constant = torch.linalg.solve(moment + 1e-3 * moment.trace() / size * torch.eye(size), mean)
        constant /= mean @ constant
        drafter.fc.weight[feature] = 0
        drafter.fc.weight[feature, part] = FEATURE_SIZE * constant
        placeholder = drafter.mask_hidden[0, 0, part]
        placeholder += (in_placeholder - placeholder @ constant) * constant / constant.square().sum()

    attention, dim = drafter.midlayer.self_attn, drafter.config.head_dim
    pairs = torch.zeros(dim)
    periods = 2 * torch.pi * drafter.config.rope_theta ** (torch.arange(0, dim, 2) / dim)
    slow = ((periods >= SLOW_PERIODS[0]) & (periods <= SLOW_PERIODS[1])).nonzero()[:, 0]
    pairs[slow] = (SHARPNESS * dim**0.5) ** 0.5 / FEATURE_SIZE
    for group in range(attention.kv_heads):
        head = group * (attention.heads // attention.kv_heads)
        q = attention.q_proj.weight[head * dim : (head + 1) * dim]
        k = attention.k_proj.weight[group * dim : (group + 1) * dim]
        q *= 0.2
        q[:, drafter.config.hidden_size + QUERY_FEATURE] += pairs
        k[:, drafter.config.hidden_size + KEY_FEATURE] += pairs


@torch.no_grad()
def target_states(target: Qwen3ForCausalLM, ids: Tensor, taps: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """ids int64 [B, T] -> tapped states [B, T, aux_size] and logits [B, T, V]."""
    out = target.model(input_ids=ids, use_cache=False, output_hidden_states=True)
    return torch.cat([out.hidden_states[tap] for tap in taps], -1), target.lm_head(out.last_hidden_state)
