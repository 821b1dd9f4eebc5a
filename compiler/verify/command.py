"""The command that builds an engine again, with more of it left wide."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from ...engines.folder.manifest import Manifest
from ...graphs.lowering import lowering_named
from ..precision.recipes import RECIPES, Recipe


def rebuild(manifest: Manifest, recipe: Recipe, exclude: Sequence[str]) -> str:
    """``peagle-compile build`` as far as the manifest knows it; what was excluded before stays so.

    Where ranges were calibrated from other samples than the bundled ones, those flags have to be added.
    """
    backend, usual = manifest.backend, RECIPES[recipe.name].on(recipe.wide, lowering_named(manifest.backend.lowering))
    words = ["peagle-compile", "build", "--model", manifest.target.origin.id, "--draft", manifest.drafter.origin.id]
    words += ["--backend", backend.name, "--precision", recipe.name]
    words += ["--gpu", ",".join(backend.gpus)] if backend.gpus else []
    for flag, field in (
        ("--kv-cache-dtype", "kv_cache"), ("--lm-head-precision", "lm_head"), ("--draft-precision", "drafter")
    ):  # fmt: skip
        kind = getattr(recipe, field)
        words += [flag, kind] if kind != getattr(usual, field) else []
    for pattern in dict.fromkeys([*recipe.exclude, *exclude]):
        words += ["--exclude", pattern]
    return shlex.join([*words, "--max-seq-len", str(manifest.shapes.max_seq_len), "--out", "ENGINE"])
