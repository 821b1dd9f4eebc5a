"""The measured cost of a quantized LM head equals that of the whole model with a quantized LM head."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from peagle.compiler.precision.calibration import lm_head_costs
from peagle.graphs.targets import family_for
from peagle.plugins.number_types import nearest_e4m3
from tests.compiler.precision.calibration.conftest import Calibrate, random_samples
from tests.models import Pair

Tiny = Callable[[str], Pair]


def whole_model_cost(pair: Pair, sequences: tuple[tuple[int, ...], ...], amax: float) -> tuple[float, float]:
    """Return the divergence and the share of changed tokens, of all tokens, with weight and input rounded to E4M3."""
    model = family_for(pair.config).load(pair.target, pair.config).float()
    with torch.no_grad():
        wide = [model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1) for ids in sequences]

        def rounded(values: torch.Tensor, largest: float) -> torch.Tensor:
            return torch.from_numpy(nearest_e4m3((values * (448 / largest)).numpy())) * (largest / 448)

        weight = model.lm_head.weight.detach().clone()
        model.lm_head.weight = torch.nn.Parameter(rounded(weight, weight.abs().max().item()))
        model.lm_head.register_forward_pre_hook(lambda _, args: (rounded(args[0], amax),))
        narrow = [model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1) for ids in sequences]
    pairs = list(zip(torch.cat(wide), torch.cat(narrow), strict=True))
    divergence = np.mean([(a.exp() * (a - b)).sum().item() for a, b in pairs])
    return float(divergence), float(np.mean([a.argmax() != b.argmax() for a, b in pairs]))


@pytest.mark.parametrize("family", ["qwen3", "gemma-4"])  # with a head of its own; tied, with a soft cap of the logits
def test_equals_the_whole_model_with_a_rounded_head(family: str, tiny: Tiny, calibrated: Calibrate) -> None:
    samples = random_samples(23, 40, 1, 9)
    scales = calibrated(tiny(family), samples)
    expected = whole_model_cost(tiny(family), samples.ids, float(scales.inputs["lm_head.weight"]))
    assert expected[0] > 0
    np.testing.assert_allclose(scales.head_costs["fp8"], expected, rtol=0.02)


def test_eight_bits_with_a_scale_per_row_cost_less_than_fp8(tiny: Tiny, calibrated: Calibrate) -> None:
    costs = calibrated(tiny("qwen3"), random_samples(40, 40)).head_costs
    assert costs.keys() == {"fp8", "int8"}
    assert costs["int8"][0] < costs["fp8"][0]


def test_more_tokens_than_the_limit_are_compared_at_equal_distances(
    tiny: Tiny, calibrated: Calibrate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lm_head_costs, "TOKENS", 20)
    few, every = random_samples(40, 39), []
    real = lm_head_costs.lm_head_costs

    def noting(model: object, streams: list[torch.Tensor], amax: float) -> object:
        every.extend(stream.shape[1] for stream in streams)
        return real(model, streams, amax)  # type: ignore[arg-type]

    monkeypatch.setattr(lm_head_costs, "lm_head_costs", noting)
    assert calibrated(tiny("qwen3"), few).head_costs["fp8"][0] > 0
    assert sorted(every) == [10, 10]
