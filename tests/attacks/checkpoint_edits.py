"""Checkpoints with changed small files: configurations of target and head, tokenizers, generation settings."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from peagle.engines import Engine
from tests.attacks import nasty_values as nasty
from tests.attacks.judging import judge
from tests.attacks.world import World, command

Content = bytes | Path | None  # Path: a link to it; None: the file is removed
Piece = tuple[str, str, Content]  # file, description of the change, new content

_FILES = (
    "target/config.json", "target/config.json", "head/config.json", "head/config.json", "target/generation_config.json",
    "target/tokenizer.json",
)  # fmt: skip
_KNOWN = (
    "architectures", "model_type", "rope_scaling", "rope_parameters", "layer_types", "sliding_window", "attention_bias",
    "head_dim", "quantization_config", "eagle_config", "eagle_aux_hidden_state_layer_ids", "num_speculative_tokens",
    "ptd_token_id", "eos_token_id", "dtype", "torch_dtype", "tie_word_embeddings", "auto_map", "draft_vocab_size",
    "text_config", "vocab_size", "use_sliding_window", "norm_before_residual", "target_hidden_size", "pad_token_id",
)  # fmt: skip


def draw(rng: random.Random, world: World) -> list[Piece]:
    """One change, or a few, of one file of a pair."""
    name = rng.choice([name for name in _FILES if (world.root / name).is_file()])
    content = json.loads((world.root / name).read_text())
    if rng.random() < 0.1:
        return [(name, "another document", rng.choice(nasty.NOT_A_DOCUMENT))]
    words = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        did, content = nasty.edited(rng, content, _KNOWN)
        words.append(did)
    return [(name, "; ".join(words), json.dumps(content).encode())]


def run(world: World, pieces: Sequence[Piece]) -> str | None:
    """Describe what is wrong with the end of a build of an edited pair, or with its engine; None if nothing is."""
    for part in ("target", "head"):
        shutil.copytree(world.root / part, world.here / part)
    for name, _, content in pieces:
        _put(world.here / name, content)
    world.remember()
    build = ["build", "--model", "target", "--draft", "head", "--out", "out", "--max-seq-len", "64"]
    build += ["--num-speculative-tokens", "2"]
    outcome = command(build)
    if complaint := judge(world, outcome, build):
        return f"build: {complaint}"
    if outcome.code:
        return None
    world.remember()
    runs = ["run", "out", "ab", "--max-tokens", "4"]
    outcome = command(runs)
    if complaint := judge(world, outcome, runs):
        return f"run: {complaint}"
    if outcome.code not in (0, 2):
        return f"was built, and does not run: {outcome.err[:300]}"
    logits = Engine.load("out", threads=1).target_logits([1, 2, 3])
    return None if np.isfinite(logits).all() else "was built, and computes numbers that are none"


def _put(path: Path, content: Content) -> None:
    """Make a file be these bytes, nothing, or a link."""
    path.unlink(missing_ok=True)
    if isinstance(content, Path):
        path.symlink_to(content)
    elif content is not None:
        path.write_bytes(content)
