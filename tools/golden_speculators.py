"""Record what the ``speculators`` package's own P-EAGLE class computes, for tests/conformance.

python tools/golden_speculators.py

Needs an environment of its own (its requirements conflict with ours): torch 2.13.0, speculators 0.9.0 and what it asks
for. Writes a tiny random head, random inputs and the package's logits for every (anchor, depth) row it sampled.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.losses import resolve_loss_config
from speculators.models.peagle import PEagleDraftModel, PEagleSpeculatorConfig, core
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig, Qwen3Config, Qwen3ForCausalLM

HIDDEN, VOCAB, DEPTHS, TAPS, MASK_ID, LENGTH = 32, 64, 6, [2, 4, 5], 1, 24
SIZES = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 48, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
}  # fmt: skip


def make_model(folder: Path, *, norm_before_residual: bool) -> PEagleDraftModel:
    """A random two-layer head; the verifier exists because the package insists on one."""
    verifier = Qwen3ForCausalLM(Qwen3Config(**SIZES, num_hidden_layers=8, tie_word_embeddings=False))
    verifier.save_pretrained(folder)
    layers = LlamaConfig(**SIZES, num_hidden_layers=2, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    layers._attn_implementation = "eager"
    config = PEagleSpeculatorConfig(
        transformer_layer_config=layers,
        draft_vocab_size=VOCAB,
        norm_before_residual=norm_before_residual,
        eagle_aux_hidden_state_layer_ids=TAPS,
        mask_token_id=MASK_ID,
        speculators_config=SpeculatorsConfig(
            algorithm="peagle",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=DEPTHS)],
            default_proposal_method="greedy",
            verifier=VerifierConfig.from_pretrained(str(folder)),
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
def record(model: PEagleDraftModel) -> dict[str, torch.Tensor]:
    """Weights, inputs, and logits [rows, V] of rows (anchor, depth)."""
    ids, features = torch.randint(2, VOCAB, (1, LENGTH)), torch.randn(1, LENGTH, len(TAPS) * HIDDEN)
    seen: dict[str, Any] = {}
    sample = core.generate_cod_sample_indices

    def remember(**arguments: Any) -> Any:
        seen["rows"] = sample(**arguments)
        return seen["rows"]

    core.generate_cod_sample_indices = remember
    hook = model.lm_head.register_forward_hook(lambda _module, _inputs, out: seen.update(logits=out.detach()))
    try:
        # The package's own shift: the token after a position stands beside that position's features.
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
    skipped = ("verifier_", "t2d", "d2t")
    weights = {f"head.{n}": t.contiguous() for n, t in model.state_dict().items() if not n.startswith(skipped)}
    anchor, depth = seen["rows"]
    logits = seen["logits"].reshape(len(anchor), -1)
    return {**weights, "ids": ids[0], "features": features[0], "anchor": anchor, "depth": depth, "logits": logits}


def main() -> None:
    """Write one file per layout of the first layer's residual."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tests/conformance"))
    out: Path = parser.parse_args().out
    for name, flag in (("residual", False), ("normed_residual", True)):
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as folder:
            golden = record(make_model(Path(folder), norm_before_residual=flag))
        path = out / f"speculators_{name}.safetensors"
        save_file(golden, path, metadata={"speculators": "0.9.0", "rope_theta": "500.0", "rms_norm_eps": "1e-5"})
        print(f"{path}: {len(golden['anchor'])} rows, largest logit {golden['logits'].abs().max():.2f}")


if __name__ == "__main__":
    main()
