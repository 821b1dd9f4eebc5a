"""Patches of modeling code: the LM head gets only the emitted columns, however it is called."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from peagle.graphs.targets.semantic_patches import Window, semantic_ops, take_columns
from peagle.plugins.errors import BuildError


class Decoder(nn.Module):
    """A model whose forward slices nothing, as modelling code without ``slice_logits_to_keep``."""

    def __init__(self, *, says_its_head: bool = True) -> None:
        super().__init__()
        self.config = SimpleNamespace()
        self.lm_head = nn.Linear(4, 9)
        self.says_its_head = says_its_head

    def get_output_embeddings(self) -> nn.Module | None:
        """The head, as models of transformers say it."""
        return self.lm_head if self.says_its_head else None

    def forward(self, hidden: Tensor) -> Tensor:
        """Logits of every column that the head is given."""
        logits: Tensor = self.lm_head(hidden)
        return logits


def window(columns: Tensor) -> Window:
    return Window(torch.zeros(2, dtype=torch.int64), torch.zeros(2, 5, dtype=torch.int64), columns, [], [])


def test_unsliced_head_gets_emission_columns() -> None:
    model, hidden, columns = Decoder(), torch.randn(2, 5, 4), torch.tensor([[0, 1, 2], [2, 3, 4]])
    with semantic_ops(model, window(columns), {}):
        logits = model(hidden)
    assert torch.equal(logits, model.lm_head(take_columns(hidden, columns)))
    assert model(hidden).shape == (2, 5, 9)


def test_a_head_that_escapes_is_refused() -> None:
    model = Decoder(says_its_head=False)
    with (
        pytest.raises(BuildError, match="columns that are not emitted"),
        semantic_ops(model, window(torch.zeros(2, 3)), {}),
    ):
        model(torch.randn(2, 5, 4))


def test_experts_with_another_activation_are_refused_by_name() -> None:
    from transformers import Gemma4TextConfig
    from transformers.models.gemma4.modeling_gemma4 import Gemma4TextExperts

    config = Gemma4TextConfig(hidden_size=4, moe_intermediate_size=2, num_experts=2, hidden_activation="gelu")
    model, tokens = Decoder(), torch.zeros(3, 4)
    model.config, experts = config, Gemma4TextExperts(config)
    with (
        pytest.raises(BuildError, match="experts with GELUActivation are not supported"),
        semantic_ops(model, window(torch.zeros(2, 3)), {}),
    ):
        experts(tokens, torch.zeros(3, 1, dtype=torch.int64), torch.ones(3, 1))
