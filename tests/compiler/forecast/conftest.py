"""Several forecasts are of one target, whose trials take most of their time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from peagle.graphs.targets import TargetSpec, layer_trials
from peagle.graphs.trace import Dtype


@pytest.fixture(scope="session", autouse=True)
def _trials_once() -> Iterator[None]:
    """Trials of the same layers in the same type are traced once: they are a function of what is the key here."""
    run, kept = layer_trials.run_trials, dict[tuple[str, str, Dtype], layer_trials.Trials]()

    def run_once(config: Mapping[str, Any], spec: TargetSpec, dtype: Dtype = "float32") -> layer_trials.Trials:
        key = (json.dumps(config, sort_keys=True), repr(spec), dtype)
        if key not in kept:
            kept[key] = run(config, spec, dtype)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layer_trials, "run_trials", run_once)
        yield
