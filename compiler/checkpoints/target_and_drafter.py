"""Read and cross-check the checkpoints of a build, and derive sizes from the options."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from ...engines.draft_methods import PLAIN, DraftMethod, Passes, method_of_heads
from ...engines.folder.checks import min_cache_length
from ...engines.folder.records import Speculation
from ...engines.text.template_files import read_templates
from ...engines.text.tokenizer import Tokenizer
from ...graphs.drafters import (
    TAPS,
    DrafterSpec,
    called_autoregressive,
    check_vocabulary,
    doubts_of_taps,
    read_drafter,
    unknown_architectures,
)
from ...graphs.lowering import Lowering
from ...graphs.targets import TargetSpec
from ...plugins.errors import BuildError, EnvironmentProblem, UsageError
from ...plugins.problems import listed, shown
from ..store.publish import TOKENIZER
from .checkpoint import CONFIG, Checkpoint
from .head_weights import open_head
from .json_files import read_json
from .resolve_names import Resolved
from .target import Target

GENERATION_CONFIG = "generation_config.json"
HeadOverrides = Callable[[Mapping[str, Any]], Mapping[str, Any]]

USUAL_LENGTH = 2048  # max_seq_len if none is requested, unless the memory of a GPU is known
ASSUMED_DEPTH = 8  # for heads that do not state the depth that they were trained to
_ANY_TEXT = "def add(a, b):\n    return a + b  # \u00e9\u4e2d\U0001f600"


def cache_length(max_seq_len: int, max_num_speculative_tokens: int, lowering: Lowering) -> int:
    """T: room for ``max_seq_len`` and for the drafts of two rounds, so that no write exceeds the cache.

    Rounded up to the lowering's granularity.
    """
    multiple = lowering.cache_multiple
    return -(-min_cache_length(max_seq_len, max_num_speculative_tokens) // multiple) * multiple


class Sizes(Protocol):
    """The options that sizes depend on; see ``SizeOptions``."""

    @property
    def max_seq_len(self) -> int | None:
        """Maximum length of prompt and output together, in tokens, if set."""
        ...

    @property
    def num_speculative_tokens(self) -> int | None:
        """Tokens drafted per round, if set."""
        ...


@dataclass(frozen=True)
class Inputs:
    """Compatible checkpoints, and the sizes derived from the options.

    ``drafter`` is set if the draft ``method`` needs a head. ``max_num_speculative_tokens`` is 0 without a draft method:
    caches then have no room for drafts. ``is_alone``: the drafter is not known yet.
    """

    resolved: Resolved
    target: Target
    drafter: tuple[Checkpoint, DrafterSpec] | None
    trained_depth: int | None
    max_seq_len: int
    max_num_speculative_tokens: int
    eos_token_ids: tuple[int, ...]
    warnings: tuple[str, ...]
    method: DraftMethod
    is_alone: bool = False

    @property
    def head(self) -> DrafterSpec | None:
        """The drafter's spec."""
        return self.drafter[1] if self.drafter else None

    @property
    def checkpoints(self) -> dict[str, Checkpoint]:
        """The checkpoints by role."""
        return {"target": self.target.checkpoint} | ({"drafter": self.drafter[0]} if self.drafter else {})

    def speculation(self, num_speculative_tokens: int | None) -> Speculation:
        """Return the draft settings of a round; None selects an adaptive number, up to the head's trained depth.

        An unknown trained depth counts as ``ASSUMED_DEPTH``; without a head, the method sets the limit.
        """
        max_drafts = self.max_num_speculative_tokens
        depth = min(max_drafts, self.method.depth) if self.drafter is None else self.trained_depth or ASSUMED_DEPTH
        requested = num_speculative_tokens
        return Speculation(
            depth if requested is None else requested, max_drafts, self.trained_depth, adapts=requested is None
        )


def read_inputs(options: Sizes, resolved: Resolved, apply_overrides: HeadOverrides = lambda config: config) -> Inputs:
    """Open the checkpoints and check them together. Raises ``BuildError`` if they are not compatible.

    ``apply_overrides`` applies the user's overrides to the head's configuration.
    """
    target = Target.open(resolved.target)
    if resolved.drafter is None:
        max_seq_len, warnings = longest_sequence(target, options.max_seq_len)
        warnings = [*resolved.notes, *warnings]
        method = resolved.method or PLAIN
        max_drafts = max(options.num_speculative_tokens or 0, method.depth) if method.drafts else 0
        eos_ids = end_of_text_ids(target)
        return Inputs(resolved, target, None, None, max_seq_len, max_drafts, eos_ids, tuple(warnings), method)
    opened = open_head(resolved.drafter)
    drafter = replace(opened, config=apply_overrides(opened.config))
    head = read_head(drafter, target.spec)
    max_seq_len, warnings = longest_sequence(target, options.max_seq_len)
    warnings = [*resolved.notes, *warnings, *_doubts(drafter.config, head)]
    if drafter.config.get(TAPS) == opened.config.get(TAPS):  # not overridden
        warnings += doubts_of_taps(opened.config, target.spec.num_layers)
    depth = head.trained_depth or (resolved.pair.trained_depth if resolved.pair else None)
    if depth is None:
        warnings.append(f"the head does not state how many drafts it was trained for; assuming {ASSUMED_DEPTH}")
    k = options.num_speculative_tokens or 0
    if k > (depth or ASSUMED_DEPTH):
        warnings.append(
            f"K = {k} exceeds the trained depth of {depth or ASSUMED_DEPTH}: the last drafts will rarely be accepted"
        )
    return Inputs(
        resolved=resolved,
        target=target.with_taps(head.taps),
        drafter=(drafter, head),
        trained_depth=depth,
        max_seq_len=max_seq_len,
        max_num_speculative_tokens=max(depth or ASSUMED_DEPTH, k),
        eos_token_ids=end_of_text_ids(target),
        warnings=tuple(warnings),
        method=method_of_heads(Passes.ONE_PER_DRAFT if head.strategy == "autoregressive" else Passes.ONE),
    )


