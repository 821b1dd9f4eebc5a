"""The two checkpoints of a build, read and checked together, and the sizes that follow from the options."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..graphs.families import TargetSpec, family_for
from ..graphs.heads import HeadSpec
from ..plugins.errors import BuildError
from .checkpoint import Checkpoint
from .options import BuildOptions
from .publish import TOKENIZER
from .registry import Resolved

ASSUMED_DEPTH = 8  # for heads that do not say what depth they were trained to


@dataclass(frozen=True)
class Inputs:
    """Two checkpoints that fit each other, and the sizes that follow from the options."""

    resolved: Resolved
    target: Checkpoint
    drafter: Checkpoint
    spec: TargetSpec
    head: HeadSpec
    trained_depth: int | None
    max_seq_len: int
    max_k: int
    eos_token_ids: tuple[int, ...]
    warnings: tuple[str, ...]

    @property
    def depth(self) -> int:
        """The depth the head was trained to, or is taken to have been."""
        return self.trained_depth or ASSUMED_DEPTH

    @property
    def cache_length(self) -> int:
        """Room for ``max_seq_len`` and for the drafts of two rounds, so that no write can leave the cache."""
        return self.max_seq_len + 2 * self.max_k


def read_inputs(options: BuildOptions, resolved: Resolved) -> Inputs:
    """Open both checkpoints and check them together. Raises ``BuildError`` for whatever does not fit."""
    target, drafter = Checkpoint.open(resolved.target), Checkpoint.open(resolved.drafter)
    family = family_for(target.config)
    head = HeadSpec.read(drafter.config, drafter.shapes, family.describe(target.config))
    spec = family.describe(target.config, head.taps)
    _check_tokenizer(resolved.target, spec.vocab_size)
    warnings = []
    depth = head.trained_depth or (resolved.pair.trained_depth if resolved.pair else None)
    if depth is None:
        warnings.append(f"the head does not say how many drafts it was trained for; {ASSUMED_DEPTH} assumed")
    k = options.num_speculative_tokens or 0
    if k > (depth or ASSUMED_DEPTH):
        warnings.append(f"K = {k} is above the trained depth of {depth or ASSUMED_DEPTH}: the last drafts will be poor")
    max_seq_len = min(options.max_seq_len, spec.max_position_embeddings)
    if max_seq_len < options.max_seq_len:
        warnings.append(f"max_seq_len is {max_seq_len}, the most that the model was trained for")
    return Inputs(
        resolved=resolved,
        target=target,
        drafter=drafter,
        spec=spec,
        head=head,
        trained_depth=depth,
        max_seq_len=max_seq_len,
        max_k=max(depth or ASSUMED_DEPTH, k),
        eos_token_ids=_eos(target),
        warnings=tuple(warnings),
    )


def _check_tokenizer(folder: Path, vocab_size: int) -> None:
    """A tokenizer that gives ids the model does not have would read outside the embedding table."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise BuildError(
            f"{folder} has no {TOKENIZER}",
            why="the runtime tokenizes with the `tokenizers` format only",
            fix="save it once with `AutoTokenizer.from_pretrained(...).save_pretrained(...)` of transformers",
        )
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise BuildError(f"{path} is not a tokenizer", why=str(error), fix="download the file again") from error
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest >= vocab_size:
        raise BuildError(
            f"{path} gives token ids up to {largest}, the model has {vocab_size}",
            why="tokenizer and weights are not of the same model",
            fix="use the tokenizer.json that belongs to the checkpoint",
        )


def _eos(target: Checkpoint) -> tuple[int, ...]:
    """End-of-text ids: the generation config's if there is one, as transformers does."""
    generation = target.folder / "generation_config.json"
    try:
        stated = json.loads(generation.read_bytes()) if generation.is_file() else {}
        value = stated.get("eos_token_id", target.config.get("eos_token_id"))
        ids = value if isinstance(value, list) else [value] if value is not None else []
        return tuple(int(item) for item in ids)
    except (ValueError, TypeError, AttributeError) as error:
        raise BuildError(f"cannot read eos_token_id of {target.folder}", why=str(error)) from error
