"""Patterns of ``--exclude`` and the modules that they match."""

from __future__ import annotations

from peagle.compiler.precision.exclude_patterns import excluded


def test_patterns_name_modules_by_either_name() -> None:
    modules = {f"model.language_model.layers.{i}.mlp.up": f"model.layers.{i}.mlp.up" for i in range(11)}
    first = "model.language_model.layers.1.mlp.up"
    for pattern in ("layers.1.*", "model.layers.1.*", "layers.1", "language_model.layers.1.*", first, "*.1.mlp.up"):
        assert excluded(modules, [pattern]) == {first}, pattern
    assert excluded(modules, []) == set()
    assert excluded(modules, ["*"]) == set(modules)
