"""A config with some of a target's layers describes these layers."""

from __future__ import annotations

import pytest

from peagle.graphs.targets import family_for
from tests.models import CONFIGS


@pytest.mark.parametrize("declares", [True, False])
@pytest.mark.parametrize("name", list(CONFIGS))
def test_kept_layers_have_their_kinds_even_if_these_follow_from_positions(name: str, declares: bool) -> None:
    config = CONFIGS[name]
    family = family_for(config)
    text = dict(family.text(config))
    kinds = family.layer_kinds(text)
    if not declares:
        text.pop("layer_types", None)
        kinds = family.layer_kinds(text)
    wrapped = text if family.text(config) is config else {**config, "text_config": text}
    for layers in ([1, len(kinds) - 1], [0, 2, len(kinds) - 1]):
        kept = family.keeping(wrapped, layers)
        assert family.layer_kinds(kept) == tuple(kinds[i] for i in layers)
        assert len(family.windows(kept)) == kept["num_hidden_layers"] == len(layers)
