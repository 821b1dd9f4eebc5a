"""A head in memory and on disk: P-EAGLE or EAGLE-3, with its own vocabulary and the target's embedding."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from drafter_start import look_back
from peagle_module import Drafter, DrafterConfig
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

Method = Literal["peagle", "eagle3"]
METHODS: tuple[Method, ...] = get_args(Method)

# Not stored: the embedding is the target's and is never trained.
SHARED = "embed_tokens.weight"

START_SHARPNESS = 0.4


@dataclass(frozen=True)
class HeadShape:
    """The sizes that do not follow from the target."""

    layers: int
    intermediate: int
    heads: int
    kv_heads: int
    draft_vocabulary: int
    depth: int


@dataclass
class Head:
    """A drafter, its method, and the target ids int64 [draft vocabulary], ascending, that it can propose.

    `unit` float [taps * hidden]: the divisor of the tapped states before `fc`, and the unit of `mask_hidden`. A few
    features are a hundred times as large as the others; scaled to their own units, all are learned alike. Stored
    weights have the units multiplied in.
    """

    method: Method
    drafter: Drafter
    draft_ids: Tensor
    unit: Tensor

    def trained(self) -> dict[str, Tensor]:
        """Return the weights that belong to the head."""
        absent = {SHARED} | ({"mask_hidden"} if self.method == "eagle3" else set())
        return {name: weight for name, weight in self.drafter.state_dict().items() if name not in absent}

    def load_trained(self, weights: dict[str, Tensor]) -> None:
        """Load what `trained` returned."""
        self.drafter.load_state_dict(weights, strict=False)
        if missing := set(self.trained()) - set(weights):
            raise SystemExit(f"the checkpoint lacks {sorted(missing)}: it belongs to another head")

    def to(self, device: str | torch.device) -> Head:
        """Return the head with its tensors on `device`."""
        return Head(self.method, self.drafter.to(device), self.draft_ids.to(device), self.unit.to(device))

    def features(self, aux: Tensor) -> Tensor:
        """Map aux [.., taps * hidden] of the target to the blocks' input [.., hidden]."""
        features: Tensor = self.drafter.fc(aux / self.unit)
        return features

    def target_to_draft(self) -> Tensor:
        """Return int64 [V]: the head's own id of a target id, or -1."""
        table = self.draft_ids.new_full((self.drafter.config.vocab_size,), -1)
        table[self.draft_ids] = torch.arange(len(self.draft_ids), device=table.device)
        return table


def drafter_for(
    target: LlamaForCausalLM, shape: HeadShape, taps: tuple[int, ...], mask_id: int, method: Method
) -> Drafter:
    """Return an untrained drafter that reads `taps` of the target and shares its embedding."""
    config = target.config
    width = config.hidden_size
    drafter = Drafter(
        DrafterConfig(
            hidden_size=width,
            target_hidden_size=width,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            head_dim=config.head_dim or width // config.num_attention_heads,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=10000.0,
            vocab_size=config.vocab_size,
            draft_vocab_size=shape.draft_vocabulary,
            ptd_token_id=mask_id,
            max_position_embeddings=config.max_position_embeddings,
            num_speculative_tokens=shape.depth,
            aux_layers=taps,
        )
    )
    drafter.embed_tokens.weight = nn.Parameter(target.get_input_embeddings().weight.detach().float())
    freeze(drafter, method)
    return drafter


def freeze(drafter: Drafter, method: Method) -> None:
    """Freeze the shared embedding, and the placeholder parameters if the method has none."""
    drafter.embed_tokens.weight.requires_grad_(False)
    drafter.mask_hidden.requires_grad_(method == "peagle")


@torch.no_grad()
def start_head(
    target: LlamaForCausalLM,
    shape: HeadShape,
    taps: tuple[int, ...],
    mask_id: int,
    method: Method,
    draft_ids: Tensor,
    aux: Tensor,
) -> Head:
    """Return an initialized head; aux [R, taps * hidden]: tapped states of some real rows, to measure their scale.

    The output matrix and the final norm start as the target's. `fc` starts as the highest tap divided by its scale: the
    blocks add vectors of norm about one to its output.
    """
    drafter = drafter_for(target, shape, taps, mask_id, method)
    width = drafter.config.hidden_size
    unit = aux.square().mean(0).sqrt().clamp_min(1e-4)
    for name, weight in drafter.named_parameters():
        if weight.dim() == 2 and name != SHARED:
            nn.init.normal_(weight, std=0.02)
    drafter.lm_head.weight.copy_(target.lm_head.weight[draft_ids])
    # The highest tap alone predicts the current token with confidence, which the head would first have to unlearn.
    drafter.norm.weight.copy_(target.model.norm.weight * START_SHARPNESS)
    drafter.fc.weight[:, -width:] += torch.diag(unit[-width:] / unit[-width:].square().mean().sqrt())
    if method == "peagle":
        look_back(drafter, aux / unit)
    return Head(method, drafter, draft_ids, unit)


def save_head(head: Head, folder: Path) -> None:
    """Write config.json and model.safetensors (bfloat16; d2t int64, t2d bool), in vLLM's flat layout."""
    config = json.loads(head.drafter.config.to_json())
    if head.method == "eagle3":
        del config["ptd_token_id"]
    weights = head.trained()
    weights["fc.weight"] = weights["fc.weight"] / head.unit
    if "mask_hidden" in weights:
        weights["mask_hidden"] = weights["mask_hidden"] * head.unit
    tensors = {name: weight.detach().to("cpu", torch.bfloat16).contiguous() for name, weight in weights.items()}
    tensors["d2t"] = head.draft_ids.cpu() - torch.arange(len(head.draft_ids))
    tensors["t2d"] = head.target_to_draft().cpu() >= 0
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


@torch.no_grad()
def begin_like(head: Head, other: Head) -> None:
    """Give `head` the weights of a finished head; tokens that only `head` can propose keep the target's rows."""
    weights = other.trained()
    weights["fc.weight"] = weights["fc.weight"] * head.unit
    if "mask_hidden" in weights:
        weights["mask_hidden"] = weights["mask_hidden"] / head.unit
    rows, places = head.drafter.lm_head.weight.clone(), other.target_to_draft()[head.draft_ids]
    rows[places >= 0] = weights["lm_head.weight"][places[places >= 0]]
    head.load_trained(weights | {"lm_head.weight": rows})


def load_head(folder: Path, target: LlamaForCausalLM) -> Head:
    """Load the shipped (bfloat16-rounded) weights for computation in float32."""
    config = json.loads((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    draft_ids = tensors.pop("d2t") + torch.arange(config["draft_vocab_size"])
    tensors.pop("t2d")
    method: Method = "peagle" if "mask_hidden" in tensors else "eagle3"
    drafter = Drafter(DrafterConfig.from_json(json.dumps({"ptd_token_id": 0} | config)))
    drafter.embed_tokens.weight = nn.Parameter(target.get_input_embeddings().weight.detach().float())
    head = Head(method, drafter, draft_ids, torch.ones(drafter.config.aux_size))
    head.load_trained({name: weight.float() for name, weight in tensors.items()})
    drafter.eval().requires_grad_(False)
    return head
