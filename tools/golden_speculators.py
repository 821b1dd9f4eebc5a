"""Record the output of the ``speculators`` package's own P-EAGLE class, for tests/conformance.

python tools/golden_speculators.py

Needs a separate environment (its requirements conflict with this project's): torch 2.13.0, speculators 0.9.0 and its
dependencies, without torchvision. Writes tiny random heads as the package saves them, random inputs, and the package's
logits for every (anchor, depth) row it sampled.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig, core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, PretrainedConfig, Qwen3Config, Qwen3ForCausalLM

HIDDEN, VOCAB, DEPTHS, MASK_ID, LENGTH = 16, 64, 6, 1, 24
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
SIZES = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 32, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip


@dataclass(frozen=True)
class Variant:
    """One golden file; ``layers`` goes to the decoder's config, ``head`` to the speculator's."""

    name: str
    taps: tuple[int, ...] = (2, 4, 5)
    decoder: type[PretrainedConfig] = LlamaConfig
    layers: dict[str, Any] = field(default_factory=dict)
    head: dict[str, Any] = field(default_factory=dict)


VARIANTS = (
    Variant("residual"),
    Variant("normed_residual", head={"norm_before_residual": True}),
    Variant("fc_norm", taps=(1, 2, 4, 6), layers={"rope_parameters": LLAMA3}, head={"fc_norm": True}),
    Variant("norm_before_fc", layers={"attention_bias": True, "mlp_bias": True}, head={"norm_before_fc": True}),
    Variant(
        "qwen3_sliding",
        decoder=Qwen3Config,
        layers={
            "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0,
            "layer_types": ["full_attention", "sliding_attention"],
        },
    ),
)  # fmt: skip


def make_model(folder: Path, variant: Variant) -> PEagleDraftModel:
    """Return a random two-layer head; the verifier exists because the package requires one."""
    verifier = Qwen3ForCausalLM(Qwen3Config(**SIZES, num_hidden_layers=8, tie_word_embeddings=False))
    verifier.save_pretrained(folder)
    rope = {"rope_type": "default", "rope_theta": 500.0}
    layers = variant.decoder(**SIZES | {"num_hidden_layers": 2, "rope_parameters": rope} | variant.layers)
    layers._attn_implementation = "eager"
    config = PEagleSpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=VOCAB,
        **variant.head,
        eagle_aux_hidden_state_layer_ids=list(variant.taps),
        mask_token_id=MASK_ID,
        speculators_config=SpeculatorsConfig(
            algorithm="peagle",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=DEPTHS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=str(folder), architectures=["Qwen3ForCausalLM"]),
        ),
    )
    model = PEagleDraftModel(config)
    model.load_vocab_mappings(None, None)
    model.load_verifier_weights()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != "mask_hidden":
                parameter.copy_((1.0 if "norm" in name else 0.0) + 0.2 * torch.randn_like(parameter))
    return model.float().eval()


@torch.no_grad()
def record(model: PEagleDraftModel, taps: int) -> dict[str, torch.Tensor]:
    """Return weights, inputs, and logits [rows, V] of rows (anchor, depth)."""
    ids, features = torch.randint(2, VOCAB, (1, LENGTH)), torch.randn(1, LENGTH, taps * HIDDEN)
    seen: dict[str, Any] = {}
    sample = core.generate_cod_sample_indices

    def remember(**arguments: Any) -> Any:
        seen["rows"] = sample(**arguments)
        return seen["rows"]

    core.generate_cod_sample_indices = remember
    hook = model.lm_head.register_forward_hook(lambda _module, _inputs, out: seen.update(logits=out.detach()))
    try:
        # The package's own shift: the token after a position is paired with that position's features.
        model(
            hidden_states=features[:, :-1],
            input_ids=ids[:, 1:],
            document_ids=torch.zeros(1, LENGTH - 1, dtype=torch.long),
            verifier_last_hidden_states=torch.randn(1, LENGTH - 1, HIDDEN),
            loss_config=resolve_loss_config("kl_div", "eager"),
            num_depths=DEPTHS,
            down_sample_ratio=1.0,
            down_sample_ratio_min=1.0,
        )
    finally:
        core.generate_cod_sample_indices = sample
        hook.remove()
    anchor, depth = seen["rows"]
    logits = seen["logits"].reshape(len(anchor), -1)
    return {"ids": ids[0], "features": features[0], "anchor": anchor, "depth": depth, "logits": logits}


def saved(model: PEagleDraftModel, folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return weights and config as the package saves them, without the name of the temporary folder."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config["speculators_config"]["verifier"]["name_or_path"] = None
    return load_file(folder / "model.safetensors"), config


def main() -> None:
    """Write one file per variant."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tests/conformance"))
    out: Path = parser.parse_args().out
    for variant in VARIANTS:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(Path(folder), variant)
            golden = record(model, len(variant.taps))
            weights, config = saved(model, Path(folder) / "head")
        golden |= {f"head.{name}": tensor for name, tensor in weights.items()}
        path = out / f"speculators_{variant.name}.safetensors"
        save_file(golden, path, metadata={"speculators": "0.9.0", "config": json.dumps(config, sort_keys=True)})
        print(f"{path}: {len(golden['anchor'])} rows, largest logit {golden['logits'].abs().max():.2f}")


if __name__ == "__main__":
    main()
