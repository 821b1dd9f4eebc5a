"""Compare an engine's logits with torch models of the checkpoints that it was built from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...engines.folder.records import Origin, Part
from ...plugins.errors import PeagleError
from ...plugins.optional_packages import install
from ..bundled.prompts import Prompt
from ..checkpoints.checkpoint import CONFIG, GGUF, Checkpoint
from ..checkpoints.head_weights import HeadWeights, open_head
from ..checkpoints.json_files import read_json
from ..checkpoints.target import Target
from ..console.progress import Advance, Progress
from .logits import Array
from .verdict import Status

if TYPE_CHECKING:
    from ...engines import Engine

TOLERANCE = 1e-4  # of the largest logit, for FP32 sums in different orders
_PROMPTS = 4

Pairs = list[tuple[Array, Array]]
# (target, texts, progress callback) -> logits [len, V] and auxiliary hidden states [len, A*H] of each text
Passes = Callable[[Target, Sequence[Sequence[int]], Advance], Iterator[tuple[Array, Array]]]


@dataclass(frozen=True)
class Parity:
    """Result of one comparison. ``largest_difference`` is relative to the largest logit.

    ``detail``: the reference, or the reason why the comparison could not run.
    """

    name: str
    status: Status
    detail: str
    largest_difference: float | None = None
    tolerance: float = TOLERANCE


def compare_with_sources(
    engine: Engine, prompts: Sequence[Prompt], progress: Progress, passes: Passes
) -> tuple[Parity, ...]:
    """Compare target and drafter logits with torch's. A comparison that cannot run here has the reason.

    ``passes`` runs the target in torch.
    """
    target, drafter = engine.manifest.target.origin, engine.manifest.drafter
    ids = [engine.tokenizer.encode(prompt.text)[: engine.max_seq_len - 1] for prompt in prompts[:_PROMPTS]]
    with progress.step("compare logits with torch"):
        expected = cache(lambda: list(passes(_target(engine), ids, lambda _: None)))
        checks = [_compare("target logits", "transformers", (target,), lambda: _target_pairs(engine, ids, expected()))]
        if drafter:
            origins, oracle = (target, drafter.origin), "graphs/drafters/torch_reference.py"
            checks.append(
                _compare("drafter logits", oracle, origins, lambda: _drafter_pairs(engine, drafter, ids, expected()))
            )
        return tuple(checks)


def whole_passes(target: Target, texts: Sequence[Sequence[int]], advance: Advance) -> Iterator[tuple[Array, Array]]:
    """Run the target as loaded by transformers; see ``Passes``."""
    from transformers.utils import logging

    from ...graphs.drafters.torch_reference import load_target, target_pass

    logging.disable_progress_bar()
    model = _load_gguf(target) if target.checkpoint.gguf else load_target(target.folder, target.config)
    for ids in texts:
        logits, features = target_pass(model, target.spec, ids)
        yield logits.numpy(), features.numpy()
        advance(1)


def _compare(name: str, oracle: str, origins: Sequence[Origin], pairs: Callable[[], Pairs]) -> Parity:
    missing = [package for package in ("torch", "transformers") if find_spec(package) is None]
    if missing:
        return Parity(name, "not checked", f"missing packages: {', '.join(missing)} ({install('export')})")
    for origin in origins:
        if why := _incomparable(origin):
            return Parity(name, "not checked", why)
    differences = [float(abs(computed - reference).max() / abs(reference).max()) for computed, reference in pairs()]
    passed = all(difference <= TOLERANCE for difference in differences)  # a NaN does not pass
    return Parity(
        name, "passed" if passed else "failed", f"compared with {oracle}, {len(differences)} prompts", max(differences)
    )


def checkpoint_problem(origin: Origin) -> str:
    """Return the reason why the engine's checkpoint is unavailable; empty if it is available and unchanged."""
    try:
        checkpoint = Checkpoint.open(Path(origin.source))
    except PeagleError as error:
        return f"the checkpoint cannot be opened: {error.what}"
    return "" if checkpoint.fingerprint == origin.revision else f"{origin.source} was changed after the build"


def _incomparable(origin: Origin) -> str:
    """Return the reason why a checkpoint cannot be a reference; empty if it can."""
    if why := checkpoint_problem(origin):
        return why
    checkpoint = Checkpoint.open(Path(origin.source))
    if checkpoint.format not in ("plain", GGUF):
        return f"the weights are stored as {checkpoint.format}, which transformers cannot compute in FP32"
    return ""


def _target_pairs(engine: Engine, prompts: Sequence[Sequence[int]], expected: Pairs) -> Pairs:
    return [(engine.target_logits(ids), logits) for ids, (logits, _) in zip(prompts, expected, strict=True)]


def drafter_of(folder: Path, drafter: Part) -> Checkpoint:
    """Open the drafter's checkpoint with the configuration that the engine in ``folder`` was built with."""
    checkpoint = open_head(Path(drafter.origin.source))
    return replace(checkpoint, config=read_json(folder / "drafter" / CONFIG, "rebuild the engine"))


def _drafter_pairs(engine: Engine, drafter: Part, prompts: Sequence[Sequence[int]], expected: Pairs) -> Pairs:
    """Return the logits of the drafts after each prompt and its greedy token; see ``Engine.draft_logits``."""
    import numpy as np
    import torch

    from ...graphs.drafters import read_drafter
    from ...graphs.drafters.torch_reference import draft_logits

    target = _target(engine)
    checkpoint = drafter_of(engine.folder, drafter)
    head = read_drafter(checkpoint.config, checkpoint.shapes, target.spec)
    stored = HeadWeights(checkpoint, head, target)
    weights = {
        name: torch.from_numpy(np.concatenate(list(stored.read(name, shape))))
        for name, shape in head.expected_shapes().items()
    }
    k = engine.num_speculative_tokens
    pairs = []
    for ids, (logits, features) in zip(prompts, expected, strict=True):
        extended = [*ids, int(logits[-1].argmax())]
        reference = draft_logits(weights, head, extended, torch.from_numpy(features), k).numpy()
        pairs.append((engine.draft_logits(ids, k), reference))
    return pairs


def _target(engine: Engine) -> Target:
    """Open the target with the auxiliary hidden-state layers of the engine."""
    return Target.open(Path(engine.manifest.target.origin.source)).with_taps(engine.manifest.shapes.taps)


def _load_gguf(target: Target) -> Any:
    """Load the target into transformers with the dequantized values of its GGUF file."""
    import torch

    numbers = {name: torch.from_numpy(target.checkpoint.read(name)) for name in target.checkpoint.tensors}
    cls, settings = target.family.model_class(), target.family.settings(target.config)
    kind: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "eager"}
    return cls.from_pretrained(None, config=settings, state_dict=numbers, **kind).eval()