def read_target_alone(options: Sizes, resolved: Resolved, taps: Sequence[int] = ()) -> Inputs:
    """Open a target whose drafter is not known yet, with room for drafts in its caches.

    Without ``taps``, it has the default ones.
    """
    kind = "" if taps else "default "
    target = Target.open(resolved.target).with_taps(taps or None)
    max_seq_len, warnings = longest_sequence(target, options.max_seq_len)
    warnings = [*resolved.notes, *warnings]
    warnings.append(f"no drafter was given: the target is exported alone, with the {kind}taps {target.spec.taps}")
    max_drafts = max(options.num_speculative_tokens or 0, ASSUMED_DEPTH)
    return Inputs(resolved, target, None, None, max_seq_len, max_drafts, (), tuple(warnings), PLAIN, is_alone=True)


def _doubts(config: Mapping[str, Any], head: DrafterSpec) -> list[str]:
    """List warnings about a head that can be read."""
    doubts = []
    if unknown := unknown_architectures(config.get("architectures") or []):
        doubts.append(f"the head's architecture {unknown} is unknown")
    if called_autoregressive(config) and head.strategy == "parallel":
        doubts.append(f"the head's config has speculators_model_type {config['speculators_model_type']}")
    doubts = [f"{doubt}; the head was read as P-EAGLE because it has mask_hidden" for doubt in doubts]
    if head.unread:
        doubts.append(
            f"the head has unknown tensors, which were ignored: {listed(head.unread)}; if training used them, more "
            f"drafts will be rejected (the output is not affected)"
        )
    return doubts


def longest_sequence(target: Target, max_seq_len: int | None) -> tuple[int, list[str]]:
    """Return the requested sequence length, limited to the target's, and warnings about the target.

    Also checks the tokenizer.
    """
    _check_tokenizer(target.folder, target.spec.vocab_size)
    possible = min(max_seq_len or USUAL_LENGTH, target.spec.max_position_embeddings)
    cut = [f"max_seq_len was reduced to {possible}, the model's maximum"] if possible < (max_seq_len or 0) else []
    return possible, [*target.notes, *cut, *_doubts_of_template(target.folder)]


def _doubts_of_template(folder: Path) -> list[str]:
    """Warn about an unusable chat template, which disables chat only. Raises ``BuildError`` for a damaged file."""
    try:
        templates = read_templates(folder)
    except EnvironmentProblem as error:
        raise BuildError(error.what, why=error.why, fix="download the file again, or correct it") from None
    if not templates:
        return []
    from ...engines.text.chat_template import ChatTemplate

    try:
        ChatTemplate(templates, {}).check()
    except EnvironmentProblem as error:
        return [f"chat will not be available: {error.what} ({error.why})"]
    return []


def read_head(drafter: Checkpoint, target: TargetSpec) -> DrafterSpec:
    """Read the head and check its vocabulary. Raises ``BuildError`` if it does not match the target."""
    head = read_drafter(drafter.config, drafter.shapes, target)
    d2t, t2d = (drafter.read(head.keys[name]) if name in head.keys else None for name in ("d2t", "t2d"))
    check_vocabulary(head, d2t, t2d)
    return head


def _check_tokenizer(folder: Path, vocab_size: int) -> None:
    """Raise ``BuildError`` for a tokenizer that has ids beyond the vocabulary, or fails to encode a text."""
    path = folder / TOKENIZER
    if not path.is_file():
        raise BuildError(
            f"{folder} has no {TOKENIZER}",
            why="engines support only tokenizers in the format of the package `tokenizers`",
            fix="convert the tokenizer with `AutoTokenizer.from_pretrained(...).save_pretrained(...)` of transformers",
        )
    try:
        tokenizer = Tokenizer(folder, vocab_size=vocab_size)
        tokenizer.decode(tokenizer.encode(_ANY_TEXT))
    except (EnvironmentProblem, UsageError) as error:
        raise BuildError(error.what, why=error.why, fix=error.fix) from error


def end_of_text_ids(target: Target) -> tuple[int, ...]:
    """Return the end-of-text ids: those of the generation config if it has any, as in transformers."""
    file = target.folder / GENERATION_CONFIG
    generation_config = read_json(file, "") if file.exists() else {}
    text = target.family.text(target.config)
    value = generation_config.get("eos_token_id", target.config.get("eos_token_id", text.get("eos_token_id")))
    ids = value if isinstance(value, list) else [value] if value is not None else []
    wrong = [each for each in ids if type(each) is not int or not 0 <= each < target.spec.vocab_size]
    if wrong:
        origin = file if "eos_token_id" in generation_config else target.folder / CONFIG
        raise BuildError(
            f"{origin}: eos_token_id is {shown(repr(value))}",
            why=f"end-of-text ids must be numbers from 0 to {target.spec.vocab_size - 1}, the ids of the vocabulary",
            fix="use the file that belongs to the checkpoint, or correct the entry",
        )
    return tuple(ids)
